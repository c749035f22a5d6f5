//! Byte channels between the two sides of a move.

use std::io;
use std::os::fd::OwnedFd;

/// The most channels of one move.
pub const MAX_CHANNELS: usize = 16;

/// The longest name of a channel, in bytes.
pub const MAX_NAME: usize = 64;

/// Connects the two sides of one move, as often as they want. What is written to one end of a channel comes out of the other, in
/// both directions, and is encrypted between the hosts. A channel that breaks ends as a closed socket does.
///
/// Channels end with their side of the move: see [`Source`](crate::Source) and [`Destination`](crate::Destination).
pub trait Channels: Send + Sync {
    /// This side's end of the channel `name`, a stream socket. The source opens it, the destination waits until the source has. Each
    /// name is used once.
    ///
    /// # Errors
    /// If the other side cannot be reached, does not open it in time, or the move has ended; past [`MAX_CHANNELS`].
    fn connect(&self, name: &str) -> io::Result<OwnedFd>;
}
