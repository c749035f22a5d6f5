//! Standard output: what all commands write goes through here, so that one that cannot be written
//! to (a full disk, say) is always told in the same way.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// What a command ends with that nobody reads, as shells have it.
const UNREAD: u8 = 128 + 13;

/// Writes `text` at once.
pub fn write(text: impl AsRef<[u8]>) -> Result<()> {
    written(io::stdout().write_all(text.as_ref()))
}

/// What came of writing to standard output; what is still held back is written first.
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
