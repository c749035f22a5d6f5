//! Checkpoints of groups: all members are saved at one consistent point, then continue to run.
//!
//! The node of each member writes its image files into a directory of its own below the checkpoint's directory. When all images are complete and
//! all members are still stopped, the coordinator records that and writes [`MANIFEST`] beside them. Directories that the manifest does not name are garbage.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{Bytes, CheckpointRequest, Event, Failure, GroupMove, Outcome};
use fabric::Vid;
use moves::coordinator::SavedInstance;
use moves::journal::{Instance, MoveRecord, Stage};
use moves::{HostName, MoveId, Side};
use rpc::wire::Question;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::cluster::{Cluster, Inner};
use crate::follow::{Events, Follow};
use crate::server::{Client, User};
use crate::{failure, group, moving};

/// The file that lists the members of a checkpoint.
const MANIFEST: &str = "checkpoint.json";

/// The largest [`MANIFEST`], in bytes.
const MAX_MANIFEST: u64 = 256 * 1024 * 1024;

/// Incremented when the layout of [`Manifest`], or of the facts in it, changes.
const VERSION: u16 = 3;

/// More moves than any instance makes. Larger epochs are refused.
const MAX_EPOCH: u64 = 1 << 48;

/// Time limit for a node to delete saved images.
const DISCARD_LIMIT: Duration = Duration::from_secs(30);

/// The contents of a checkpoint's manifest.
#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u16,
    group: String,
    /// In seconds since 1970.
    saved_at: u64,
    members: Vec<Member>,
}

/// An instance in a checkpoint.
#[derive(Serialize, Deserialize)]
struct Member {
    vid: Vid,
    instance: Instance,
    /// The member's image directory, relative to the checkpoint's directory.
    images: String,
    /// Result of the check on the source host.
    facts: Bytes,
}

/// Waiters for checkpoints, keyed by the first move of each.
pub type Checkpoints = HashMap<MoveId, oneshot::Sender<Vec<Saved>>>;

/// A saved member.
pub struct Saved {
    vid: Vid,
    instance: Instance,
    images: String,
    facts: Vec<u8>,
}

impl Inner {
    /// Reports saved members with the facts that belong to their images.
    pub fn are_saved(&mut self, ids: &BTreeSet<MoveId>) {
        let Some(waiting) = ids.first().and_then(|first| self.checkpoints.remove(first)) else { return };
        // An incomplete group is no checkpoint.
        if let Some(saved) = ids.iter().map(|id| self.saved(*id)).collect() {
            // The receiver is a task of the coordinator and lives as long as the coordinator.
            let _ = waiting.send(saved);
        }
    }

    fn saved(&self, id: MoveId) -> Option<Saved> {
        let image = self.machine.image();
        let record = image.moves.get(&id)?;
        let Side::Images(images) = &record.destination else { return None };
        Some(Saved {
            vid: record.vid,
            instance: image.instances.get(&record.vid)?.clone(),
            images: images.clone(),
            facts: self.machine.facts(id)?.to_vec(),
        })
    }

    /// Fails the checkpoint to which a rolled-back move belongs, if any.
    pub fn is_not_saved(&mut self, id: MoveId) {
        self.checkpoints.remove(&id);
    }
}

/// A checkpoint in progress.
struct Begun {
    moves: Vec<(GroupMove, Events)>,
    /// The image directory of each member.
    images: Vec<(Vid, HostName, String)>,
    saved: oneshot::Receiver<Vec<Saved>>,
}

/// Saves the members of a group and reports progress to the client. The checkpoint completes even if the client disconnects.
///
/// # Errors
/// If the client cannot be reached.
pub async fn make(
    cluster: &Arc<Cluster>,
    request: CheckpointRequest,
    user: User,
    client: &mut Client,
) -> io::Result<()> {
    let mut checked = check(&request, user);
    if checked.is_ok() {
        checked = check_free(&request.directory).await;
    }
    if let Err(failure) = checked {
        return client.say(&Event::Failed(failure)).await;
    }
    if !group::wait_for_starts(cluster, &request.group, client).await {
        return Ok(());
    }
    let begun = begin(&mut cluster.lock(), cluster, &request);
    let Begun { moves, images, saved } = match begun {
        Ok(begun) => begun,
        Err(failure) => return client.say(&Event::Failed(failure)).await,
    };
    let (moves, events): (Vec<_>, Vec<_>) = moves.into_iter().unzip();
    let (user, mut waiting) = mpsc::unbounded_channel();
    let ends = group::ends_of(events, &user);
    drop(user);
    let finishing = tokio::spawn(finish(cluster.clone(), request, images, saved, ends));
    client.say(&Event::GroupBegun { moves }).await?;
    while let Some(event) = waiting.recv().await {
        client.say(&event).await?;
    }
    let (reports, written) = finishing.await.map_err(io::Error::other)?;
    for report in reports {
        client.say(&report).await?;
    }
    client.say(&written.map_or_else(Event::Failed, |()| Event::Done)).await
}

