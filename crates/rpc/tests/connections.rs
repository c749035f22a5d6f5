//! Parties of a cluster that connect over the loopback device.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rpc::pki::{self, Identity};
use rpc::{CallError, Caller, Endpoint, call, channel};
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(5);

fn authority(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    pki::create_authority(directory.path()).unwrap();
    for name in names {
        pki::issue(directory.path(), name).unwrap();
    }
    directory
}

fn endpoint(directory: &Path, name: &str) -> Endpoint {
    Endpoint::new(Identity::load(directory, name).unwrap()).unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn each_end_knows_the_other_by_name() {
    let pki = authority(&["h1", "h2"]);
    let (listener, address) = listen().await;
    let server = endpoint(pki.path(), "h2");
    let accepted = tokio::spawn(async move { server.accept(listener.accept().await.unwrap().0).await });
    endpoint(pki.path(), "h1").connect(address, "h2").await.unwrap();
    assert_eq!(accepted.await.unwrap().unwrap().1, "h1");
}

#[tokio::test]
async fn another_host_and_another_cluster_are_refused() {
    let pki = authority(&["h1", "h2", "h3"]);
    let stranger = authority(&["h1"]);
    let (listener, address) = listen().await;
    let server = endpoint(pki.path(), "h3");
    tokio::spawn(async move {
        loop {
            let _ = server.accept(listener.accept().await.unwrap().0).await;
        }
    });
    assert!(endpoint(pki.path(), "h1").connect(address, "h2").await.is_err());
    assert!(endpoint(stranger.path(), "h1").connect(address, "h3").await.is_err());
}

#[tokio::test]
async fn answers_find_their_questions_and_a_lost_connection_ends_the_waiting() {
    let pki = authority(&["h1", "h2"]);
    let (listener, address) = listen().await;
    let server = endpoint(pki.path(), "h2");
    let serving = tokio::spawn(async move {
        let (stream, _) = server.accept(listener.accept().await.unwrap().0).await.unwrap();
        call::serve(stream, |question: u64| async move {
            if question == 0 {
                std::future::pending::<()>().await;
            }
            question + 1
        })
        .await;
    });
    let stream = endpoint(pki.path(), "h1").connect(address, "h2").await.unwrap();
    let caller: Caller<u64, u64> = Caller::new(stream);
    let (one, two) = tokio::join!(caller.call(10, LIMIT), caller.call(20, LIMIT));
    assert_eq!((one, two), (Ok(11), Ok(21)));
    assert_eq!(caller.call(0, Duration::from_millis(20)).await, Err(CallError::TimedOut));
    serving.abort();
    assert_eq!(caller.call(0, LIMIT).await, Err(CallError::Closed));
}

#[tokio::test]
async fn that_a_connection_was_cut_is_said_in_our_words() {
    let pki = authority(&["h1", "h2"]);
    let (listener, address) = listen().await;
    let server = endpoint(pki.path(), "h2");
    // It is dropped without a word.
    tokio::spawn(async move { drop(server.accept(listener.accept().await.unwrap().0).await) });
    let near = endpoint(pki.path(), "h1").connect(address, "h2").await.unwrap();
    let (_outbox, mut inbox) = channel::open::<String, String>(near);
    assert_eq!(inbox.receive().await.unwrap_err().to_string(), "the connection was cut");
}

#[tokio::test]
async fn an_idle_connection_stays_and_a_closed_one_ends() {
    let pki = authority(&["h1", "h2"]);
    let (listener, address) = listen().await;
    let server = endpoint(pki.path(), "h2");
    let accepted = tokio::spawn(async move { server.accept(listener.accept().await.unwrap().0).await });
    let near = endpoint(pki.path(), "h1").connect(address, "h2").await.unwrap();
    let (outbox, inbox) = channel::open::<String, String>(near);
    let (_, mut far) = channel::open::<String, String>(accepted.await.unwrap().unwrap().0);
    tokio::time::sleep(channel::SILENCE + channel::KEEPALIVE).await;
    outbox.send(&"still here".into()).unwrap();
    assert_eq!(far.receive().await.unwrap().as_deref(), Some("still here"));
    drop((outbox, inbox));
    assert!(!matches!(far.receive().await, Ok(Some(_))));
}
