//! Parties of a cluster on the loopback device.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rpc::pki::{self, Identity};
use rpc::{Endpoint, Stream};
use tokio::net::TcpListener;

pub fn authority(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    pki::create_authority(directory.path()).unwrap();
    for name in names {
        pki::issue(directory.path(), name).unwrap();
    }
    directory
}

pub fn endpoint(directory: &Path, name: &str) -> Endpoint {
    Endpoint::new(Identity::load(directory, name).unwrap()).unwrap()
}

pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Both ends of a connection.
pub async fn connection() -> (Stream, Stream) {
    let pki = authority(&["h1", "h2"]);
    let (listener, address) = listen().await;
    let server = endpoint(pki.path(), "h2");
    let accepted = tokio::spawn(async move { server.accept(listener.accept().await.unwrap().0).await });
    let near = endpoint(pki.path(), "h1").connect(address, "h2").await.unwrap();
    (near, accepted.await.unwrap().unwrap().0)
}
