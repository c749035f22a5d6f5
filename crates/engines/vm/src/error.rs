//! The engine's errors, with remedies.

use std::fmt::Display;
use std::io;

use engine_api::{Error, Result};

use crate::qmp::QmpError;

/// Adds the attempted operation to an error.
pub trait Doing<T> {
    /// The error says `doing`, and then its reason.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Other(format!("{}: {error}", doing())))
    }
}

/// The failure of the emulator to do its part of a move.
pub fn not_moved(error: &QmpError) -> Error {
    failed("its memory could not be sent", error)
}

/// The failure of the emulator to write a machine to a file.
pub fn not_saved(error: &QmpError) -> Error {
    failed("its memory could not be saved", error)
}

/// The failure of the emulator to mirror the local disks.
pub fn disks_not_moved(error: &QmpError) -> Error {
    failed("its local disks could not be sent", error)
}

/// The failure of the emulator to take what comes.
pub fn not_restored(reason: impl Display) -> Error {
    failed("it could not be restored", reason)
}

fn failed(what: &str, reason: impl Display) -> Error {
    Error::Failed {
        what: what.into(),
        reason: format!("QEMU says: {reason}"),
        remedy: "move it again, or choose another host".into(),
    }
}

/// The channel to the other host has failed.
pub fn not_taken(error: io::Error) -> Error {
    Error::NotTaken(error)
}

/// The emulator has not started: `said` is its own message.
pub fn not_started(said: &str) -> Error {
    let reason = if said.is_empty() { "it gave no reason".to_owned() } else { format!("QEMU says: {said}") };
    Error::Failed {
        what: "its emulator did not start".into(),
        reason,
        remedy: "correct the option that QEMU names, or choose another host".into(),
    }
}
