//! Opens connections to other nodes.

use std::io;
use std::sync::Arc;

use moves::HostName;
use rpc::wire::Opening;
use rpc::{Endpoint, Stream, frame};

use crate::directory::Directory;

/// Opens TLS connections to the nodes of other hosts, at their addresses in the directory.
#[derive(Clone)]
pub struct Dialer {
    endpoint: Endpoint,
    directory: Arc<Directory>,
}

impl Dialer {
    pub fn new(endpoint: Endpoint, directory: Arc<Directory>) -> Self {
        Self { endpoint, directory }
    }

    /// A connection to the node of `host`, which is told its purpose.
    ///
    /// # Errors
    /// If the address of the host is not known, or its node cannot be reached.
    pub async fn open(&self, host: &HostName, purpose: &Opening) -> io::Result<Stream> {
        let address = self.directory.address(host).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("the address of host {host} is not known"))
        })?;
        let mut stream = self.endpoint.connect(address, host.as_str()).await?;
        frame::send(&mut stream, purpose).await?;
        Ok(stream)
    }
}
