//! The fabrics' directories: nodes query them for the processes of their instances.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fabric::directory::{Answer, Directory, Due, Member, Request};
use fabric::{InstanceId, ProcessId, Vid};
use moves::HostName;
use moves::journal::Record;
use rpc::wire::FromCoordinator;

use crate::core::{Base, Cluster, Feature, Recorded, State};

/// Time after the start of a coordinator in which inherited instances may not have published their entries again. Until it has elapsed,
/// a missing entry is not reported as missing.
const HEARING: Duration = Duration::from_secs(5);

/// The directories of all fabrics.
pub struct Directories {
    directory: Directory,
    /// Instances existed when the coordinator started. Their processes publish their directory entries again.
    has_inherited: bool,
}

impl Feature for Directories {
    fn recorded(&mut self, recorded: &Recorded<'_>, base: &Base) {
        if let (Record::InstanceEnded { vid, .. }, Some(instance)) =
            (recorded.record, &recorded.removed.instance)
        {
            let due = self.directory.end_instance(InstanceId { fabric: instance.fabric, vid: *vid });
            answer_all(base, due);
        }
    }
}

impl Directories {
    /// Empty directories. With `has_inherited`, instances exist already.
    pub fn new(has_inherited: bool) -> Self {
        Self { directory: Directory::default(), has_inherited }
    }
}

/// The id of an instance, if it is on the node's host: a node speaks for its own instances only.
fn instance_of(state: &State, from: &HostName, vid: Vid) -> Option<InstanceId> {
    let instance = state.snapshot().instances.get(&vid).filter(|instance| instance.host == *from)?;
    Some(InstanceId { fabric: instance.fabric, vid })
}

/// Records which processes an instance has.
pub fn processes(state: &mut State, from: &HostName, vid: Vid, indexes: BTreeSet<u8>) {
    let Some(instance) = instance_of(state, from, vid) else { return };
    let (directories, base) = state.get_with::<Directories>();
    let due = directories.directory.set_processes(instance, indexes);
    answer_all(base, due);
}

/// Answers a process's request, now or when the answer is available.
pub async fn ask(cluster: &Arc<Cluster>, from: &HostName, process: ProcessId, number: u64, request: Request) {
    let from = from.clone();
    let later = cluster.edit(move |state| try_to_answer(state, &from, process, number, request)).await;
    if let Some((asker, lookup)) = later {
        tokio::spawn(ask_later(cluster.clone(), asker, number, lookup));
    }
}

/// Returns the lookup that has to be tried again: it has found nothing, but inherited instances may still publish entries.
fn try_to_answer(
    state: &mut State,
    from: &HostName,
    process: ProcessId,
    number: u64,
    request: Request,
) -> Option<(Member, Request)> {
    let instance = instance_of(state, from, process.vid)?;
    let asker = Member { fabric: instance.fabric, process };
    if let Request::Watch { process: watched } = &request
        && !state.snapshot().instances.contains_key(&watched.vid)
    {
        answer(state, Due { asker, number, answer: Answer::Done });
        return None;
    }
    let lookup = matches!(request, Request::Look { .. }).then(|| request.clone());
    let (directories, base) = state.get_with::<Directories>();
    let found = directories.directory.ask(asker, number, request)?;
    let has_heard_all = !directories.has_inherited || base.now() >= HEARING;
    let lookup = lookup.filter(|_| found_nothing(&found) && !has_heard_all);
    if lookup.is_none() {
        answer(base, Due { asker, number, answer: found });
    }
    Some((asker, lookup?))
}

fn found_nothing(answer: &Answer) -> bool {
    matches!(answer, Answer::Found(entries) if entries.is_empty())
}

async fn ask_later(cluster: Arc<Cluster>, asker: Member, number: u64, request: Request) {
    /// How often a pending request is tried again.
    const LOOK: Duration = Duration::from_millis(50);
    loop {
        tokio::time::sleep(LOOK).await;
        let (heard_all, request) = (cluster.now() >= HEARING, request.clone());
        let is_over = cluster.edit(move |state| {
            let (directories, base) = state.get_with::<Directories>();
            let Some(found) = directories.directory.ask(asker, number, request) else { return true };
            let is_answer = heard_all || !found_nothing(&found);
            if is_answer {
                answer(base, Due { asker, number, answer: found });
            }
            is_answer
        });
        if is_over.await {
            return;
        }
    }
}

fn answer_all(base: &Base, due: Vec<Due>) {
    due.into_iter().for_each(|due| answer(base, due));
}

/// Sends an answer to the asker's current host. If the asker moves meanwhile, it asks again after its arrival.
fn answer(base: &Base, Due { asker, number, answer }: Due) {
    let process = asker.process;
    if let Some(instance) = base.snapshot().instances.get(&process.vid) {
        base.links().send(&instance.host, &FromCoordinator::Directory { process, number, answer });
    }
}
