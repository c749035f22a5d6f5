//! Threads of the libraries' own.

use std::io;
use std::sync::mpsc;
use std::thread;

use crate::SignalsBlocked;

/// Starts a thread with all signals blocked, as they are the program's, and waits until it runs: the C library ends a process that gets no
/// memory for a thread that is starting, and has what is kept for that meanwhile.
///
/// # Errors
/// If there can be no more threads.
pub fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _unseen = SignalsBlocked::new();
    let (runs, is_running) = mpsc::sync_channel(1);
    headroom::lend(|| {
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // The other end is there until this is said.
            let _ = runs.send(());
            work();
        })?;
        let _ = is_running.recv();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_their_names() {
        let (says, heard) = mpsc::channel();
        start_thread("transhume-test", move || {
            says.send(thread::current().name().map(str::to_owned)).unwrap()
        })
        .unwrap();
        assert_eq!(heard.recv().unwrap().as_deref(), Some("transhume-test"));
    }
}
