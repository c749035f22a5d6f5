//! The user's terminal, while a remote program uses it.

use std::io::{self, IsTerminal};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard};

use fabric::session::WindowSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Standard input, which can be lent to a remote program if it is a terminal. Dropping this restores its settings.
#[derive(Default)]
pub struct Lent(WayBack);

impl Lent {
    /// Puts the terminal into raw mode: keys have no local effect.
    ///
    /// # Errors
    /// If standard input is not a terminal.
    pub fn lend(&self) -> io::Result<()> {
        let mut before = self.0.lock();
        let found = tcgetattr(io::stdin())?;
        let mut raw = found.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        *before = Some(found);
        Ok(())
    }

    /// A handle for another thread.
    pub fn way_back(&self) -> WayBack {
        self.0.clone()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        take_back(&mut self.0.lock());
    }
}

/// Ends this process while the terminal is lent.
#[derive(Clone, Default)]
pub struct WayBack(Arc<Mutex<Option<Termios>>>);

impl WayBack {
    /// Restores the terminal and ends the process, with the exit code that a shell gives for the signal.
    pub fn end(&self, signal: i32) -> ! {
        self.exit(128 + signal)
    }

    /// Restores the terminal and ends the process.
    pub fn exit(&self, code: i32) -> ! {
        let mut before = self.lock();
        take_back(&mut before);
        // The lock stays held, so that no thread lends the terminal again.
        process::exit(code)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Termios>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

fn take_back(before: &mut Option<Termios>) {
    // A closed terminal needs no restoring.
    let _gone = before.take().map(|before| tcsetattr(io::stdin(), OptionalActions::Drain, &before));
}

/// The size of the window of standard input; `None` if it is not a terminal.
pub fn window() -> Option<WindowSize> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}
