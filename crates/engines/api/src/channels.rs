//! Byte streams between the two sides of a move.

use std::io;
use std::os::fd::OwnedFd;

/// The number of channels that one move may open.
pub const MAX_CHANNELS: usize = 16;

/// The length limit of a channel's name, in bytes.
pub const MAX_NAME: usize = 64;

/// Opens channels between the two sides of one move. A channel is an ordered byte stream in both directions, encrypted between the hosts. If
/// the connection breaks, both ends see a closed socket.
///
/// Dropping a side of the move ends its channels: see [`Source`](crate::Source) and [`Destination`](crate::Destination).
pub trait Channels: Send + Sync {
    /// Returns this side's end of the channel `name`: a stream socket in blocking mode. The source opens the channel; the destination waits
    /// until the source has opened it, or this side is closed. A move uses each name once.
    ///
    /// # Errors
    /// If the other host does not accept the channel in time, the name is too long or already used, the move has [`MAX_CHANNELS`]
    /// channels, or this side is closed.
    fn connect(&self, name: &str) -> io::Result<OwnedFd>;
}
