use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Event, ExecLine, LineError, MAX_LINE, Request, from_line, to_line};

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No coordinator listens on the socket.
    #[error("no coordinator listens on {}", .0.display())]
    NotRunning(PathBuf),
    /// The socket belongs to another user.
    #[error("only the owner of {} may open it", .0.display())]
    NotAllowed(PathBuf),
    /// The path is too long for a socket.
    #[error("the socket path {} is longer than 107 bytes", .0.display())]
    TooLong(PathBuf),
    /// The coordinator ended or closed the connection before its last event.
    #[error("the coordinator closed the connection before it answered")]
    Closed,
    /// The request is too long for a line.
    #[error("the request is too long")]
    Request(#[source] LineError),
    /// A line that is too long or malformed.
    #[error("cannot parse a line from the coordinator; use the same release for both")]
    Line(#[from] LineError),
    /// The connection failed.
    #[error("the connection to the coordinator failed")]
    Io(#[from] io::Error),
}

impl ClientError {
    /// Whether the connection was lost, so that a restarted coordinator may answer the same request.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::NotRunning(_) | Self::Closed) || self.is_break()
    }

    /// Whether the coordinator ended before it had read the request.
    #[must_use]
    pub fn is_break(&self) -> bool {
        let Self::Io(error) = self else { return false };
        matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
    }
}

/// One request to the coordinator, and the events that answer it.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the coordinator behind `socket` and sends `request`.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`], [`ClientError::NotAllowed`], and those of the connection.
    pub fn send(socket: &Path, request: &Request) -> Result<Self, ClientError> {
        let line = to_line(request).map_err(ClientError::Request)?;
        let mut stream = UnixStream::connect(socket).map_err(|error| not_connected(socket, error))?;
        stream.write_all(line.as_bytes())?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Sends `request` and returns the last event of the answer; the other events are dropped.
    ///
    /// # Errors
    /// As [`Self::send`] and [`Self::next_event`].
    pub fn ask(socket: &Path, request: &Request) -> Result<Event, ClientError> {
        let mut client = Self::send(socket, request)?;
        loop {
            let event = client.next_event()?;
            if event.is_last() {
                return Ok(event);
            }
        }
    }

    /// A handle that sends further lines on the same connection.
    ///
    /// # Errors
    /// If there are too many descriptors.
    pub fn speaker(&self) -> io::Result<Speaker> {
        Ok(Speaker { stream: self.reader.get_ref().try_clone()? })
    }

    /// Makes [`Self::next_event`] fail with [`ErrorKind::WouldBlock`] after `limit`.
    ///
    /// # Errors
    /// `InvalidInput` if `limit` is zero.
    pub fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.reader.get_ref().set_read_timeout(limit)
    }

    /// The next event; blocks until it arrives. Nothing follows the last event.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::Line`], and those of the connection.
    pub fn next_event(&mut self) -> Result<Event, ClientError> {
        let mut line = String::new();
        let limit = MAX_LINE as u64 + 1;
        self.reader.by_ref().take(limit).read_line(&mut line)?;
        if line.ends_with('\n') || line.len() as u64 == limit {
            Ok(from_line(&line)?)
        } else {
            Err(ClientError::Closed)
        }
    }
}

/// Sends further lines to the coordinator after a request that expects them.
#[derive(Debug)]
pub struct Speaker {
    stream: UnixStream,
}

impl Speaker {
    /// Sends a complete line.
    ///
    /// # Errors
    /// If it is too long, and those of the connection.
    pub fn say(&mut self, line: &ExecLine) -> Result<(), ClientError> {
        let line = to_line(line).map_err(ClientError::Request)?;
        Ok(self.stream.write_all(line.as_bytes())?)
    }
}

fn not_connected(socket: &Path, error: io::Error) -> ClientError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NotRunning(socket.to_owned()),
        ErrorKind::PermissionDenied => ClientError::NotAllowed(socket.to_owned()),
        // The standard library's error for a path that does not fit into an address.
        ErrorKind::InvalidInput => ClientError::TooLong(socket.to_owned()),
        _ => ClientError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    fn socket(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("th-api-{}-{name}.sock", std::process::id()))
    }

    fn answered_by(name: &str, answer: &'static str) -> Result<Event, ClientError> {
        let path = socket(name);
        let listener = UnixListener::bind(&path).unwrap();
        let coordinator = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            request
        });
        let answer = Client::ask(&path, &Request::List);
        assert_eq!(coordinator.join().unwrap(), "\"list\"\n");
        std::fs::remove_file(path).unwrap();
        answer
    }

    #[test]
    fn the_last_event_answers() {
        let answer = answered_by("last", "{\"transferred\":{\"bytes\":1,\"total\":null}}\n\"done\"\n");
        assert_eq!(answer.unwrap(), Event::Done);
    }

    #[test]
    fn rejects_early_end_and_malformed_lines() {
        assert!(matches!(answered_by("end", ""), Err(ClientError::Closed)));
        assert!(matches!(answered_by("middle", "\"do"), Err(ClientError::Closed)));
        assert!(matches!(answered_by("noise", "hello\n"), Err(ClientError::Line(_))));
    }

    #[test]
    fn an_immediate_end_of_the_coordinator_counts_as_a_loss() {
        for kind in [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset] {
            let error = ClientError::from(io::Error::from(kind));
            assert!(error.is_break() && error.is_loss());
        }
        assert!(!ClientError::Closed.is_break());
    }

    #[test]
    fn distinguishes_missing_coordinator_from_other_errors() {
        let error = Client::ask(&socket("nobody"), &Request::List).unwrap_err();
        assert!(matches!(error, ClientError::NotRunning(_)) && error.is_loss());
        let error = Client::ask(&socket(&"long".repeat(30)), &Request::List).unwrap_err();
        assert!(matches!(error, ClientError::TooLong(_)) && !error.is_loss());
    }
}
