//! The socket of the command line: one request per connection, answered by JSON lines.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure, MAX_LINE, Request};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::client::{Client, User};
use crate::core::Cluster;
use crate::requests;

/// Time limit for a client to send its request.
const CLIENT_LIMIT: Duration = Duration::from_secs(30);

/// The limit of clients at a time.
const MAX_CLIENTS: usize = 1024;

/// The file of the coordinator's socket. Dropping this removes the file, unless another coordinator has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    own: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.own) {
            // A file that remains is replaced by the next coordinator.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Identifies a file independently of its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Creates a socket at `path` that only its owner can open. A stale socket file is replaced.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another coordinator listens on this socket"));
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    // The socket gets its final name only after its permissions are restricted.
    let fresh = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
    let own = identity(&fresh)?;
    fs::rename(&fresh, path)?;
    Ok((listener, SocketFile { path: path.to_owned(), own }))
}

/// Serves clients for as long as it is polled.
pub async fn accept(cluster: Arc<Cluster>, listener: UnixListener) {
    let clients = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        let Ok(permit) = clients.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let cluster = cluster.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve(&cluster, stream).await {
                        tracing::debug!("client connection closed: {error}");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a client: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve(cluster: &Arc<Cluster>, stream: UnixStream) -> io::Result<()> {
    let credentials = stream.peer_cred()?;
    let user = User { user: credentials.uid(), group: credentials.gid() };
    let (reader, writer) = stream.into_split();
    let mut line = String::new();
    let reader: Box<dyn AsyncRead + Send + Unpin> = Box::new(reader);
    let mut reader = BufReader::new(reader).take(MAX_LINE as u64 + 1);
    timeout(CLIENT_LIMIT, reader.read_line(&mut line)).await??;
    let mut client = Client::new(reader.into_inner(), Box::new(writer));
    match api::from_line::<Request>(&line) {
        Ok(request) => requests::fulfil(cluster, request, user, &mut client).await,
        Err(error) => {
            let help = "use a command line of the same release as the coordinator";
            client.say(&Event::Failed(Failure::new(format!("invalid request: {error}"), help))).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_alone_and_replaces_a_dead_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/socket");
        let first = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A killed coordinator leaves its file behind.
        let (listener, file) = first;
        drop(listener);
        let second = listen(&path).unwrap();
        drop(file);
        assert!(path.exists(), "it belongs to the second coordinator");
        drop(second);
        assert!(!path.exists());
    }
}
