//! The fabrics' directories: nodes query them for the processes of their instances.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fabric::directory::{Answer, Due, Member, Request};
use fabric::{InstanceId, ProcessId, Vid};
use moves::HostName;
use rpc::wire::FromCoordinator;

use crate::cluster::{Cluster, Inner};

/// Time after the start of a coordinator in which inherited instances may not have published their entries again. Until it has elapsed,
/// a missing entry is not reported as missing.
const HEARING: Duration = Duration::from_secs(5);

/// The id of an instance, if it is on the node's host: a node speaks for its own instances only.
fn instance_of(inner: &Inner, from: &HostName, vid: Vid) -> Option<InstanceId> {
    let instance = inner.machine.image().instances.get(&vid).filter(|instance| instance.host == *from)?;
    Some(InstanceId { fabric: instance.fabric, vid })
}

/// Records which processes an instance has.
pub fn processes(cluster: &Cluster, from: &HostName, vid: Vid, indexes: BTreeSet<u8>) {
    let mut inner = cluster.lock();
    let Some(instance) = instance_of(&inner, from, vid) else { return };
    let due = inner.directory.set_processes(instance, indexes);
    inner.answer_all(due);
}

/// Answers a process's request, now or when the answer is available.
pub fn ask(cluster: &Arc<Cluster>, from: &HostName, process: ProcessId, number: u64, request: Request) {
    let mut inner = cluster.lock();
    let Some(instance) = instance_of(&inner, from, process.vid) else { return };
    let asker = Member { fabric: instance.fabric, process };
    if let Request::Watch { process: watched } = &request
        && !inner.machine.image().instances.contains_key(&watched.vid)
    {
        return inner.answer(Due { asker, number, answer: Answer::Done });
    }
    let lookup = matches!(request, Request::Look { .. }).then(|| request.clone());
    let Some(answer) = inner.directory.ask(asker, number, request) else { return };
    let found_nothing = matches!(&answer, Answer::Found(entries) if entries.is_empty());
    let has_heard_all = !inner.has_inherited || cluster.now() >= HEARING;
    match lookup.filter(|_| found_nothing && !has_heard_all) {
        Some(lookup) => drop(tokio::spawn(ask_later(cluster.clone(), asker, number, lookup))),
        None => inner.answer(Due { asker, number, answer }),
    }
}

async fn ask_later(cluster: Arc<Cluster>, asker: Member, number: u64, request: Request) {
    /// How often a pending request is tried again.
    const LOOK: Duration = Duration::from_millis(50);
    loop {
        tokio::time::sleep(LOOK).await;
        let heard_all = cluster.now() >= HEARING;
        let mut inner = cluster.lock();
        let Some(answer) = inner.directory.ask(asker, number, request.clone()) else { return };
        if heard_all || !matches!(&answer, Answer::Found(entries) if entries.is_empty()) {
            return inner.answer(Due { asker, number, answer });
        }
    }
}

impl Inner {
    /// Removes the entries of an instance that has ended.
    pub fn end_in_directory(&mut self, instance: InstanceId) {
        let due = self.directory.end_instance(instance);
        self.answer_all(due);
    }

    fn answer_all(&self, due: Vec<Due>) {
        due.into_iter().for_each(|due| self.answer(due));
    }

    /// Sends an answer to the asker's current host. If the asker moves meanwhile, it asks again after its arrival.
    fn answer(&self, Due { asker, number, answer }: Due) {
        let process = asker.process;
        if let Some(instance) = self.machine.image().instances.get(&process.vid) {
            self.send(&instance.host, &FromCoordinator::Directory { process, number, answer });
        }
    }
}
