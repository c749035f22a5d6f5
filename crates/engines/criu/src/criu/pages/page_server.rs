//! Receives the pages of a dump, which CRIU sends to its page server: `criu/page-xfer.c` of CRIU.
//!
//! ```text
//! CRIU                                 here
//!  │ Open2{owner} ─────────────────────▶│
//!  │◀──────────────── a byte: no parent │
//!  │ AddF{owner, address, pages} ──────▶│   followed by the pages, any number of times
//!  │ ForceClose ───────────────────────▶│
//!  │◀────────── four bytes: all is well │
//! ```

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use crate::criu::pages::fork_advice::NotCopied;
use crate::memory::{MemorySink, Owner, PAGE};

/// The number of bytes that are read at once.
const PART: usize = 1 << 20;

/// Commands, in the lower half of their number; the upper half contains flags of pages.
mod command {
    pub const OPEN2: u16 = 4;
    pub const ADD_F: u16 = 6;
    pub const CLOSE: u16 = 0x1023;
    pub const FORCE_CLOSE: u16 = 0x1024;
}

/// Flag of pages that may arrive after their process is restored.
const LAZY: u16 = 2;
const PRESENT: u16 = 4;

/// Forwards CRIU's pages to `sink` until CRIU ends the stream. If the sink fails, the rest is read and dropped, so that CRIU reaches its
/// next hook without an error.
pub fn serve(socket: UnixStream, sink: &dyn MemorySink, not_copied: &NotCopied) -> Result<(), Failure> {
    let mut server = Server { socket, layout: None, sink, not_copied, refused: None, part: vec![0; PART] };
    let ended = loop {
        match server.step() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(Failure::Criu(error)),
        }
    };
    server.refused.map_or(ended, |error| Err(Failure::Sink(error)))
}

/// The reason why not all pages were forwarded.
#[derive(Debug)]
pub enum Failure {
    /// CRIU has ended, or has sent an invalid message.
    Criu(io::Error),
    /// The sink accepts no more.
    Sink(io::Error),
}

struct Server<'a> {
    socket: UnixStream,
    layout: Option<Layout>,
    sink: &'a dyn MemorySink,
    /// The pages that must be present when their process is restored, even if CRIU marks them as lazy.
    not_copied: &'a NotCopied,
    /// The error of the sink.
    refused: Option<io::Error>,
    part: Vec<u8>,
}

/// The length of the number of pages in a header, which has grown with CRIU 4.2.
#[derive(Clone, Copy)]
enum Layout {
    Short,
    Long,
}

struct Header {
    command: u16,
    flags: u16,
    pages: u64,
    address: u64,
    owner: u64,
}

impl Server<'_> {
    /// Handles the next message; `false` at the end.
    fn step(&mut self) -> io::Result<bool> {
        let header = self.header()?;
        match header.command {
            command::OPEN2 => {
                let owner = header.owner()?;
                self.offer(|sink, _| sink.open(owner));
                self.socket.write_all(&[0])?;
            }
            command::ADD_F if header.flags & PRESENT != 0 => self.pages(&header)?,
            command::CLOSE | command::FORCE_CLOSE => {
                self.socket.write_all(&[0; 4])?;
                return Ok(false);
            }
            _ => return Err(not_understood()),
        }
        Ok(true)
    }

    fn pages(&mut self, header: &Header) -> io::Result<()> {
        let owner = header.owner()?;
        let length = header.pages.checked_mul(PAGE as u64);
        let (mut address, mut left) = (header.address, length.ok_or_else(not_understood)?);
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(PART).min(PART);
            self.socket.read_exact(&mut self.part[..length])?;
            self.pass(owner, address, length, header.flags & LAZY != 0);
            address = address.wrapping_add(length as u64);
            left -= length as u64;
        }
        Ok(())
    }

    /// Forwards the first `length` bytes of the buffer; `lazy` pages may arrive later.
    fn pass(&mut self, owner: Owner, address: u64, length: usize, lazy: bool) {
        let mut done = 0;
        while done < length {
            let (from, now) = (done, address.wrapping_add(done as u64));
            let (is_needed, until) = match owner {
                Owner::Process(pid) if lazy => self.not_copied.find(pid, now),
                _ => (true, u64::MAX),
            };
            done += usize::try_from(until - now).unwrap_or(length).min(length - done);
            self.offer(|sink, part| match is_needed {
                true => sink.take(owner, now, &part[from..done]),
                false => sink.take_later(owner, now, &part[from..done]),
            });
        }
    }

    fn offer(&mut self, to: impl FnOnce(&dyn MemorySink, &[u8]) -> io::Result<()>) {
        if self.refused.is_none() {
            self.refused = to(self.sink, &self.part).err();
        }
    }

    fn header(&mut self) -> io::Result<Header> {
        let mut bytes = [0; 32];
        self.socket.read_exact(&mut bytes[..24])?;
        let number = |bytes: &[u8; 32], at| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 8]));
        // The first message opens an owner, and has neither pages nor an address. The long header has the address where the short
        // header has the owner, which is never zero.
        let is_short = number(&bytes, 16) != 0;
        let layout = *self.layout.get_or_insert(if is_short { Layout::Short } else { Layout::Long });
        let (pages, at) = match layout {
            Layout::Short => (number(&bytes, 0) >> 32, 8),
            Layout::Long => {
                self.socket.read_exact(&mut bytes[24..])?;
                (number(&bytes, 8), 16)
            }
        };
        let word = number(&bytes, 0) as u32;
        let (command, flags) = (word as u16, (word >> 16) as u16);
        Ok(Header { command, flags, pages, address: number(&bytes, at), owner: number(&bytes, at + 8) })
    }
}

