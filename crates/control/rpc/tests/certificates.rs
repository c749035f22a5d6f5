//! Rejected certificates and their error messages.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, Issuer, KeyPair};
use rpc::pki::{self, Identity};
use rpc::{COORDINATOR, Endpoint, channel};
use tokio::net::TcpListener;

const DAY: u64 = 24 * 60 * 60;

/// Long enough to load it and to connect, on a machine that is busy.
const SOON: u64 = 5;

fn authority(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    pki::create_authority(directory.path()).unwrap();
    for name in names {
        pki::issue(directory.path(), name).unwrap();
    }
    directory
}

fn clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Issues `file` a certificate for `name` which is valid between two times of the clock.
fn issue_for(directory: &Path, file: &str, name: &str, from: u64, until: u64) {
    let at = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let authority = KeyPair::from_pem(&fs::read_to_string(directory.join("authority.key")).unwrap()).unwrap();
    let certificate = fs::read_to_string(directory.join("authority.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&certificate, authority).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (parameters.not_before, parameters.not_after) = (at(from), at(until));
    let own = parameters.signed_by(&key, &issuer).unwrap();
    fs::write(directory.join(format!("{file}.pem")), own.pem()).unwrap();
    fs::write(directory.join(format!("{file}.key")), key.serialize_pem()).unwrap();
}

fn endpoint(directory: &Path, name: &str) -> Endpoint {
    Endpoint::new(Identity::load(directory, name).unwrap()).unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// What `server` says of `client`, and what `client` says, who asks for `name`.
async fn both(server: &Endpoint, client: &Endpoint, name: &str) -> (Option<String>, Option<String>) {
    let (listener, address) = listen().await;
    let accepting = async {
        let accepted = server.accept(listener.accept().await.unwrap().0).await;
        let refused = accepted.as_ref().err().map(ToString::to_string);
        (refused, accepted)
    };
    let connecting = async {
        let stream = match client.connect(address, name).await {
            Ok(stream) => stream,
            Err(error) => return Some(error.to_string()),
        };
        let (_outbox, mut inbox) = channel::open::<String, String>(stream);
        tokio::time::timeout(Duration::from_secs(1), inbox.receive())
            .await
            .ok()?
            .err()
            .map(|error| error.to_string())
    };
    let ((refused, _stream), said) = tokio::join!(accepting, connecting);
    (refused, said)
}

fn assert_says(said: Option<String>, words: &[&str]) {
    let said = said.expect("it is refused");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn explains_faults_of_the_own_certificate() {
    let pki = authority(&["h1", "h2"]);
    let now = clock();
    let load = |file: &str| Identity::load(pki.path(), file).err().map(|error| error.to_string());
    issue_for(pki.path(), "expired", "expired", now - 2 * DAY, now - DAY);
    assert_says(load("expired"), &["expired.pem", "it expired on 20", "clock says 20", "issue a new one"]);
    issue_for(pki.path(), "early", "early", now + DAY, now + 2 * DAY);
    assert_says(load("early"), &["early.pem", "it is valid from 20", "clock says 20", "correct the clock"]);
    issue_for(pki.path(), "h3", "h1", now - DAY, now + DAY);
    assert_says(load("h3"), &["h3.pem", "it is for another name"]);
    let other = authority(&["h1"]);
    fs::copy(other.path().join("h1.pem"), pki.path().join("h1.pem")).unwrap();
    assert_says(load("h1"), &["h1.pem", "not issued by the authority", "authority.pem"]);
    assert_eq!(load("h2"), None);
}

#[tokio::test]
async fn both_ends_report_different_authorities() {
    let (one, other) = (authority(&["h1"]), authority(&["h1", "h2"]));
    let (server, client) = (endpoint(other.path(), "h2"), endpoint(one.path(), "h1"));
    let (refused, said) = both(&server, &client, "h2").await;
    assert_says(said, &["is rejected", "not issued by the authority"]);
    assert_says(refused, &["rejects this host's certificate", "it has another authority"]);
}

#[tokio::test]
async fn both_ends_explain_a_reused_address() {
    let pki = authority(&["h1", "h2"]);
    let (server, client) = (endpoint(pki.path(), "h2"), endpoint(pki.path(), "h1"));
    let (refused, said) = both(&server, &client, "gone").await;
    assert_says(said, &["of 127.0.0.1:", "is not that of `gone`", "`transhume host remove gone`"]);
    assert_says(refused, &["expects another host at this address", "`transhume host remove NAME`", "pki`"]);
    let (_, said) = both(&server, &client, COORDINATOR).await;
    assert_says(said, &["of 127.0.0.1:", "is not the coordinator's"]);
}

#[tokio::test]
async fn expired_certificates_keep_connections_but_allow_no_new_ones() {
    let pki = authority(&["h1"]);
    let end = clock() + SOON;
    issue_for(pki.path(), "h2", "h2", 0, end);
    let (lasting, expiring) = (endpoint(pki.path(), "h1"), endpoint(pki.path(), "h2"));
    let (listener, address) = listen().await;
    let (server, accepted) =
        (lasting.clone(), tokio::spawn(async move { listener.accept().await.unwrap().0 }));
    let accepting = tokio::spawn(async move { server.accept(accepted.await.unwrap()).await.unwrap().0 });
    let (near, mut answers) = channel::open::<String, String>(expiring.connect(address, "h1").await.unwrap());
    let (outbox, mut far) = channel::open::<String, String>(accepting.await.unwrap());
    while clock() <= end + 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (from, to) in [(&near, &mut far), (&outbox, &mut answers)] {
        from.send(&"still here".into()).unwrap();
        assert_eq!(to.receive().await.unwrap().as_deref(), Some("still here"));
    }
    let (refused, said) = both(&lasting, &expiring, "h1").await;
    assert_says(refused, &["is rejected", "it expired on 20"]);
    assert_says(said, &["rejects this host's certificate", "expired"]);
    let (refused, said) = both(&expiring, &lasting, "h2").await;
    assert_says(said, &["is rejected", "it expired on 20"]);
    assert_says(refused, &["rejects this host's certificate", "expired"]);
}
