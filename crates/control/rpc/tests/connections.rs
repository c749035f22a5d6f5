//! Parties of a cluster that connect over the loopback device.

mod parties;

use std::path::Path;
use std::time::Duration;

use parties::{authority, connection, endpoint, listen};
use rpc::enrol::{self, Answer, Certificates, EnrolError};
use rpc::pki::{self, Identity};
use rpc::token::{Fingerprint, JoinToken, Secret};
use rpc::{COORDINATOR, CallError, Caller, Endpoint, call, channel, frame};
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(5);

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
async fn answers_match_questions_and_connection_loss_fails_waiters() {
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
async fn truncated_connection_has_a_clear_error() {
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
    let (near, far) = connection().await;
    let (outbox, inbox) = channel::open::<String, String>(near);
    let (_, mut far) = channel::open::<String, String>(far);
    tokio::time::sleep(channel::SILENCE + channel::KEEPALIVE).await;
    outbox.send(&"still here".into()).unwrap();
    assert_eq!(far.receive().await.unwrap().as_deref(), Some("still here"));
    drop((outbox, inbox));
    assert!(!matches!(far.receive().await, Ok(Some(_))));
}

#[tokio::test]
async fn many_messages_that_wait_for_their_turn_are_all_sent_and_leave_room() {
    const MANY: u32 = 5000;
    let (near, far) = connection().await;
    let (outbox, _inbox) = channel::open::<u32, u32>(near);
    let (_outbox, mut far) = channel::open::<u32, u32>(far);
    for number in 0..MANY {
        outbox.send_in_turn(&number).await.unwrap();
        if number % 100 == 0 {
            outbox.send(&MANY).unwrap();
        }
    }
    let mut next = 0;
    while next < MANY {
        match far.receive().await.unwrap().unwrap() {
            MANY => {}
            number => {
                assert_eq!(number, next);
                next += 1;
            }
        }
    }
}

/// A coordinator's endpoint that lets in who has no certificate, and a token for it.
async fn welcoming(pki: &Path) -> (Endpoint, TcpListener, JoinToken) {
    let (listener, coordinator) = listen().await;
    let endpoint = Endpoint::welcoming(Identity::read(pki, COORDINATOR).unwrap()).unwrap();
    let authority = pki::fingerprint(&pki::authority(pki).unwrap()).unwrap();
    (endpoint, listener, JoinToken { coordinator, authority, secret: Secret([7; 16]) })
}

#[tokio::test]
async fn machine_without_certificate_authenticates_the_coordinator() {
    let pki = authority(&[COORDINATOR]);
    let (server, listener, token) = welcoming(pki.path()).await;
    let certificates = Certificates { own: "own".into(), authority: pki::authority(pki.path()).unwrap() };
    let answers = [Answer::Granted(certificates.clone()), Answer::Refused { reason: "no".into() }];
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, peer) = server.accept_any(listener.accept().await.unwrap().0).await.unwrap();
            assert_eq!(peer, None);
            let request: enrol::Request =
                frame::receive_within(&mut stream, enrol::MAX_REQUEST).await.unwrap();
            assert_eq!((request.secret, &request.signing_request[..]), ([7; 16], &b"request"[..]));
            frame::send(&mut stream, &answer).await.unwrap();
        }
    });
    assert_eq!(enrol::enrol(&token, b"request".to_vec()).await.unwrap(), certificates);
    let refused = enrol::enrol(&token, b"request".to_vec()).await.unwrap_err();
    assert!(matches!(refused, EnrolError::Refused(reason) if reason == "no"));
}

#[tokio::test]
async fn secret_is_sent_only_to_the_tokens_coordinator() {
    let (pki, other) = (authority(&[COORDINATOR]), authority(&[COORDINATOR, "h1"]));
    // One with another authority, and one that shows the right authority's certificate with its own.
    let forged = authority(&[COORDINATOR]);
    std::fs::copy(pki.path().join("authority.pem"), forged.path().join("authority.pem")).unwrap();
    let right = pki::fingerprint(&pki::authority(pki.path()).unwrap()).unwrap();
    for stranger in [&other, &forged] {
        let (server, listener, token) = welcoming(stranger.path()).await;
        let accepting =
            tokio::spawn(async move { server.accept_any(listener.accept().await.unwrap().0).await });
        let token = JoinToken { authority: right, ..token };
        let refused = enrol::enrol(&token, Vec::new()).await.unwrap_err();
        assert!(matches!(refused, EnrolError::Stranger(..)), "{refused}");
        assert!(accepting.await.unwrap().is_err());
    }
    // A host of the cluster is not its coordinator.
    let server = Endpoint::welcoming(Identity::load(other.path(), "h1").unwrap()).unwrap();
    let (listener, coordinator) = listen().await;
    tokio::spawn(async move { server.accept_any(listener.accept().await.unwrap().0).await });
    let authority = pki::fingerprint(&pki::authority(other.path()).unwrap()).unwrap();
    let token = JoinToken { coordinator, authority, secret: Secret([7; 16]) };
    assert!(matches!(enrol::enrol(&token, Vec::new()).await, Err(EnrolError::Stranger(..))));
}

#[tokio::test]
async fn distinguishes_silent_from_foreign_servers() {
    let (listener, coordinator) = listen().await;
    let token = JoinToken { coordinator, authority: Fingerprint::of(b""), secret: Secret([7; 16]) };
    let greeting = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let mut tcp = listener.accept().await.unwrap().0;
        tcp.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        tcp
    });
    assert!(matches!(enrol::enrol(&token, Vec::new()).await, Err(EnrolError::Stranger(..))));
    drop(greeting.await);
    assert!(matches!(enrol::enrol(&token, Vec::new()).await, Err(EnrolError::Silent(..))));
}

#[tokio::test]
async fn only_welcoming_endpoints_accept_peers_without_certificate() {
    let pki = authority(&[COORDINATOR, "h1"]);
    let stranger = authority(&["h1"]);
    let (_, listener, token) = welcoming(pki.path()).await;
    let server = endpoint(pki.path(), COORDINATOR);
    let accepting = tokio::spawn(async move {
        let refused = server.accept_any(listener.accept().await.unwrap().0).await.map(drop);
        (server, listener, refused)
    });
    assert!(enrol::enrol(&token, Vec::new()).await.is_err());
    let (_, listener, refused) = accepting.await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    let server = Endpoint::welcoming(Identity::load(pki.path(), COORDINATOR).unwrap()).unwrap();
    let accepting = tokio::spawn(async move {
        let first = server.accept_any(listener.accept().await.unwrap().0).await.map(|(_, peer)| peer);
        let second = server.accept_any(listener.accept().await.unwrap().0).await.map(|(_, peer)| peer);
        (first, second)
    });
    let _host = endpoint(pki.path(), "h1").connect(token.coordinator, COORDINATOR).await.unwrap();
    assert!(endpoint(stranger.path(), "h1").connect(token.coordinator, COORDINATOR).await.is_err());
    let (host, other) = accepting.await.unwrap();
    assert_eq!(host.unwrap().unwrap().name, "h1");
    assert!(other.is_err(), "a certificate of another cluster is not none");
}
