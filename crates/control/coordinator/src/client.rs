//! The client of a request.

use std::io;
use std::time::Duration;

use api::Event;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// How long a client may take to read an event.
const CLIENT_LIMIT: Duration = Duration::from_secs(30);

/// The user that makes a request.
#[derive(Clone, Copy, Debug)]
pub struct User {
    pub user: u32,
    pub group: u32,
}

/// The two directions of a client's connection: a socket, or its substitute in a test.
pub type Reader = BufReader<Box<dyn AsyncRead + Send + Unpin>>;
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The client that receives a request's events.
pub struct Client {
    reader: Reader,
    writer: Writer,
}

impl Client {
    /// A client that sends over `reader` and receives over `writer`.
    pub fn new(reader: Reader, writer: Writer) -> Self {
        Self { reader, writer }
    }

    /// Sends an event.
    ///
    /// # Errors
    /// If the client has disconnected, or does not read.
    pub async fn say(&mut self, event: &Event) -> io::Result<()> {
        let line = api::to_line(event).map_err(io::Error::other)?;
        timeout(CLIENT_LIMIT, self.writer.write_all(line.as_bytes())).await?
    }

    /// The two halves of the connection.
    pub fn parts(&mut self) -> (&mut Reader, &mut Writer) {
        (&mut self.reader, &mut self.writer)
    }

    /// Waits until the client closes its side.
    pub async fn gone(&mut self) {
        let mut more = [0; 64];
        while self.reader.read(&mut more).await.is_ok_and(|read| read > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_client_that_closes_is_noticed() {
        let (near, far) = UnixStream::pair().unwrap();
        let (reader, writer) = near.into_split();
        let mut client = Client::new(BufReader::new(Box::new(reader)), Box::new(writer));
        assert!(timeout(Duration::from_millis(20), client.gone()).await.is_err());
        drop(far);
        timeout(Duration::from_secs(5), client.gone()).await.unwrap();
    }
}
