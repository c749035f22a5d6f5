//! Samples what this host and its instances use, and sends that to the coordinator.
//!
//! * `host`: the host. `processes`: an instance, as the processes below its first one.

mod host;
mod processes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::State;
use rpc::telemetry::Sample;
use rpc::wire::FromNode;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::instances::LiveInstances;
use crate::uplink::Uplink;

/// Samples as long as the node runs, once in each interval in which the coordinator is connected.
pub async fn run(live: Arc<LiveInstances>, uplink: Arc<Uplink>, every: Duration) {
    let began = Instant::now();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !uplink.is_connected() {
            continue;
        }
        let (live, uplink) = (live.clone(), uplink.clone());
        // It reads many files, each of which may wait for a lock of the kernel.
        let sampled = spawn_blocking(move || uplink.send(&FromNode::Sampled(sample(&live, began))));
        // A sample that panicked has printed a message; the next one may succeed.
        let _ = sampled.await;
    }
}

fn sample(live: &LiveInstances, began: Instant) -> Sample {
    let running = live.all().into_iter().filter(|(_, live)| live.state == State::Running);
    let instances = running.filter_map(|(vid, live)| Some((vid, processes::below(live.first?)?)));
    Sample {
        at_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
        host: host::in_use(),
        instances: instances.collect(),
    }
}
