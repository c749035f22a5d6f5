//! Hosts and instances: applications whose instances talk to each other, started without regard to that.

use anyhow::{Context as _, Result};
use fabric::{Epoch, FabricId, Vid};
use fastrand::Rng;
use moves::HostName;
use moves::journal::Instance;
use moves::placement::Placement;
use planner::Amounts;

/// What each host has: 32 processors and 128 GiB.
pub const HOST: Amounts = Amounts { cpu: 32_000, memory: 128 << 30 };

/// The most and the least traffic of two instances, in bytes a second, as powers of two.
const TRAFFIC: (f64, f64) = (10.0, 27.0);

/// An instance's needs at their usual level.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Thousandths of a processor.
    pub cpu: u64,
    /// Bytes of memory.
    pub memory: u64,
}

/// Two instances that talk at a usual rate.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The index of one.
    pub one: usize,
    /// The index of the other.
    pub other: usize,
    /// Bytes a second.
    pub rate: u64,
}

/// A generated cluster.
pub struct Cluster {
    /// The hosts.
    pub hosts: Vec<HostName>,
    /// The instances where they start.
    pub instances: Vec<Instance>,
    /// Their needs, in the same order.
    pub needs: Vec<Need>,
    /// Who talks to whom.
    pub flows: Vec<Flow>,
}

/// The identity of an instance.
#[must_use]
pub fn vid(index: usize) -> Vid {
    u16::try_from(index + 1).ok().and_then(Vid::new).expect("there are fewer instances than identities")
}

/// The index of an instance.
#[must_use]
pub fn index(vid: Vid) -> usize {
    usize::from(vid.lid()) - 1
}

impl Cluster {
    /// So many instances on so many hosts.
    ///
    /// # Errors
    /// If the hosts are too few.
    pub fn generate(hosts: usize, instances: usize, seed: u64) -> Result<Self> {
        let mut rng = Rng::with_seed(seed);
        let hosts =
            (0..hosts).map(|number| HostName::new(&format!("h{number}"))).collect::<Result<_, _>>()?;
        let mut cluster = Self { hosts, instances: Vec::new(), needs: Vec::new(), flows: Vec::new() };
        let mut free = vec![HOST.memory; cluster.hosts.len()];
        while cluster.instances.len() < instances {
            let size = rng.usize(2..=16).min(instances - cluster.instances.len());
            cluster.add_application(size, &mut free, &mut rng)?;
        }
        Ok(cluster)
    }

    /// Instances of which each talks to one or two others; in some applications, the first three must not share a host.
    fn add_application(&mut self, size: usize, free: &mut [u64], rng: &mut Rng) -> Result<()> {
        let first = self.instances.len();
        let is_apart = size >= 3 && rng.u8(..4) == 0;
        for number in 0..size {
            let need = Need { cpu: rng.u64(100..4000), memory: (512 << 20) << rng.u32(0..6) };
            let apart = (is_apart && number < 3).then(|| format!("a{first}"));
            let host = self.free_host(need, apart.as_deref(), free, rng)?;
            free[host] -= need.memory;
            self.instances.push(instance(first + number, &self.hosts[host], apart));
            self.needs.push(need);
            for _ in 0..if number == 0 { 0 } else { rng.usize(1..=2) } {
                let rate = (TRAFFIC.0 + (TRAFFIC.1 - TRAFFIC.0) * rng.f64()).exp2() as u64;
                self.flows.push(Flow { one: first + number, other: first + rng.usize(..number), rate });
            }
        }
        Ok(())
    }

    /// Any host with room on which nothing is that must be apart from the new instance.
    fn free_host(&self, need: Need, apart: Option<&str>, free: &[u64], rng: &mut Rng) -> Result<usize> {
        let is_barred = |host: usize| {
            let here = self.instances.iter().rev().take(16).filter(|at| at.host == self.hosts[host]);
            apart.is_some_and(|app| {
                here.into_iter().any(|at| at.placement.labels.values().any(|other| other == app))
            })
        };
        let begin = rng.usize(..free.len());
        let mut hosts = (0..free.len()).map(|offset| (begin + offset) % free.len());
        hosts
            .find(|host| need.memory <= free[*host] && !is_barred(*host))
            .context("the hosts are too few for the instances")
    }
}

fn instance(index: usize, host: &HostName, apart: Option<String>) -> Instance {
    let mut placement = Placement::default();
    if let Some(application) = apart {
        placement.labels.insert("app".into(), application);
        placement.anti_affinity.insert("app".into());
    }
    Instance {
        name: format!("i{index}"),
        fabric: FabricId(1),
        group: None,
        placement,
        host: host.clone(),
        epoch: Epoch::default(),
        spec: Vec::new(),
    }
}
