use std::path::Path;

use super::*;
use crate::{hosts, open};

const DAY: u64 = 24 * 60 * 60;

/// A coordinator that admits machines.
struct World {
    directory: tempfile::TempDir,
    cluster: Arc<Cluster>,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        pki::create_authority(&directory.path().join("pki")).unwrap();
        let cluster = open(directory.path()).await;
        Self { directory, cluster }
    }

    /// The same coordinator after a restart.
    async fn again(self) -> Self {
        let Self { directory, cluster } = self;
        drop(cluster);
        // The owner ends, and with it the journal.
        tokio::task::yield_now().await;
        let cluster = open(directory.path()).await;
        Self { directory, cluster }
    }

    fn admission(&self) -> Arc<Admission> {
        self.cluster.view().get::<Enrolled>().admission().unwrap().clone()
    }

    async fn new_token(&self) -> JoinToken {
        self.admission().new_token(&self.cluster, DAY, now()).await.unwrap().1
    }

    async fn admit_at(
        &self,
        request: &enrol::Request,
        now: SystemTime,
    ) -> Result<(HostName, Certificates), String> {
        self.admission().admit(&self.cluster, request, now).await
    }

    async fn admit(&self, request: &enrol::Request) -> Result<(HostName, Certificates), String> {
        self.admit_at(request, now()).await
    }
}

async fn open(directory: &Path) -> Arc<Cluster> {
    let listen = "192.0.2.1:7700".parse().unwrap();
    let center = HostName::new("a").unwrap();
    let cluster = open::open(&directory.join("store")).unwrap();
    let admission = Arc::new(Admission::open(listen, directory.join("pki"), center).unwrap());
    cluster.edit(|state| state.get_mut::<Enrolled>().admit_by(admission)).await;
    cluster
}

