//! The sockets at which a node listens.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::error::NodeError;

/// Listens at `address`. Waits for a port that a former node is about to release.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, NodeError> {
    /// How long the port of a killed node may still be in use: a child that the node was starting has all its descriptors until the
    /// child executes its program.
    const PATIENCE: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < PATIENCE => {
                sleep(PAUSE).await;
            }
            bound => return bound.map_err(|source| NodeError::io(format!("listening on {address}"), source)),
        }
    }
}

/// The address of `listener`.
pub fn local_address(listener: &TcpListener) -> Result<SocketAddr, NodeError> {
    listener.local_addr().map_err(|source| NodeError::io("the listening socket", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn binding_waits_for_a_port_that_is_soon_free() {
        let before = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = local_address(&before).unwrap();
        tokio::spawn(async move {
            sleep(Duration::from_millis(100)).await;
            drop(before);
        });
        let after = listen(address).await.unwrap();
        let refused = listen(address).await.unwrap_err().to_string();
        assert!(refused.contains(&address.to_string()), "{refused}");
        drop(after);
    }
}
