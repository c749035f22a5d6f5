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
use moves::journal::{Instance, MoveRecord, Record, Stage};
use moves::{HostName, MoveId, Side};
use rpc::wire::Question;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::client::{Client, User};
use crate::core::{Base, Cluster, Command, Feature, Owner, Recorded, State};
use crate::follow::Events;
use crate::follows::Follows;
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
#[derive(Default)]
pub struct Checkpoints(HashMap<MoveId, oneshot::Sender<Vec<Saved>>>);

/// A saved member.
pub struct Saved {
    vid: Vid,
    instance: Instance,
    images: String,
    facts: Vec<u8>,
}

impl Feature for Checkpoints {
    fn recorded(&mut self, recorded: &Recorded<'_>, base: &Base) {
        match recorded.record {
            Record::MovesSaved { ids } => self.are_saved(ids, recorded, base),
            // The checkpoint to which the move belongs, if any, has failed.
            Record::MoveRolledBack { id, .. } => drop(self.0.remove(id)),
            _ => {}
        }
    }
}

impl Checkpoints {
    /// Reports saved members with the facts that belong to their images.
    fn are_saved(&mut self, ids: &BTreeSet<MoveId>, recorded: &Recorded<'_>, base: &Base) {
        let Some(waiting) = ids.first().and_then(|first| self.0.remove(first)) else { return };
        // An incomplete group is no checkpoint.
        if let Some(saved) = ids.iter().map(|id| saved(*id, recorded, base)).collect() {
            // The receiver is a task of the coordinator and lives as long as the coordinator.
            let _ = waiting.send(saved);
        }
    }
}

fn saved(id: MoveId, recorded: &Recorded<'_>, base: &Base) -> Option<Saved> {
    let record = base.snapshot().moves.get(&id)?;
    let Side::Images(images) = &record.destination else { return None };
    Some(Saved {
        vid: record.vid,
        instance: base.snapshot().instances.get(&record.vid)?.clone(),
        images: images.clone(),
        facts: recorded.facts.get(&id)?.clone(),
    })
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
    let begun = cluster.run(BeginCheckpoint(request.clone())).await;
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

/// The checkpoint of a group.
struct BeginCheckpoint(CheckpointRequest);

impl Command for BeginCheckpoint {
    type Reply = Result<Begun, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self(request) = self;
        let members = validate(&owner.view(), &request)?;
        owner.ready().await?;
        // Unique names, so that the remains of a failed checkpoint do not collide with this one.
        let number = owner.machine().snapshot().last_move.0 + 1;
        let images: Vec<_> = members
            .iter()
            .map(|(vid, name, host)| (*vid, host.clone(), format!("{}/{name}.{number}", request.directory)))
            .collect();
        let sides: BTreeMap<_, _> =
            images.iter().map(|(vid, _, images)| (*vid, Side::Images(images.clone()))).collect();
        let begun = owner.decide(|machine, now| machine.begin_together(sides, now));
        let (ids, outputs) = begun.map_err(|(vid, refusal)| {
            let name = members.iter().find(|(member, ..)| *member == vid).map(|(_, name, _)| name.as_str());
            failure::of_refusal(&refusal, name.unwrap_or_default())
        })?;
        let (waiting, saved) = oneshot::channel();
        let first = ids.first().copied();
        owner.edit(|state| state.get_mut::<Checkpoints>().0.extend(first.zip(Some(waiting))));
        let moves = ids.into_iter().filter_map(|id| group::listen(owner, id)).collect();
        owner.perform(outputs).await;
        Ok(Begun { moves, images, saved })
    }
}

/// The members, which must be free.
fn validate(state: &State, request: &CheckpointRequest) -> Result<Vec<(Vid, String, HostName)>, Failure> {
    let members = group::members(state, &request.group);
    if members.is_empty() {
        return Err(failure::no_group(&request.group));
    }
    for (vid, name, host) in &members {
        moving::check_free(state, *vid, name, host)?;
    }
    Ok(members)
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

/// Lets a node delete the saved images of an instance.
async fn discard(cluster: &Cluster, (vid, host, images): (Vid, HostName, String)) {
    let question = Question::DiscardImages { vid, images };
    if cluster.ask(&host, question, DISCARD_LIMIT).await.is_err() {
        tracing::warn!("host {host} could not delete the unused images of instance {vid}");
    }
}

/// Cleans up checkpoints that a previous coordinator started but did not finish: when the host has finished saving
/// an instance, its images are deleted.
pub async fn clear_up(cluster: &Arc<Cluster>) {
    for (events, images) in cluster.edit(given_up).await {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let (nobody, _) = mpsc::unbounded_channel();
            moving::last_of(events, &nobody).await;
            discard(&cluster, images).await;
        });
    }
}

/// The moves that save an instance for no checkpoint, each with its images.
fn given_up(state: &mut State) -> Vec<(Events, (Vid, HostName, String))> {
    let moves = state.snapshot().moves.iter();
    let given_up: Vec<_> = moves
        .filter_map(|(id, MoveRecord { vid, source, destination, stage, .. })| {
            let (Side::Host(host), Side::Images(images)) = (source, destination) else { return None };
            let is_checkpoint = *stage == Stage::Saved && belongs_to_one(images);
            (!is_checkpoint).then(|| (*id, (*vid, host.clone(), images.clone())))
        })
        .collect();
    let listen = |(id, images)| Some((state.get_mut::<Follows>().listen(id)?, images));
    given_up.into_iter().filter_map(listen).collect()
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
    fn an_invalid_checkpoint_is_refused_with_the_reason() {
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
