//! The screen of `transhume top`: drawn anew until a key or a signal ends it, and then as it was before.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use fabric::session::WindowSize;

use crate::failure::Result;
use crate::terminal::{self, Lent};
use crate::{interrupt, output, table};

/// Shows the alternate screen without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";

/// Shows the cursor and the screen of before.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Keys that end it: `q`, Ctrl-C and Ctrl-D. In raw mode they make no signals.
const ENDING: [u8; 4] = [b'q', b'Q', 3, 4];

/// The screen. Dropping it restores the terminal.
pub struct Live {
    /// Dropped after the screen was left.
    _lent: Lent,
    ended: Receiver<()>,
    /// Keeps the channel open where no keys are read.
    _end: Sender<()>,
}

impl Live {
    /// Takes the terminal.
    pub fn begin() -> Result<Self> {
        let lent = Lent::default();
        let way_back = lent.way_back();
        interrupt::on_each(move |signal| {
            leave();
            way_back.end(signal)
        })?;
        let (end, ended) = mpsc::channel();
        if io::stdin().is_terminal() {
            lent.lend()?;
            let end = end.clone();
            thread::spawn(move || {
                await_key();
                end.send(())
            });
        }
        let live = Self { _lent: lent, ended, _end: end };
        output::write(ENTER)?;
        Ok(live)
    }

    /// Draws `text`, as far as it fits.
    pub fn draw(&self, text: &str) -> Result<()> {
        output::write(drawing(text, terminal::window()))
    }

    /// Waits so long; returns early, and `true`, if the user has ended it.
    pub fn is_ended_within(&self, time: Duration) -> bool {
        self.ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        leave();
    }
}

fn leave() {
    // A closed terminal needs no restoring.
    let _gone = io::stdout().write_all(LEAVE.as_bytes()).and_then(|()| io::stdout().flush());
}

/// Returns at a key that ends it, and when the terminal is gone.
fn await_key() {
    let _ending = io::stdin().lock().bytes().find(|key| match key {
        Ok(key) => ENDING.contains(key),
        Err(_) => true,
    });
}

/// Lines over what was there before; the last row stays free, so that nothing scrolls.
fn drawing(text: &str, window: Option<WindowSize>) -> String {
    let (rows, columns) =
        window.map_or((usize::MAX, usize::MAX), |size| (size.rows.into(), size.columns.into()));
    let lines = text.lines().take(rows.saturating_sub(1));
    // In raw mode, a line feed does not return to the first column.
    let drawn = lines.map(|line| format!("{}\x1b[K\r\n", table::shorten(line, columns)));
    format!("\x1b[H{}\x1b[J", drawn.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut() {
        let window = Some(WindowSize { rows: 3, columns: 4 });
        assert_eq!(drawing("abcd\nabcde\nx\n", window), "\x1b[Habcd\x1b[K\r\nabc…\x1b[K\r\n\x1b[J");
        assert_eq!(drawing("a\n", None), "\x1b[Ha\x1b[K\r\n\x1b[J");
    }
}