fn check(request: &CheckpointRequest, user: User) -> Result<(), Failure> {
    if user.user != 0 {
        return Err(failure::only_root_checkpoints());
    }
    let directory = Path::new(&request.directory);
    if !directory.is_absolute() {
        return Err(Failure::new(
            format!("`{}` is not an absolute path", request.directory),
            "pass an absolute path",
        ));
    }
    Ok(())
}

/// Checks that `directory` does not contain a checkpoint.
async fn check_free(directory: &str) -> Result<(), Failure> {
    let manifest = Path::new(directory).join(MANIFEST);
    let looking = spawn_blocking(move || manifest.symlink_metadata());
    match looking.await.map_err(io::Error::other).flatten() {
        Ok(_) => Err(there_is_one(directory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::new(
            format!("cannot use {directory} for a checkpoint: {error}"),
            "choose another directory",
        )),
    }
}

fn there_is_one(directory: &str) -> Failure {
    Failure::new(
        format!("{directory} already contains a checkpoint"),
        "choose another directory, or delete the old checkpoint if it is not needed",
    )
}

fn begin(inner: &mut Inner, cluster: &Cluster, request: &CheckpointRequest) -> Result<Begun, Failure> {
    let members = group::members(inner, &request.group);
    if members.is_empty() {
        return Err(failure::no_group(&request.group));
    }
    for (vid, name, host) in &members {
        moving::check_free(inner, *vid, name, host)?;
    }
    inner.store.ready().map_err(|error| failure::of_store(&error))?;
    // Directory names are unique per attempt, so that remains of a failed checkpoint do not collide with them.
    let number = inner.machine.image().last_move.0 + 1;
    let images: Vec<_> = members
        .iter()
        .map(|(vid, name, host)| (*vid, host.clone(), format!("{}/{name}.{number}", request.directory)))
        .collect();
    let sides: BTreeMap<_, _> =
        images.iter().map(|(vid, _, images)| (*vid, Side::Images(images.clone()))).collect();
    let begun = inner.machine.begin_together(sides, cluster.now());
    let (ids, outputs) = begun.map_err(|(vid, refusal)| {
        let name = members.iter().find(|(member, ..)| *member == vid).map(|(_, name, _)| name.as_str());
        failure::of_refusal(&refusal, name.unwrap_or_default())
    })?;
    let (waiting, saved) = oneshot::channel();
    inner.checkpoints.extend(ids.first().copied().zip(Some(waiting)));
    let moves = ids.into_iter().filter_map(|id| group::listen(inner, id)).collect();
    cluster.perform(inner, outputs);
    Ok(Begun { moves, images, saved })
}

/// Writes the manifest, or has the images deleted if a member failed; returns the report of each member.
async fn finish(
    cluster: Arc<Cluster>,
    request: CheckpointRequest,
    images: Vec<(Vid, HostName, String)>,
    saved: oneshot::Receiver<Vec<Saved>>,
    ends: Vec<JoinHandle<Option<Event>>>,
) -> (Vec<Event>, Result<(), Failure>) {
    let written = match saved.await {
        Ok(saved) => Some(write(request, saved).await),
        Err(_rolled_back) => None,
    };
    let reports = group::reports(ends).await;
    if !matches!(written, Some(Ok(()))) {
        for images in images {
            discard(&cluster, images).await;
        }
    }
    let all_saved = reports
        .iter()
        .all(|report| matches!(report, Event::MoveOver(report) if report.outcome == Outcome::Saved));
    // Rolled-back members report the failure themselves.
    let unwritten = if all_saved { Err(failure::coordinator_ends()) } else { Ok(()) };
    (reports, written.unwrap_or(unwritten))
}

/// Has a node delete the saved images of an instance.
async fn discard(cluster: &Cluster, (vid, host, images): (Vid, HostName, String)) {
    let question = Question::DiscardImages { vid, images };
    if cluster.ask(&host, question, DISCARD_LIMIT).await.is_err() {
        tracing::warn!("host {host} could not delete the unused images of instance {vid}");
    }
}

/// Cleans up checkpoints that a previous coordinator started but did not finish: when the host has finished saving
/// an instance, its images are deleted.
pub fn clear_up(cluster: &Arc<Cluster>) {
    let mut inner = cluster.lock();
    let moves = inner.machine.image().moves.iter();
    let given_up: Vec<_> = moves
        .filter_map(|(id, MoveRecord { vid, source, destination, stage, .. })| {
            let (Side::Host(host), Side::Images(images)) = (source, destination) else { return None };
            let is_checkpoint = *stage == Stage::Saved && belongs_to_one(images);
            (!is_checkpoint).then(|| (*id, (*vid, host.clone(), images.clone())))
        })
        .collect();
    for (id, images) in given_up {
        let Some(events) = inner.follows.get_mut(&id).map(Follow::listen) else { continue };
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let (nobody, _) = mpsc::unbounded_channel();
            moving::last_of(events, &nobody).await;
            discard(&cluster, images).await;
        });
    }
}

/// Whether a manifest exists beside these images.
fn belongs_to_one(images: &str) -> bool {
    Path::new(images).with_file_name(MANIFEST).exists()
}

