//! Stored membership beyond certificates: the join tokens, and the revocation list of removed hosts.
//!
//! A removed host may know any token that was valid before its removal, so the removal revokes all tokens.

use std::collections::BTreeMap;
use std::time::SystemTime;

use api::Failure;
use moves::HostName;
use rpc::removed::{Gate, KeyId, Removed};
use rpc::token::Secret;
use rpc::wire::FromCoordinator;
use serde::{Deserialize, Serialize};
use store::{Change, Store, StoreError, Value};

use crate::core::{Feature, Owner, State};

use crate::tokens::{self, MAX_TOKENS, Objection, Token};

/// Capacity of the revocation list. Entries are never dropped, because certificates do not expire, and the list must fit into
/// one message.
pub const MOST_REMOVED: usize = 16_384;

/// Number of remembered keys per removed host; none of these keys is certified again.
const MOST_KEYS: usize = 8;

/// A removed host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Removal {
    /// The key of the current owner of the name.
    heir: Option<KeyId>,
    /// The revoked keys, the latest last.
    former: Vec<KeyId>,
}

/// The join tokens and the removed hosts.
#[derive(Debug)]
pub struct Members {
    tokens: BTreeMap<u64, Token>,
    removed: BTreeMap<String, Removal>,
    /// The gate that connections of nodes must pass: [`Members::list`].
    gate: Gate,
}

/// A change of members, to be made durable.
#[derive(Clone)]
pub struct Changed {
    /// Without a token the number is forgotten.
    tokens: Vec<(u64, Option<Token>)>,
    removal: Option<(HostName, Removal)>,
}

impl Changed {
    fn for_journal(&self) -> Change {
        let tokens = self.tokens.iter().map(|(number, token)| (*number, token.as_ref().map(Value::of)));
        let removed = self.removal.as_ref().map(|(host, removal)| (host.to_string(), Value::of(removal)));
        Change::Members { tokens: tokens.collect(), removed }
    }
}

/// Makes a change durable, and applies it.
///
/// # Errors
/// Errors of [`Owner::append`].
pub async fn note(owner: &Owner, changed: Changed) -> Result<(), Failure> {
    owner.append(changed.for_journal()).await?;
    owner.edit(|state| state.get_mut::<Members>().apply(changed));
    Ok(())
}

/// Sends the revocation list to all nodes, and closes connections with removed hosts.
pub fn tell(state: &State) {
    let members = state.get::<Members>();
    let removed = members.list();
    state.links().send_all(&FromCoordinator::Removed { number: None, removed: removed.clone() });
    members.gate.set(removed);
}

impl Feature for Members {}

/// The applicant's key is a revoked key of the host whose name it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerKey;

