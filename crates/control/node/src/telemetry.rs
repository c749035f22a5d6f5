//! Samples what this host and its instances use, and sends that to the coordinator.
//!
//! * `host`: the host. `processes`: an instance, as the processes below its first one. `devices`: network devices of both. `leave`: the host's wish
//!   to be emptied.

mod devices;
mod host;
mod leave;
mod processes;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine_api::State;
use rpc::telemetry::{HostUse, Sample};
use rpc::wire::FromNode;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::instances::LiveInstances;
use crate::uplink::Uplink;

/// How soon to look again for the coordinator. Until it has a sample, it plans nothing for this host.
const AGAIN: Duration = Duration::from_secs(1);

/// Samples in this interval as long as the node runs and the coordinator is connected. The file `leave` says that the host is to be emptied.
pub async fn run(
    live: Arc<LiveInstances>,
    uplink: Arc<Uplink>,
    address: IpAddr,
    leave: PathBuf,
    every: Duration,
) {
    loop {
        if !uplink.is_connected() {
            sleep(AGAIN).await;
            continue;
        }
        let (live, uplink, leave) = (live.clone(), uplink.clone(), leave.clone());
        // It reads many files, each of which may wait for a lock of the kernel.
        let sampled = spawn_blocking(move || uplink.send(&FromNode::Sampled(sample(&live, address, &leave))));
        // A sample that panicked has printed a message; the next one may succeed.
        let _ = sampled.await;
        sleep(every).await;
    }
}

fn sample(live: &LiveInstances, address: IpAddr, leave: &Path) -> Sample {
    let running = live.all().into_iter().filter(|(_, live)| live.state == State::Running);
    let instances = running.filter_map(|(vid, live)| Some((vid, processes::below(live.first?)?)));
    let host = HostUse { leaving: leave::reason(leave), ..host::in_use(address) };
    Sample { at_us: monotonic_us(), host, instances: instances.collect() }
}

/// Counters go on when the node restarts, so its clock has to as well.
fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}
