//! Anti-affinity: instances that are kept apart by a label never share a host, not even during a move.
//!
//! It is enough that one of the two requests it, in whatever order they start. A moving instance occupies both hosts until its move is
//! committed, because it may roll back. When several instances are placed together, each takes the emptiest host that remains
//! possible; the placement does not backtrack.

use std::collections::{BTreeMap, BTreeSet};

use api::Failure;
use fabric::Vid;
use moves::HostName;
use moves::journal::{Instance, Stage};
use moves::placement::Placement;

use crate::cluster::Inner;
use crate::failure;

/// The most labels of an instance.
const MAX_LABELS: usize = 16;

/// The longest key, and the longest value, in bytes.
const MAX_WORD: usize = 63;

/// Destinations of planned moves.
pub type Planned = BTreeMap<Vid, HostName>;

/// Validates the requested placement.
///
/// # Errors
/// If a label is invalid, there are too many, or anti-affinity names a label that the instance does not have.
pub fn wanted(
    labels: BTreeMap<String, String>,
    anti_affinity: BTreeSet<String>,
) -> Result<Placement, Failure> {
    if labels.len() > MAX_LABELS {
        return Err(failure::too_many_labels(labels.len(), MAX_LABELS));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let is_word = |text: &str| (1..=MAX_WORD).contains(&text.len()) && text.bytes().all(allowed);
    if let Some((key, value)) = labels.iter().find(|(key, value)| !(is_word(key) && is_word(value))) {
        return Err(failure::no_label(key, value, MAX_WORD));
    }
    match anti_affinity.iter().find(|key| !labels.contains_key(*key)) {
        Some(key) => Err(failure::apart_without_label(key)),
        None => Ok(Placement { labels, anti_affinity, ..Placement::default() }),
    }
}

/// Checks whether an instance with this `placement` (`vid`, if it exists already) may be on `host` after the `planned` moves.
///
/// # Errors
/// If anti-affinity with an instance that is there, or may be there soon, forbids it.
pub fn check(
    inner: &Inner,
    vid: Option<Vid>,
    placement: &Placement,
    host: &HostName,
    planned: &Planned,
) -> Result<(), Failure> {
    let others = inner.machine.image().instances.iter().filter(|(other, _)| Some(**other) != vid);
    let there = others.filter(|(other, instance)| may_be_on(inner, **other, instance, host, planned));
    check_beside(placement, there.map(|(_, instance)| instance), host)
}

/// Checks whether an instance with this `placement` may share `host` with the `others`.
///
/// # Errors
/// If anti-affinity forbids it.
pub fn check_beside<'a>(
    placement: &Placement,
    others: impl IntoIterator<Item = &'a Instance>,
    host: &HostName,
) -> Result<(), Failure> {
    let mut others = others.into_iter();
    let in_the_way = others
        .find_map(|other| Some(failure::kept_apart(&other.name, placement.apart(&other.placement)?, host)));
    in_the_way.map_or(Ok(()), Err)
}

/// Like [`check`], for an instance that is to move to `host`.
///
/// # Errors
/// If anti-affinity with an instance that is there, or may be there soon, forbids it.
pub fn check_move(inner: &Inner, vid: Vid, host: &HostName, planned: &Planned) -> Result<(), Failure> {
    let instance = inner.machine.image().instances.get(&vid);
    instance.map_or(Ok(()), |instance| check(inner, Some(vid), &instance.placement, host, planned))
}

/// Whether an instance is on `host`, moves there, or returns there if its move rolls back.
fn may_be_on(inner: &Inner, vid: Vid, instance: &Instance, host: &HostName, planned: &Planned) -> bool {
    if let Some(to) = planned.get(&vid) {
        return to == host;
    }
    let mut moves = inner.machine.image().moves.values();
    instance.host == *host
        || moves.any(|of| of.vid == vid && of.destination.is(host) && of.stage == Stage::Began && !of.dry_run)
}

#[cfg(test)]
mod tests {
    use fabric::{Epoch, FabricId};
    use moves::coordinator::{Input, MoveRequest};

    use super::*;
    use crate::cluster::Cluster;
    use crate::moving;

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn what_is_no_label_is_refused() {
        let refused = |of: &[(&str, &str)], apart: &[&str]| {
            let apart = apart.iter().map(|key| (*key).into()).collect();
            wanted(labels(of), apart).err().map(|failure| failure.message)
        };
        assert_eq!(refused(&[("app.org/role", "db-1")], &["app.org/role"]), None);
        let long = "x".repeat(MAX_WORD + 1);
        for (key, value) in [("", "a"), ("a", ""), ("a", "b c"), (&long, "a"), ("a", &long), ("ä", "a")] {
            assert!(
                refused(&[(key, value)], &[]).is_some_and(|why| why.contains("is not a valid label")),
                "{key}"
            );
        }
        assert!(refused(&[("a", "b")], &["c"]).is_some_and(|why| why.contains("`c`")));
        let keys: Vec<_> = (0..=MAX_LABELS).map(|number| format!("k{number}")).collect();
        let many: Vec<_> = keys.iter().map(|key| (key.as_str(), "v")).collect();
        assert!(refused(&many, &[]).is_some_and(|why| why.contains("17 labels")));
    }

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    /// Adds an instance on h1 with anti-affinity to instances like itself.
    fn enter(cluster: &Cluster, lid: u16) -> Vid {
        let vid = Vid::new(lid).unwrap();
        let placement = wanted(labels(&[("app", "db")]), ["app".into()].into()).unwrap();
        let (name, fabric, epoch) = (format!("i{lid}"), FabricId(1), Epoch(0));
        let instance =
            Instance { name, fabric, group: None, placement, host: host("h1"), epoch, spec: Vec::new() };
        let mut inner = cluster.lock();
        let outputs = inner.machine.add_instance(vid, instance).unwrap();
        cluster.perform(&mut inner, outputs);
        vid
    }

    #[tokio::test]
    async fn who_moves_has_both_places_and_who_is_planned_to_move_only_that_one() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::open(&directory.path().join("store")).unwrap();
        ["h1", "h2"].into_iter().for_each(|name| cluster.input(Input::LinkUp(host(name))));
        let (moving, other) = (enter(&cluster, 1), enter(&cluster, 2));
        let refused = |planned: &Planned| {
            ["h1", "h2", "h3"].map(|to| check_move(&cluster.lock(), other, &host(to), planned).is_err())
        };
        let nothing = Planned::new();
        assert_eq!(refused(&nothing), [true, false, false]);
        assert_eq!(refused(&[(moving, host("h3"))].into()), [false, false, true]);
        let wish = MoveRequest { vid: moving, destination: host("h2"), dry_run: true, post_copy: false };
        let begin = |wish| {
            let mut inner = cluster.lock();
            let (id, outputs) = inner.machine.begin(wish, cluster.now()).unwrap();
            cluster.perform(&mut inner, outputs);
            id
        };
        let dry_run = begin(wish.clone());
        assert_eq!(refused(&nothing), [true, false, false], "a dry run takes no place");
        assert!(moving::cancel_for(&cluster, &mut cluster.lock(), dry_run, String::new()).is_ok());
        begin(MoveRequest { dry_run: false, ..wish });
        assert_eq!(refused(&nothing), [true, true, false]);
    }
}
