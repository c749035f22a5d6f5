//! Threads of the libraries.

use std::io;
use std::sync::mpsc;
use std::thread;

use crate::SignalsBlocked;

/// Starts a thread with all signals blocked, as they belong to the program, and waits until it runs: the C library ends a process without
/// memory for a starting thread, so the reserve is free for it meanwhile.
///
/// # Errors
/// If there can be no more threads.
pub fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _unseen = SignalsBlocked::new();
    let (runs, is_running) = mpsc::sync_channel(1);
    headroom::lend(|| {
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // The other end exists until this message.
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
