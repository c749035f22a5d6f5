//! A stream in memory that cuts its bytes at arbitrary places, and breaks when told.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use libc::iovec;
use softhca::Stream;

use super::Random;

#[derive(Default)]
struct Shared {
    /// Bytes from end 0 to end 1, and back.
    ways: [VecDeque<u8>; 2],
    cut: bool,
    /// This end is gone: its written bytes can be read, and then comes the end.
    ended: Option<usize>,
    /// Bytes until it breaks by itself.
    left: Option<u64>,
    /// One in so many writes arrives with a wrong byte.
    noise: Option<u64>,
}

/// Breaks a pipe.
pub struct Cutter(Arc<Mutex<Shared>>);

impl Cutter {
    /// From now on one in `odds` writes arrives with a wrong byte.
    pub fn disturb(&self, odds: u64) {
        self.0.lock().unwrap().noise = Some(odds);
    }

    /// Bytes that end `end` has not read.
    pub fn unread(&self, end: usize) -> usize {
        self.0.lock().unwrap().ways[1 - end].len()
    }

    /// Lets end `end` read `bytes`, regardless of the other end's bytes.
    pub fn inject(&self, end: usize, bytes: &[u8]) {
        self.0.lock().unwrap().ways[1 - end].extend(bytes);
    }

    /// The process at `end` ends.
    pub fn end(&self, end: usize) {
        self.0.lock().unwrap().ended = Some(end);
    }

    pub fn cut(&self) {
        self.0.lock().unwrap().cut = true;
    }
}

struct Pipe {
    shared: Arc<Mutex<Shared>>,
    end: usize,
    random: Random,
}

/// Two ends. After `cut` bytes in all the pipe breaks.
pub fn pair(seed: u64, cut: Option<u64>) -> (Cutter, Box<dyn Stream>, Box<dyn Stream>) {
    let shared = Arc::new(Mutex::new(Shared { left: cut, ..Shared::default() }));
    let end = |end| {
        let random = Random::new(seed + end as u64);
        Box::new(Pipe { shared: Arc::clone(&shared), end, random }) as Box<dyn Stream>
    };
    (Cutter(Arc::clone(&shared)), end(0), end(1))
}

impl Pipe {
    /// How many of `most` bytes pass this time.
    fn some(&mut self, most: usize) -> usize {
        match self.random.below(8) {
            0 => most.min(1),
            1 => most.min(47),
            2 => self.random.below(most as u64 + 1) as usize,
            _ => most,
        }
    }
}

const ROOM: usize = 300_000;

// SAFETY: only the memory that the vectors name is touched, and nothing is kept.
unsafe impl Stream for Pipe {
    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize> {
        let wanted: usize = from.iter().map(|vector| vector.iov_len).sum();
        let mut count = self.some(wanted);
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock().unwrap();
        if let Some(left) = &mut shared.left {
            // The bytes up to the break do arrive at the pipe; a fast reader sees them.
            count = count.min(*left as usize);
            *left -= count as u64;
            if *left == 0 {
                shared.cut = true;
            }
        }
        if shared.cut && count == 0 || shared.ended.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let way = &mut shared.ways[self.end];
        count = count.min(ROOM - way.len().min(ROOM));
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut left = count;
        for vector in from {
            let size = vector.iov_len.min(left);
            // SAFETY: the caller vouches for it.
            way.extend(unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), size) });
            left -= size;
        }
        if shared.noise.is_some_and(|odds| self.random.one_in(odds)) {
            let way = &mut shared.ways[self.end];
            // Mostly in a header, where it does the most.
            let back = self.random.below(way.len().min(100) as u64) as usize;
            let at = way.len() - 1 - back;
            way[at] ^= 1 << self.random.below(8);
        }
        Ok(count)
    }

    fn gathers(&self) -> bool {
        true
    }

    // SAFETY: the trait's contract, as for `write`.
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock().unwrap();
        // A cut loses bytes on their way, sometimes all of them and sometimes none.
        if shared.cut && self.random.one_in(2) {
            return Ok(0);
        }
        let wanted: usize = into.iter().map(|vector| vector.iov_len).sum();
        let there = shared.ways[1 - self.end].len().min(wanted);
        if there == 0 {
            let over = shared.cut || shared.ended.is_some();
            return if over { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = self.some(there).max(1);
        let mut left = count;
        for vector in into {
            let size = vector.iov_len.min(left);
            for (at, byte) in shared.ways[1 - self.end].drain(..size).enumerate() {
                // SAFETY: the caller vouches for it.
                unsafe { vector.iov_base.cast::<u8>().add(at).write(byte) };
            }
            left -= size;
        }
        Ok(count)
    }
}
