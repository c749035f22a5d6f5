//! Samples what this host and its instances use, and sends that to the coordinator.
//!
//! * `host`: the host. `processes`: an instance, as the processes below its first one. `devices`: network devices of both. `leave`: the host's wish
//!   to be emptied.

mod devices;
mod host;
mod leave;
mod processes;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use engine_api::State;
use rpc::telemetry::{HostUse, MOST_FLOWS, RdmaFlow, Sample};
use rpc::wire::FromNode;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::instances::LiveInstances;
use crate::uplink::Uplink;

/// How soon to look again for the coordinator. Until it has a sample, it plans nothing for this host.
const AGAIN: Duration = Duration::from_secs(1);

/// What is sampled.
pub struct Sources {
    /// The instances of this host.
    pub live: Arc<LiveInstances>,
    /// What counts RDMA traffic.
    pub broker: Broker,
    /// The host's address.
    pub address: IpAddr,
    /// The file that says that the host is to be emptied.
    pub leave: PathBuf,
}

/// Samples in this interval as long as the node runs and the coordinator is connected.
pub async fn run(sources: Sources, uplink: Arc<Uplink>, every: Duration) {
    let sources = Arc::new(sources);
    loop {
        if !uplink.is_connected() {
            sleep(AGAIN).await;
            continue;
        }
        let (sources, uplink) = (sources.clone(), uplink.clone());
        // It reads many files, each of which may wait for a lock of the kernel.
        let sampled = spawn_blocking(move || uplink.send(&FromNode::Sampled(sources.sample())));
        // A sample that panicked has printed a message; the next one may succeed.
        let _ = sampled.await;
        sleep(every).await;
    }
}

impl Sources {
    fn sample(&self) -> Sample {
        let running = self.live.all().into_iter().filter(|(_, live)| live.state == State::Running);
        let instances = running.filter_map(|(vid, live)| Some((vid, processes::below(live.first?)?)));
        Sample {
            at_us: monotonic_us(),
            host: HostUse { leaving: leave::reason(&self.leave), ..host::in_use(self.address) },
            instances: instances.collect(),
            rdma: self.rdma(),
        }
    }

    fn rdma(&self) -> Vec<RdmaFlow> {
        let flow = |flow: broker::Flow| RdmaFlow { from: flow.from, to: flow.to, volume: flow.volume };
        self.broker.traffic().into_iter().take(MOST_FLOWS).map(flow).collect()
    }
}

/// Counters go on when the node restarts, so its clock has to as well.
fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}