impl Members {
    /// Loads tokens and removed hosts from the store.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let store::Members { tokens, removed } = store.members()?;
        let members = Self { tokens, removed, gate: Gate::default() };
        members.gate.set(members.list());
        Ok(members)
    }

    /// The gate that connections of nodes must pass.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// All tokens as users see them.
    pub fn tokens(&self, now: SystemTime) -> Vec<api::Token> {
        self.tokens.iter().map(|(number, token)| token.describe(*number, now)).collect()
    }

    /// The number of the token that `text` names by its number or its secret.
    pub fn find(&self, text: &str) -> Option<u64> {
        let number = text.parse().ok().filter(|number| self.tokens.contains_key(number));
        number.or_else(|| {
            let token: rpc::token::JoinToken = text.parse().ok()?;
            tokens::find(&self.tokens, tokens::hash(&token.secret))
        })
    }

    /// The number of the valid token with this secret.
    pub fn check_secret(&self, secret: Secret, now: SystemTime) -> Result<u64, Objection> {
        tokens::check(&self.tokens, secret, now)
    }

    /// A new token, with its number. The oldest may be forgotten.
    pub fn added(&self, token: Token) -> (u64, Changed) {
        let number = self.tokens.last_key_value().map_or(1, |(last, _)| last + 1);
        let surplus = (self.tokens.len() + 1).saturating_sub(MAX_TOKENS);
        let gone = self.tokens.keys().take(surplus).map(|oldest| (*oldest, None));
        let tokens = gone.chain([(number, Some(token))]).collect();
        (number, Changed { tokens, removal: None })
    }

    /// The revocation of the token with this number.
    pub fn revoked(&self, number: u64) -> Changed {
        let revoked = self.tokens.get(&number).map(Token::revoked);
        let tokens = revoked.map(|token| (number, Some(token))).into_iter().collect();
        Changed { tokens, removal: None }
    }

    /// Whether `host` may get a certificate for `key` even if another key had one for this name.
    pub fn is_free(&self, host: &HostName, key: KeyId) -> Result<bool, FormerKey> {
        match self.removed.values().any(|removal| removal.former.contains(&key)) {
            true => Err(FormerKey),
            false => Ok(self.is_removed(host)),
        }
    }

    /// `host` joins with `key`, by the token with this number. Also returns whether [`Self::list`] changes.
    pub fn joined(&self, number: u64, host: &HostName, key: KeyId) -> (Changed, bool) {
        let used = self.tokens.get(&number).map(|token| (number, Some(token.used_by(host.as_str()))));
        let removal = self.removed.get(host.as_str()).filter(|removal| removal.heir.is_none());
        let removal = removal.map(|removal| (host.clone(), Removal { heir: Some(key), ..removal.clone() }));
        let changes = removal.is_some();
        (Changed { tokens: used.into_iter().collect(), removal }, changes)
    }

    /// Whether the revocation list has room for `host`.
    pub fn has_room(&self, host: &HostName) -> bool {
        self.removed.len() < MOST_REMOVED || self.removed.contains_key(host.as_str())
    }

    /// Whether `host` was removed and no other machine has taken its name.
    pub fn is_removed(&self, host: &HostName) -> bool {
        self.removed.get(host.as_str()).is_some_and(|removal| removal.heir.is_none())
    }

    /// The removal of `host` with its `keys`. Also returns the tokens that were valid until now.
    pub fn without(
        &self,
        host: &HostName,
        keys: impl IntoIterator<Item = KeyId>,
        now: SystemTime,
    ) -> (Vec<u64>, Changed) {
        let mut removal = self.removed.get(host.as_str()).cloned().unwrap_or_default();
        for key in removal.heir.take().into_iter().chain(keys) {
            removal.former.retain(|known| *known != key);
            removal.former.push(key);
        }
        removal.former.drain(..removal.former.len().saturating_sub(MOST_KEYS));
        let good: Vec<_> =
            tokens::good(&self.tokens, now).map(|(number, token)| (number, Some(token.revoked()))).collect();
        let numbers = good.iter().map(|(number, _)| *number).collect();
        (numbers, Changed { tokens: good, removal: Some((host.clone(), removal)) })
    }

    /// The revocation list for nodes.
    pub fn list(&self) -> Removed {
        let mut list = Removed::default();
        self.removed.iter().for_each(|(host, removal)| list.note(host, removal.heir));
        list
    }

    /// Takes a change that is durable.
    fn apply(&mut self, changed: Changed) {
        let Changed { tokens, removal } = changed;
        for (number, token) in tokens {
            match token {
                Some(token) => drop(self.tokens.insert(number, token)),
                None => drop(self.tokens.remove(&number)),
            }
        }
        self.removed.extend(removal.map(|(host, removal)| (host.to_string(), removal)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rpc::removed::Peer;

    use super::*;

    const LIFETIME_S: u64 = 100;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
    }

    fn key(number: u8) -> KeyId {
        KeyId::of(&[number])
    }

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    struct World {
        directory: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        /// The store and its contents, as a coordinator finds them at its start.
        fn open(&self) -> (Store, Members) {
            let store = Store::open(&self.directory.path().join("store")).unwrap();
            let members = Members::load(&store).unwrap();
            (store, members)
        }
    }

    /// Makes a change.
    fn noted(store: &Store, members: &mut Members, changed: Changed) {
        store.apply(&changed.for_journal()).unwrap();
        members.apply(changed);
    }

    fn joined(store: &Store, members: &mut Members, number: u64, host: &HostName, key: KeyId) -> bool {
        let (changed, changes) = members.joined(number, host, key);
        noted(store, members, changed);
        changes
    }

    fn remove(store: &Store, members: &mut Members, host: &HostName, keys: &[KeyId]) -> Vec<u64> {
        let (numbers, changed) = members.without(host, keys.iter().copied(), now());
        noted(store, members, changed);
        numbers
    }

    fn add(store: &Store, members: &mut Members, secret: u8) -> u64 {
        let hash = tokens::hash(&Secret([secret; 16]));
        let token = Token::new(hash, Some(now()), tokens::seconds(now()) + LIFETIME_S);
        let (number, changed) = members.added(token);
        noted(store, members, changed);
        number
    }

    fn check(members: &Members, secret: u8) -> Result<u64, Objection> {
        members.check_secret(Secret([secret; 16]), now())
    }

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked_also_after_a_restart() {
        let world = World::new();
        let (store, mut members) = world.open();
        assert_eq!((add(&store, &mut members, 7), add(&store, &mut members, 8)), (1, 2));
        assert_eq!((check(&members, 7), check(&members, 9)), (Ok(1), Err(Objection::Unknown)));
        let late = now() + Duration::from_secs(LIFETIME_S);
        assert_eq!(members.check_secret(Secret([7; 16]), late), Err(Objection::Expired));
        let revoked = members.revoked(1);
        noted(&store, &mut members, revoked);
        assert_eq!((check(&members, 7), check(&members, 8)), (Err(Objection::Revoked), Ok(2)));
        drop((store, members));
        let (_store, members) = world.open();
        assert_eq!((check(&members, 7), check(&members, 8)), (Err(Objection::Revoked), Ok(2)));
        assert_eq!(members.find("2"), Some(2));
        assert_eq!(members.find("3"), None);
    }

    #[test]
    fn a_token_lists_its_hosts_and_whether_more_can_join() {
        let world = World::new();
        let (store, mut members) = world.open();
        add(&store, &mut members, 7);
        for (name, number) in [("c", 2), ("b", 1), ("b", 1)] {
            assert!(!joined(&store, &mut members, 1, &host(name), key(number)), "no host was removed");
        }
        let tokens = members.tokens(now());
        let expected = api::Token {
            id: 1,
            made_ms: Some(1_000_000_000_000),
            expires_ms: 1_000_000_100_000,
            state: api::TokenState::Good,
            hosts: vec!["b".into(), "c".into()],
        };
        assert_eq!(tokens, [expected]);
    }

    #[test]
    fn a_name_that_was_removed_is_one_new_keys_by_a_token_that_was_made_later() {
        let world = World::new();
        let (store, mut members) = world.open();
        let b = host("b");
        assert_eq!(members.is_free(&b, key(1)), Ok(false), "the owner of the name keeps it");
        add(&store, &mut members, 7);
        joined(&store, &mut members, 1, &b, key(1));
        assert_eq!(remove(&store, &mut members, &b, &[key(1)]), [1]);
        assert_eq!(check(&members, 7), Err(Objection::Revoked));
        drop((store, members));

        let (store, mut members) = world.open();
        let peer = |number| Peer { name: "b".into(), key: key(number) };
        assert!(members.is_removed(&b) && members.list().bars(&peer(1)) && members.list().bars(&peer(2)));
        for name in ["b", "c"] {
            assert_eq!(members.is_free(&host(name), key(1)), Err(FormerKey), "{name}");
        }
        assert_eq!(members.is_free(&b, key(2)), Ok(true));
        let number = add(&store, &mut members, 8);
        assert!(joined(&store, &mut members, number, &b, key(2)));
        assert!(!joined(&store, &mut members, number, &b, key(2)), "a repeated request changes nothing");
        let list = members.list();
        assert!(list.bars(&peer(1)) && !list.bars(&peer(2)));
        assert_eq!(members.is_free(&b, key(3)), Ok(false), "the name has a new owner");
        remove(&store, &mut members, &b, &[]);
        assert!(members.is_free(&b, key(2)).is_err() && members.is_free(&b, key(1)).is_err());
    }

    #[test]
    fn tokens_and_keys_are_remembered_with_a_limit_and_hosts_without_forgetting_any() {
        let world = World::new();
        let (store, mut members) = world.open();
        for number in 0..=MAX_TOKENS as u64 {
            assert_eq!(add(&store, &mut members, number as u8), number + 1);
        }
        assert_eq!(check(&members, 0), Err(Objection::Unknown));
        assert_eq!(check(&members, 1), Ok(2));
        assert_eq!(members.tokens(now()).len(), MAX_TOKENS);
        for number in 0..=MOST_KEYS as u8 {
            remove(&store, &mut members, &host("b"), &[key(number)]);
        }
        assert!(members.is_free(&host("b"), key(0)).is_ok() && members.is_free(&host("b"), key(1)).is_err());
        for number in 1..MOST_REMOVED {
            members.removed.insert(format!("n{number}"), Removal::default());
        }
        assert!(members.has_room(&host("b")) && !members.has_room(&host("c")));
    }

    #[test]
    fn the_longest_list_fits_into_a_message() {
        let longest = |number: usize| format!("{number:0>63}");
        let removal = Removal { heir: Some(key(1)), former: Vec::new() };
        let removed = (0..MOST_REMOVED).map(|number| (longest(number), removal.clone())).collect();
        let members = Members { tokens: BTreeMap::new(), removed, gate: Gate::default() };
        let message = rpc::wire::FromCoordinator::Removed { number: Some(u64::MAX), removed: members.list() };
        rpc::Encoded::new(&message).unwrap();
    }
}
