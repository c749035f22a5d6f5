//! The user's terminal, as long as a program elsewhere has it.

use std::io::{self, IsTerminal};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::session::WindowSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Standard input, if it is a terminal, which a program elsewhere may be lent. Dropping this makes it what it was before.
#[derive(Default)]
pub struct Lent(WayBack);

impl Lent {
    /// From here on no key has a meaning here.
    ///
    /// # Errors
    /// If standard input is no terminal.
    pub fn lend(&self) -> io::Result<()> {
        let mut before = self.0.lock();
        let found = tcgetattr(io::stdin())?;
        let mut raw = found.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        *before = Some(found);
        Ok(())
    }

    /// For another thread.
    pub fn way_back(&self) -> WayBack {
        self.0.clone()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        take_back(&mut self.0.lock());
    }
}

/// Ends this process although the terminal is lent.
#[derive(Clone, Default)]
pub struct WayBack(Arc<Mutex<Option<Termios>>>);

impl WayBack {
    /// With the code that a shell gives for the signal.
    pub fn end(&self, signal: i32) -> ! {
        let mut before = self.lock();
        take_back(&mut before);
        // Nobody lends it any more: the lock is kept.
        process::exit(128 + signal)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Termios>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take_back(before: &mut Option<Termios>) {
    // A terminal that has gone needs nothing.
    let _gone = before.take().map(|before| tcsetattr(io::stdin(), OptionalActions::Drain, &before));
}

/// The size of the window that is standard input; `None` if that is no terminal.
pub fn window() -> Option<WindowSize> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}
