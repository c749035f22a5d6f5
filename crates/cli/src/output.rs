//! Standard output: all commands write through this module, so that write errors, such as a full
//! disk, are reported uniformly.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Exit code after a write to a closed pipe, as in shells.
const UNREAD: u8 = 128 + 13;

/// Writes `text` and flushes.
pub fn write(text: impl AsRef<[u8]>) -> Result<()> {
    written(io::stdout().write_all(text.as_ref()))
}

/// Flushes, and converts a failed write to standard output to a failure.
pub fn written(outcome: io::Result<()>) -> Result<()> {
    let outcome = outcome.and_then(|()| io::stdout().flush());
    outcome.map_err(|error| {
        let failure = Failure::new(format!("standard output: {error}"), "");
        if error.kind() == io::ErrorKind::BrokenPipe { failure.with_code(UNREAD) } else { failure }
    })
}

/// Writes `text` as a line.
pub fn line(text: &str) -> Result<()> {
    write(format!("{text}\n"))
}

/// Writes `value` as one line of JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string(value).map_err(io::Error::from)?)
}

/// Writes `value` as one line of JSON to standard error, as far as anybody reads that.
pub fn json_aside(value: &impl Serialize) {
    if let Ok(line) = serde_json::to_string(value) {
        eprintln!("{line}");
    }
}