fn request(secret: [u8; 16], key: &str, name: &str) -> enrol::Request {
    let signing_request = pki::signing_request(key, name).unwrap();
    enrol::Request { version: VERSION, secret, signing_request }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

#[tokio::test]
async fn a_token_lets_in_until_it_expires_also_after_a_restart() {
    let world = World::new().await;
    let token = world.new_token().await;
    let key = pki::new_key().unwrap();
    let last = now() + Duration::from_secs(DAY - 1);
    let admit = async |world: &World, name: &str| {
        let (host, certificates) = world.admit_at(&request(token.secret.0, &key, name), last).await.unwrap();
        assert_eq!(host.as_str(), name);
        assert_eq!(pki::fingerprint(&certificates.authority).unwrap(), token.authority);
    };
    admit(&world, "b").await;
    let world = world.again().await;
    assert_eq!(hosts::list(&world.cluster.view()).len(), 1, "it need not have been connected");
    admit(&world, "c").await;
    let late = now() + Duration::from_secs(DAY);
    let refused = world.admit_at(&request(token.secret.0, &key, "d"), late).await.unwrap_err();
    assert!(refused.contains("expired") && refused.contains("`transhume net token` on 192.0.2.1"));
    assert!(!world.directory.path().join("pki/d.pem").exists());
}

#[tokio::test]
async fn a_revoked_token_admits_no_new_host() {
    let world = World::new().await;
    let (kept, token) = (world.new_token().await, world.new_token().await);
    let key = pki::new_key().unwrap();
    let granted = world.admit(&request(token.secret.0, &key, "b")).await.unwrap();
    for text in ["2", &token.to_string()] {
        let Event::TokenRevoked(revoked) = revoke(&world.cluster, text.to_string()).await.unwrap() else {
            panic!("{text}")
        };
        assert_eq!((revoked.id, revoked.state), (2, api::TokenState::Revoked));
        assert_eq!(revoked.hosts, ["b"]);
    }
    let refused = world.admit(&request(token.secret.0, &key, "c")).await.unwrap_err();
    assert!(refused.contains("was revoked") && refused.contains("`transhume net token` on 192.0.2.1"));
    assert!(!world.directory.path().join("pki/c.pem").exists());
    assert_eq!(
        world.admit(&request(kept.secret.0, &key, "b")).await.unwrap(),
        granted,
        "a host that has joined stays"
    );
    for unknown in ["3", "b", &JoinToken { secret: Secret([1; 16]), ..token }.to_string()] {
        assert!(
            revoke(&world.cluster, unknown.to_string()).await.unwrap_err().remedy.contains("token list"),
            "{unknown}"
        );
    }
}

#[tokio::test]
async fn a_wrong_secret_gets_nothing_whatever_else_is_sent() {
    let world = World::new().await;
    let mut secret = world.new_token().await.secret.0;
    secret[15] ^= 1;
    let refused = world.admit(&request(secret, &pki::new_key().unwrap(), "b")).await.unwrap_err();
    assert!(refused.contains("does not know this token"), "{refused}");
    let nonsense = enrol::Request { version: VERSION, secret, signing_request: vec![1, 2, 3] };
    assert_eq!(world.admit(&nonsense).await, Err(refused));
    assert!(!world.directory.path().join("pki/b.pem").exists());
}

#[tokio::test]
async fn a_name_belongs_to_its_first_host_which_may_ask_again() {
    let world = World::new().await;
    let secret = world.new_token().await.secret.0;
    let (first, second) = (pki::new_key().unwrap(), pki::new_key().unwrap());
    let granted = world.admit(&request(secret, &first, "b")).await.unwrap();
    assert_eq!(world.admit(&request(secret, &first, "b")).await, Ok(granted));
    let refused = world.admit(&request(secret, &second, "b")).await.unwrap_err();
    assert!(refused.contains("`b`") && refused.contains("--name"), "{refused}");
    for name in ["coordinator", "B"] {
        let refused = world.admit(&request(secret, &second, name)).await.unwrap_err();
        assert!(refused.contains("not for a host's certificate"), "{refused}");
    }
}

#[tokio::test]
async fn tokens_are_kept_as_hashes() {
    let world = World::new().await;
    let token = world.new_token().await;
    let noted = fs::read(world.directory.path().join("store")).unwrap();
    let is_noted = |bytes: &[u8]| noted.windows(bytes.len()).any(|window| window == bytes);
    assert!(is_noted(&tokens::hash(&token.secret)) && !is_noted(&token.secret.0));
    let too_long = MAX_LIFETIME.as_secs() + 1;
    assert!(world.admission().new_token(&world.cluster, too_long, now()).await.is_err());
}

#[tokio::test]
async fn tokens_that_a_release_before_has_made_are_good() {
    let world = World::new().await;
    let (secret, file) = ([7; 16], world.directory.path().join("tokens"));
    let before = vec![(tokens::hash(&Secret(secret)), tokens::seconds(now()) + DAY)];
    fs::write(&file, postcard::to_stdvec(&before).unwrap()).unwrap();
    take_over(&world.cluster, &file).await.unwrap();
    assert!(!file.exists());
    take_over(&world.cluster, &file).await.unwrap();
    let Event::Tokens(tokens) = tokens(&world.cluster).unwrap() else { panic!("it lists others") };
    assert_eq!(tokens.iter().map(|token| (token.id, token.made_ms)).collect::<Vec<_>>(), [(1, None)]);
    world.admit(&request(secret, &pki::new_key().unwrap(), "b")).await.unwrap();
    fs::write(&file, "nonsense").unwrap();
    take_over(&world.cluster, &file).await.unwrap();
}

#[tokio::test]
async fn a_node_of_another_release_is_refused_with_the_reason() {
    let world = World::new().await;
    let mut request = request([0; 16], &pki::new_key().unwrap(), "b");
    request.version += 1;
    assert!(world.admit(&request).await.unwrap_err().contains("another release"));
}
