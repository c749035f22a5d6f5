//! The user's terminal, as long as a program elsewhere has it.

use std::io::{self, IsTerminal};

use fabric::session::WindowSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Standard input, if it is a terminal, with every key going to who reads it. Dropping this makes it what it was before.
pub struct Raw(Termios);

impl Raw {
    /// From here on no key has a meaning here.
    ///
    /// # Errors
    /// If standard input is no terminal.
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _gone = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// The size of the window that is standard input; `None` if that is no terminal.
pub fn window() -> Option<WindowSize> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}