async fn write(request: CheckpointRequest, saved: Vec<Saved>) -> Result<(), Failure> {
    let CheckpointRequest { group, directory } = request;
    let place = directory.clone();
    let file = Path::new(&directory).join(MANIFEST);
    let writing = spawn_blocking(move || {
        let saved_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let members = saved.into_iter().map(member).collect();
        let manifest = Manifest { version: VERSION, group, saved_at, members };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
        private::trusted(Path::new(&directory))?;
        private::create_durably(&file, &text)
    });
    let written = writing.await.map_err(io::Error::other).flatten();
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            return there_is_one(&place);
        }
        let what = format!("the coordinator cannot write the checkpoint's manifest: {error}");
        Failure::new(what, "fix the cause, or choose another directory; the group continues to run")
    })
}

fn member(saved: Saved) -> Member {
    let images = saved.images.rsplit('/').next().unwrap_or_default().to_owned();
    Member { vid: saved.vid, instance: saved.instance, images, facts: Bytes(saved.facts) }
}

/// Reads the checkpoint in `directory`; returns its instances in the order of their names.
pub fn read(directory: &Path) -> Result<Vec<(Vid, SavedInstance)>, Failure> {
    let file = directory.join(MANIFEST);
    let manifest = read_manifest(&file).map_err(|error| {
        let what = format!("cannot read a checkpoint in {}: {error}", directory.display());
        Failure::new(what, "pass a directory on this host that `transhume checkpoint` wrote")
    })?;
    let images = |images: &str| directory.join(images).to_string_lossy().into_owned();
    let members = manifest.members.into_iter().map(|member| {
        let Member { vid, instance, images: name, facts } = member;
        (vid, SavedInstance { instance, images: images(&name), facts: facts.0 })
    });
    let mut members: Vec<_> = members.collect();
    members.sort_by(|(_, one), (_, other)| one.instance.name.cmp(&other.instance.name));
    Ok(members)
}

fn read_manifest(file: &Path) -> io::Result<Manifest> {
    let mut text = Vec::new();
    private::regular(file)?.take(MAX_MANIFEST).read_to_end(&mut text)?;
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{MANIFEST}: {error}")))?;
    let is_plain = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    let problem = match &manifest {
        Manifest { version, .. } if *version != VERSION => {
            format!(
                "it was written by another release (layout {version}; this release reads layout {VERSION})"
            )
        }
        Manifest { members, .. } if members.is_empty() => format!("{MANIFEST} names no instance"),
        Manifest { members, .. } if !members.iter().all(|member| is_plain(&member.images)) => {
            format!("{MANIFEST} names directories outside the checkpoint")
        }
        Manifest { members, .. } if !are_distinct(members) => {
            format!("{MANIFEST} names an instance twice")
        }
        Manifest { members, .. } if members.iter().any(|member| member.instance.epoch.0 > MAX_EPOCH) => {
            format!("{MANIFEST} names an impossible epoch")
        }
        _ => return Ok(manifest),
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, problem))
}

/// Whether each member has a unique name and a unique VID.
fn are_distinct(members: &[Member]) -> bool {
    let vids: HashSet<_> = members.iter().map(|member| member.vid).collect();
    let names: HashSet<_> = members.iter().map(|member| &member.instance.name).collect();
    vids.len() == members.len() && names.len() == members.len()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn manifest() -> Value {
        let placement = json!({ "labels": {}, "anti_affinity": [] });
        let instance = json!({ "name": "a", "fabric": 1, "group": "g", "placement": placement, "host": "h1", "epoch": 3, "spec": [] });
        let member = json!({ "vid": 7, "instance": instance, "images": "a.1", "facts": { "text": "" } });
        json!({ "version": VERSION, "group": "g", "saved_at": 0, "members": [member] })
    }

    fn read_as(manifest: &Value) -> Result<Vec<(Vid, SavedInstance)>, Failure> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(MANIFEST), manifest.to_string()).unwrap();
        read(directory.path())
    }

    #[test]
    fn what_no_checkpoint_says_is_refused_with_the_reason() {
        let read = read_as(&manifest()).unwrap();
        assert!(read[0].0 == Vid::new(7).unwrap() && read[0].1.images.ends_with("/a.1"), "{read:?}");
        for (what, wrong, said) in [
            ("/version", json!(VERSION + 1), "another release"),
            ("/members", json!([]), "names no instance"),
            ("/members/0/images", json!("../a.1"), "outside the checkpoint"),
            ("/members/0/images", json!("/etc"), "outside the checkpoint"),
            ("/members/0/images", json!(".."), "outside the checkpoint"),
            ("/members/0/vid", json!(0), MANIFEST),
            ("/members/0/images", json!("a/"), "outside the checkpoint"),
            ("/members/0/instance/epoch", json!(u64::MAX - 1), "impossible epoch"),
            ("/members", json!([manifest()["members"][0], manifest()["members"][0]]), "twice"),
            ("/members/0/facts", json!({ "base64": "%" }), MANIFEST),
        ] {
            let mut manifest = manifest();
            *manifest.pointer_mut(what).unwrap() = wrong;
            let failure = read_as(&manifest).unwrap_err();
            assert!(failure.message.contains(said), "{what}: {failure:?}");
        }
    }
}
