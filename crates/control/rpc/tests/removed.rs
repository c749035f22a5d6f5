//! Hosts that were removed, and show the certificate that they have had.

mod parties;

use std::path::Path;

use parties::{authority, connection, endpoint, listen};
use rpc::pki::{self, Applicant};
use rpc::removed::{Gate, KeyId, Peer, Removed};
use rpc::{COORDINATOR, Endpoint, Stream, frame};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// The list after `name` was removed and, perhaps, given again.
fn without(name: &str, heir: Option<KeyId>) -> Removed {
    let mut removed = Removed::default();
    removed.note(name, heir);
    removed
}

/// A connection from `near` to `far`, as both ends have it.
async fn join(
    near: &Endpoint,
    far: &Endpoint,
    listener: &TcpListener,
) -> (std::io::Result<Stream>, std::io::Result<(Stream, String)>) {
    let address = listener.local_addr().unwrap();
    tokio::join!(near.connect(address, far.name()), async {
        far.accept(listener.accept().await.unwrap().0).await
    })
}

/// Whether nothing more comes over `stream`, nor can be said.
async fn has_ended(stream: &mut Stream) -> bool {
    let mut byte = [0];
    stream.read(&mut byte).await.is_err() && frame::send(stream, &1_u8).await.is_err()
}

/// Gives `name` to another key.
fn reissue(pki: &Path, name: &str) -> KeyId {
    let key = pki::new_key().unwrap();
    let applicant = Applicant::of(&pki::signing_request(&key, name).unwrap()).unwrap();
    let certificates = pki::certify(pki, &applicant, true).unwrap();
    pki::install(pki, name, &key, &certificates).unwrap();
    applicant.key()
}

#[tokio::test]
async fn each_end_may_take_part_as_long_as_nobody_was_removed() {
    let (near, far) = connection().await;
    for (stream, other) in [(near, "h2"), (far, "h1")] {
        assert_eq!(stream.peer().unwrap().name, other);
        stream.check_pass().unwrap();
    }
}

#[tokio::test]
async fn removed_hosts_are_refused_in_both_directions() {
    let pki = authority(&["h1", "h2"]);
    let (listener, _) = listen().await;
    let (before, other) = (endpoint(pki.path(), "h1"), endpoint(pki.path(), "h2"));
    other.gate().set(without("h1", None));
    let (_, refused) = join(&before, &other, &listener).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("host `h1` was removed"), "{refused}");
    assert!(join(&other, &before, &listener).await.0.unwrap_err().to_string().contains("was removed"));
    let heir = reissue(pki.path(), "h1");
    let after = endpoint(pki.path(), "h1");
    assert!(join(&after, &other, &listener).await.1.is_err(), "the list says that it is nobody's");
    other.gate().set(without("h1", Some(heir)));
    assert_eq!(join(&after, &other, &listener).await.1.unwrap().1, "h1");
    assert!(join(&other, &after, &listener).await.0.is_ok());
    assert!(join(&before, &other, &listener).await.1.is_err(), "not the one before");
}

#[tokio::test]
async fn revocation_closes_only_the_removed_hosts_connections() {
    let pki = authority(&["h1", "h2", "h3"]);
    let (listener, _) = listen().await;
    let (h1, h2, h3) = (endpoint(pki.path(), "h1"), endpoint(pki.path(), "h2"), endpoint(pki.path(), "h3"));
    let (to_h1, (from_h1, from_h3)) = (
        join(&h2, &h1, &listener).await.0.unwrap(),
        (join(&h1, &h2, &listener).await.1.unwrap().0, join(&h3, &h2, &listener).await),
    );
    h2.gate().set(without("h1", None));
    for mut stream in [to_h1, from_h1] {
        assert!(stream.check_pass().is_err() && has_ended(&mut stream).await);
    }
    let (mut near, (mut far, _)) = (from_h3.0.unwrap(), from_h3.1.unwrap());
    frame::send(&mut near, &7_u8).await.unwrap();
    assert_eq!(frame::receive::<u8>(&mut far).await.unwrap(), 7);
    // What is closed by itself is not known to the gate any more, and its descriptor may be another's.
    drop((near, far));
    h2.gate().set(without("h3", None));
}

#[tokio::test]
async fn coordinator_tells_removed_hosts_that_they_were_removed() {
    let pki = authority(&[COORDINATOR, "h1"]);
    let gate = Gate::default();
    let coordinator = endpoint(pki.path(), COORDINATOR).behind(gate.clone());
    gate.set(without("h1", None));
    let (listener, address) = listen().await;
    let host = endpoint(pki.path(), "h1");
    let accepted =
        tokio::spawn(
            async move { coordinator.accept_any(listener.accept().await.unwrap().0).await.unwrap() },
        );
    let mut told = host.connect(address, COORDINATOR).await.unwrap();
    let (mut stream, peer) = accepted.await.unwrap();
    let peer: Peer = peer.unwrap();
    assert!(!gate.admits(&peer) && peer.name == "h1" && stream.check_pass().is_err());
    frame::send(&mut stream, &"no".to_owned()).await.unwrap();
    assert_eq!(frame::receive::<String>(&mut told).await.unwrap(), "no");
}
