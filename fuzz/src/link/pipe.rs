//! A stream in memory.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::iovec;
use softhca::Stream;

/// Bytes that a device may have under way, and an attacker.
const ROOM: usize = 64 * 1024;
const ATTACKERS_ROOM: usize = 1024 * 1024;

#[derive(Default)]
struct Shared {
    /// Bytes to each end.
    to: [VecDeque<u8>; 2],
    closed: bool,
}

/// One end.
pub struct Pipe {
    shared: Arc<Mutex<Shared>>,
    end: usize,
}

/// Both ends.
#[must_use]
pub fn pair() -> (Pipe, Pipe) {
    let shared = Arc::<Mutex<Shared>>::default();
    (Pipe { shared: shared.clone(), end: 0 }, Pipe { shared, end: 1 })
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says `bytes` to the other end, if they have room.
    pub fn send(&mut self, bytes: &[u8]) {
        let way = &mut self.lock().to[1 - self.end];
        if way.len() + bytes.len() <= ATTACKERS_ROOM {
            way.extend(bytes);
        }
    }

    /// The bytes that the other end has sent.
    pub fn receive(&mut self) -> Vec<u8> {
        self.lock().to[self.end].drain(..).collect()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.lock().closed = true;
    }
}

// SAFETY: only the memory that the vectors name is touched, and nothing is kept.
unsafe impl Stream for Pipe {
    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize> {
        let mut shared = self.lock();
        if shared.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let way = &mut shared.to[1 - self.end];
        let mut written = 0;
        for vector in from {
            let size = vector.iov_len.min(ROOM.saturating_sub(way.len()));
            // SAFETY: the caller vouches for it.
            way.extend(unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), size) });
            written += size;
        }
        if written == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(written) }
    }

    // SAFETY: the trait's contract, as for `write`.
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
        let mut shared = self.lock();
        let closed = shared.closed;
        let way = &mut shared.to[self.end];
        let mut read = 0;
        for vector in into {
            let size = vector.iov_len.min(way.len());
            for (at, byte) in way.drain(..size).enumerate() {
                // SAFETY: the caller vouches for it.
                unsafe { vector.iov_base.cast::<u8>().add(at).write(byte) };
            }
            read += size;
        }
        if read == 0 && !closed { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(read) }
    }
}
