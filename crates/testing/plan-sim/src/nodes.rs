//! The nodes: they answer directives after a while, and know the memory of their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;
use moves::protocol::{Directive, Report, Suspension, ToCoordinator, ToNode};
use moves::{HostName, MoveId};

use crate::cluster::{Cluster, HOST, index};

/// The time of a check or another short operation.
const SHORT: Duration = Duration::from_millis(100);

/// Bytes a second of a move.
const RATE: u64 = 1 << 30;

/// A node's report at its time.
pub struct Answer {
    /// When.
    pub at: Duration,
    /// Its host.
    pub from: HostName,
    /// The report.
    pub message: ToCoordinator,
}

/// All nodes.
pub struct Nodes {
    memory: Vec<u64>,
    /// Instances on each host: running, stopped or expected. All need their memory.
    on: BTreeMap<HostName, BTreeSet<Vid>>,
    /// Directives that were carried out, since each may come again.
    done: BTreeSet<(MoveId, HostName, u8)>,
    /// The hosts of each move: source and destination.
    hosts: BTreeMap<MoveId, (HostName, HostName)>,
}

impl Nodes {
    pub fn new(cluster: &Cluster) -> Self {
        let mut on: BTreeMap<HostName, BTreeSet<Vid>> =
            cluster.hosts.iter().map(|host| (host.clone(), BTreeSet::new())).collect();
        for (number, instance) in cluster.instances.iter().enumerate() {
            on.entry(instance.host.clone()).or_default().insert(crate::cluster::vid(number));
        }
        let memory = cluster.needs.iter().map(|need| need.memory).collect();
        Self { memory, on, done: BTreeSet::new(), hosts: BTreeMap::new() }
    }

    /// The instances that need memory on `host`.
    pub fn on(&self, host: &HostName) -> &BTreeSet<Vid> {
        &self.on[host]
    }

    /// The bytes of memory that instances need on `host`.
    pub fn used(&self, host: &HostName) -> u64 {
        self.on[host].iter().map(|vid| self.memory[index(*vid)]).sum()
    }

    /// A message for the node of `host`. Returns its reports.
    pub fn receive(&mut self, now: Duration, host: &HostName, message: ToNode) -> Vec<Answer> {
        let ToNode::Move { id, vid, directive } = message else { return Vec::new() };
        if !self.done.insert((id, host.clone(), kind(&directive))) {
            return Vec::new();
        }
        let answer = |after: Duration, from: &HostName, report| Answer {
            at: now + after,
            from: from.clone(),
            message: ToCoordinator::Move { id, vid, report },
        };
        let memory = self.memory[index(vid)];
        match directive {
            Directive::CheckSource { .. } => vec![answer(SHORT, host, Report::Checked { facts: Vec::new() })],
            Directive::Prepare { source, .. } => {
                if self.used(host) + memory > HOST.memory {
                    let reasons = vec![format!("{host} has not enough memory")];
                    return vec![answer(SHORT, host, Report::Refused { reasons })];
                }
                self.on.entry(host.clone()).or_default().insert(vid);
                self.hosts.extend(source.host().map(|source| (id, (source.clone(), host.clone()))));
                vec![answer(SHORT, host, Report::Prepared)]
            }
            Directive::Precopy { .. } => {
                let time = Duration::from_secs_f64(memory as f64 / RATE as f64);
                vec![answer(time, host, Report::Copied { bytes: memory })]
            }
            Directive::Suspend { .. } => {
                let Some((_, to)) = self.hosts.get(&id) else { return Vec::new() };
                let suspension = Suspension::default();
                vec![
                    answer(SHORT, host, Report::Suspended { suspension }),
                    answer(2 * SHORT, host, Report::Sent { bytes: 0 }),
                    answer(3 * SHORT, to, Report::Ready),
                ]
            }
            Directive::Resume => vec![answer(SHORT, host, Report::Running)],
            Directive::Destroy => {
                self.leave(id, host, vid);
                vec![answer(SHORT, host, Report::Destroyed)]
            }
            Directive::RollBack => {
                if self.hosts.get(&id).is_some_and(|(_, to)| to == host) {
                    self.leave(id, host, vid);
                }
                vec![answer(SHORT, host, Report::RolledBack)]
            }
            Directive::CheckDestination { .. } => Vec::new(),
        }
    }

    fn leave(&mut self, id: MoveId, host: &HostName, vid: Vid) {
        self.on.entry(host.clone()).or_default().remove(&vid);
        self.hosts.remove(&id);
    }

    /// A move is over everywhere.
    pub fn forget(&mut self, id: MoveId) {
        self.done.retain(|(of, ..)| *of != id);
        self.hosts.remove(&id);
    }
}

fn kind(directive: &Directive) -> u8 {
    match directive {
        Directive::CheckSource { .. } => 0,
        Directive::CheckDestination { .. } => 1,
        Directive::Prepare { .. } => 2,
        Directive::Precopy { .. } => 3,
        Directive::Suspend { .. } => 4,
        Directive::Resume => 5,
        Directive::Destroy => 6,
        Directive::RollBack => 7,
    }
}
