//! What the coordinator knows: its state machine of moves, and the loads.

use std::collections::BTreeMap;
use std::time::Duration;

use controller::Usage;
use fabric::Vid;
use moves::HostName;
use moves::coordinator::{Config, Coordinator, Input};
use moves::journal::{Snapshot, Stage};
use planner::{Amounts, Host, Instance, Loads, Need, Talk, View};

use crate::cluster::{self, Cluster, HOST, vid};

/// The weight of the present use in the mean use of processors, in percent: a mean over some 5 minutes.
const PRESENT: u64 = 10;

/// What the coordinator knows.
pub struct State {
    pub cluster: Cluster,
    pub machine: Coordinator,
    /// Hosts that ask to be emptied, with the time since which they are empty.
    pub asking: BTreeMap<HostName, Option<Duration>>,
    /// Mean use of processors.
    cpu: Vec<u64>,
}

impl State {
    /// The cluster at rest, with this use of processors.
    pub fn new(cluster: Cluster, cpu: impl FnOnce(&Cluster) -> Vec<u64>) -> Self {
        let instances = cluster.instances.iter().enumerate().map(|(index, it)| (vid(index), it.clone()));
        let snapshot = Snapshot { instances: instances.collect(), ..Snapshot::default() };
        // Only lost messages are repeated, and none is lost here.
        let patience = Duration::from_secs(3600);
        let config = Config { repeat: patience, transfer: patience, ..Config::default() };
        let (mut machine, _) = Coordinator::new(config, snapshot, Duration::ZERO);
        for host in &cluster.hosts {
            machine.handle(Input::LinkUp(host.clone()), Duration::ZERO);
        }
        Self { cpu: cpu(&cluster), machine, asking: BTreeMap::new(), cluster }
    }

    /// Takes the present use of processors.
    pub fn use_processors(&mut self, used: &[u64]) {
        for (mean, used) in self.cpu.iter_mut().zip(used) {
            *mean = (*mean * (100 - PRESENT) + used * PRESENT) / 100;
        }
    }

    /// Whether no instance is on `host`.
    pub fn is_empty(&self, host: &HostName) -> bool {
        !self.machine.snapshot().instances.values().any(|at| at.host == *host)
    }

    /// The planner's view, as the coordinator makes it from the same state.
    pub fn view(&self) -> View<'_> {
        let snapshot = self.machine.snapshot();
        let may_return = snapshot.moves.values().filter(|of| of.stage == Stage::Began);
        let moving: BTreeMap<Vid, &HostName> =
            may_return.filter_map(|of| Some((of.vid, of.destination.host()?))).collect();
        let instances = snapshot.instances.iter().map(|(vid, at)| {
            let moves_to = moving.get(vid).copied();
            (*vid, Instance { name: &at.name, host: &at.host, moves_to, placement: &at.placement })
        });
        let host = |host: &HostName| {
            let is_drained = self.asking.contains_key(host);
            (
                host.clone(),
                Host {
                    is_up: true,
                    runs_instances: true,
                    is_drained,
                    is_on_overlay: true,
                    capacity: Some(HOST),
                },
            )
        };
        let hosts = self.cluster.hosts.iter().map(host).collect();
        View { hosts, instances: instances.collect(), planned: BTreeMap::new() }
    }

    /// What hosts have and instances need, with this traffic.
    pub fn loads(&self, talks: &[Talk]) -> Loads {
        let need = |(index, need): (usize, &cluster::Need)| {
            let amounts = Amounts { cpu: self.cpu[index], memory: need.memory };
            (vid(index), Need { amounts, copied: need.memory, pinned: None })
        };
        Loads {
            rooms: self.cluster.hosts.iter().map(|host| (host.clone(), HOST)).collect(),
            needs: self.cluster.needs.iter().enumerate().map(need).collect(),
            talks: talks.to_vec(),
        }
    }

    /// What is used on each host, at this use of processors.
    pub fn usage(&self, used: &[u64]) -> BTreeMap<HostName, Usage> {
        let mut busy = BTreeMap::<&HostName, u64>::new();
        for (index, used) in used.iter().enumerate() {
            *busy.entry(&self.machine.snapshot().instances[&vid(index)].host).or_default() += used;
        }
        let usage = |host: &HostName| {
            let busy = busy.get(host).copied().unwrap_or(0).min(HOST.cpu);
            (host.clone(), Usage { busy: busy * 1000 / HOST.cpu, ..Usage::default() })
        };
        self.cluster.hosts.iter().map(usage).collect()
    }
}