impl Header {
    /// The owner, whose type is in the lowest byte.
    fn owner(&self) -> io::Result<Owner> {
        let number = self.owner >> 8;
        match self.owner & 0xff {
            1 => u32::try_from(number).map(Owner::Process).map_err(|_| not_understood()),
            2 => Ok(Owner::Shared(number)),
            _ => Err(not_understood()),
        }
    }
}

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of CRIU to its page server is invalid")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Taken {
        told: Mutex<Vec<String>>,
        is_full: bool,
    }

    impl MemorySink for Taken {
        fn begin(&self) -> io::Result<()> {
            Ok(())
        }

        fn open(&self, owner: Owner) -> io::Result<()> {
            self.told.lock().unwrap().push(format!("{owner:?}"));
            Ok(())
        }

        fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
            if self.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let what = format!("{owner:?} {address:#x} {} {}", pages.len() / PAGE, pages[0]);
            self.told.lock().unwrap().push(what);
            Ok(())
        }

        fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
            self.take(owner, address, pages)?;
            self.told.lock().unwrap().push("which may come later".into());
            Ok(())
        }

        fn end(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The messages of both versions of CRIU for a dump of a process with two pages at 0x7000 and of shared memory.
    fn said(is_short: bool) -> Vec<Vec<u8>> {
        let header = |command: u32, pages: u64, address: u64, owner: u64| {
            let mut bytes = command.to_le_bytes().to_vec();
            if is_short {
                bytes.extend((pages as u32).to_le_bytes());
            } else {
                bytes.extend([0; 4]);
                bytes.extend(pages.to_le_bytes());
            }
            bytes.extend(address.to_le_bytes());
            bytes.extend(owner.to_le_bytes());
            bytes
        };
        vec![
            header(4, 0, 0, 7 << 8 | 1),
            header(0x6_0006, 2, 0x7000, 7 << 8 | 1),
            vec![5; 2 * PAGE],
            header(4, 0, 0, 9 << 8 | 2),
            header(0x4_0006, 300, 0, 9 << 8 | 2),
            vec![6; 300 * PAGE],
            header(0x1024, 0, 0, 0),
        ]
    }

    fn served(said: Vec<Vec<u8>>, sink: &Taken) -> Result<(), Failure> {
        let (mut near, far) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let serving = scope.spawn(|| serve(far, sink, &NotCopied::default()));
            for part in said {
                near.write_all(&part).unwrap();
                let answer = match part.first() {
                    Some(4) => 1,
                    Some(0x24) => 4,
                    _ => 0,
                };
                let mut answered = vec![1; answer];
                near.read_exact(&mut answered).unwrap();
                assert!(answered.iter().all(|byte| *byte == 0));
            }
            drop(near);
            serving.join().unwrap()
        })
    }

    #[test]
    fn messages_of_both_versions_of_criu_are_parsed() {
        for is_short in [true, false] {
            let sink = Taken::default();
            served(said(is_short), &sink).unwrap();
            let told = sink.told.into_inner().unwrap();
            let expected = [
                "Process(7)",
                "Process(7) 0x7000 2 5",
                "which may come later",
                "Shared(9)",
                "Shared(9) 0x0 256 6",
                "Shared(9) 0x100000 44 6",
            ];
            assert_eq!(told, expected, "short: {is_short}");
        }
    }

    #[test]
    fn an_error_of_the_sink_is_returned_after_criu_has_sent_everything() {
        let sink = Taken { is_full: true, ..Taken::default() };
        let error = served(said(false), &sink).unwrap_err();
        assert!(matches!(error, Failure::Sink(error) if error.kind() == io::ErrorKind::StorageFull));
    }

    #[test]
    fn truncated_or_invalid_messages_are_errors() {
        let mut cut = said(false);
        cut.truncate(2);
        let error = served(cut, &Taken::default()).unwrap_err();
        assert!(matches!(error, Failure::Criu(error) if error.kind() == io::ErrorKind::UnexpectedEof));
        let error = served(vec![vec![0x47; 32]], &Taken::default()).unwrap_err();
        assert!(matches!(error, Failure::Criu(error) if error.kind() == io::ErrorKind::InvalidData));
    }
}
