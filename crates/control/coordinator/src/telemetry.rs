//! What hosts and instances have used lately, in memory only: an hour at one sample in 10 s.
//!
//! * `track`: the samples of one host or instance. `rdma`: RDMA traffic by pairs of instances. `top`: the present figures for users. `gauges`: the same for
//!   Prometheus.

mod gauges;
mod rdma;
mod top;
mod track;

use std::collections::BTreeMap;
use std::time::Instant;

use api::Occurrence;
use fabric::Vid;
use moves::HostName;
use moves::journal::Record;
use planner::Amounts;
use rpc::telemetry::{HostUse, InstanceUse, Sample};

use crate::core::{Base, Feature, Recorded};
pub use gauges::add as add_gauges;
pub use rdma::Rdma;
pub use top::show;
pub use track::{Point, Track};

/// The samples of all hosts and instances.
#[derive(Default)]
pub struct Telemetry {
    hosts: BTreeMap<HostName, Machine>,
    instances: BTreeMap<Vid, Track>,
    rdma: Rdma,
}

/// A host.
#[derive(Default)]
pub struct Machine {
    /// Its last sample.
    pub last: HostUse,
    /// Its samples.
    pub track: Track,
}

impl Machine {
    /// All that it has.
    pub fn capacity(&self) -> Amounts {
        Amounts { cpu: u64::from(self.last.processors) * 1000, memory: self.last.memory }
    }
}

impl Feature for Telemetry {
    fn recorded(&mut self, recorded: &Recorded<'_>, _: &Base) {
        if let Record::InstanceEnded { vid, .. } = recorded.record {
            self.instances.remove(vid);
            self.rdma.forget(*vid);
        }
    }

    fn disconnected(&mut self, host: &HostName) {
        self.hosts.remove(host);
    }
}

impl Telemetry {
    /// Adds a sample of `host` and of its instances. Others do not count: an instance may have moved meanwhile.
    pub fn add(&mut self, host: &HostName, sample: Sample, base: &Base) {
        let Sample { at_us, host: used, instances, rdma } = sample;
        self.rdma.add(host, &rdma, base, Instant::now());
        let machine = self.hosts.entry(host.clone()).or_default();
        let (cpu_us, memory, network) = (used.cpu_us, used.memory_used, used.network);
        machine.track.add(host, at_us, InstanceUse { cpu_us, memory, disk: None, network });
        if machine.last.leaving.is_none()
            && let Some(reason) = used.leaving.clone()
        {
            base.log().note(&Occurrence::HostLeaves { host: host.to_string(), reason });
        }
        machine.last = used;
        for (vid, used) in instances {
            if base.snapshot().instances.get(&vid).is_some_and(|instance| instance.host == *host) {
                self.instances.entry(vid).or_default().add(host, at_us, used);
            }
        }
    }

    /// The connected hosts that have been sampled.
    pub fn hosts(&self) -> &BTreeMap<HostName, Machine> {
        &self.hosts
    }

    /// The RDMA traffic between instances.
    pub fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// The samples of an instance, if there are any.
    pub fn instance(&self, vid: Vid) -> Option<&Track> {
        self.instances.get(&vid)
    }
}
