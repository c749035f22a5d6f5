//! Pipes to and from commands, which init never waits for.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Reads available bytes from the pipe, at most `most`; closes the pipe at end of file.
pub fn read(pipe: &mut Option<impl Read>, most: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; most];
    match pipe.as_mut()?.read(&mut bytes) {
        Ok(0) => *pipe = None,
        Ok(length) => {
            bytes.truncate(length);
            return Some(bytes);
        }
        Err(error) if is_passing(error.kind()) => {}
        Err(_) => *pipe = None,
    }
    None
}

/// Writes as many of `bytes` as the pipe accepts, and returns how many are done. If the pipe has no reader, it is closed and all are
/// done.
pub fn write(pipe: &mut Option<impl Write>, bytes: &mut VecDeque<u8>) -> usize {
    let (next, _) = bytes.as_slices();
    let done = match pipe.as_mut().map(|pipe| pipe.write(next)) {
        Some(Ok(written)) => written,
        Some(Err(error)) if is_passing(error.kind()) => 0,
        Some(Err(_)) | None => {
            *pipe = None;
            bytes.len()
        }
    };
    bytes.drain(..done);
    done
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Makes reads and writes return at once.
pub fn set_nonblocking(pipe: BorrowedFd<'_>) {
    // SAFETY: no memory is passed, and the descriptor is open.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_full_pipe_leaves_the_rest_in_the_buffer() {
        let (reader, writer) = io::pipe().unwrap();
        set_nonblocking(writer.as_fd());
        let (mut writer, mut bytes) = (Some(writer), VecDeque::from(vec![7; 1 << 20]));
        let done = write(&mut writer, &mut bytes);
        assert!(done > 0 && bytes.len() == (1 << 20) - done);
        while write(&mut writer, &mut bytes) > 0 {}
        assert!(writer.is_some() && !bytes.is_empty());
        drop(reader);
        let waiting = bytes.len();
        // Until it executes its program, a process that another test has just forked has the read end too.
        let done = std::iter::repeat_with(|| write(&mut writer, &mut bytes)).find(|done| *done > 0);
        assert_eq!((done, bytes.len(), writer.is_none()), (Some(waiting), 0, true));
    }

    #[test]
    fn a_pipe_is_closed_at_its_end_only() {
        let (reader, writer) = io::pipe().unwrap();
        set_nonblocking(reader.as_fd());
        let mut reader = Some(reader);
        assert!(read(&mut reader, 9).is_none() && reader.is_some());
        (&writer).write_all(b"text").unwrap();
        assert_eq!(read(&mut reader, 3).unwrap(), b"tex");
        drop(writer);
        assert_eq!(read(&mut reader, 3).unwrap(), b"t");
        // As above, with the write end.
        while reader.is_some() {
            assert!(read(&mut reader, 3).is_none());
        }
    }
}
