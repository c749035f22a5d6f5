//! Traffic by pairs of instances, on the overlay and by RDMA.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::{NetFlow, TopRate};
use fabric::Vid;
use fabric::traffic::Volume;
use instance::Blueprint;
use planner::Talk;
use rpc::net::Question;
use rpc::wire::Answer;

use super::rollout::Rollout;
use super::show::ask_all;
use crate::core::{Cluster, State};
use crate::telemetry::{Rdma, Telemetry};

/// The seconds over which rates are averaged.
pub const WINDOW_S: u64 = 60;

/// The traffic between two instances, in both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// The instances, the lower number first.
    pub pair: (Vid, Vid),
    /// Frames on the overlay.
    pub overlay: TopRate,
    /// Payload of RDMA.
    pub rdma: TopRate,
    /// The same since the coordinator has known of it.
    pub rdma_total: Volume,
}

impl Between {
    /// The bytes over all networks.
    pub fn bytes_per_second(&self) -> u64 {
        self.overlay.bytes_per_second.saturating_add(self.rdma.bytes_per_second)
    }
}

/// The mean rates of the last seconds, over all networks. Hosts that do not answer are left out.
pub async fn between_instances(cluster: &Arc<Cluster>, window_s: u64) -> Vec<Talk> {
    let all = by_network(cluster, window_s).await.into_iter();
    let talk = |at: Between| Talk { one: at.pair.0, other: at.pair.1, rate: at.bytes_per_second() };
    all.map(talk).filter(|talk| talk.rate > 0).collect()
}

/// The same by networks, and totals of RDMA.
pub async fn by_network(cluster: &Arc<Cluster>, window_s: u64) -> Vec<Between> {
    let plan = cluster.view().get::<Rollout>().plan().clone();
    let answers = ask_all(cluster, &plan, &Question::Matrix { window_s }).await;
    let flows = answers.into_values().filter_map(|answer| match answer {
        Some(Answer::Flows(flows)) => Some(flows),
        _ => None,
    });
    let state = cluster.view();
    let overlay = on_overlay(flows.flatten(), &by_mac(&state));
    merged(overlay, state.get::<Telemetry>().rdma(), Instant::now())
}

fn merged(overlay: BTreeMap<(Vid, Vid), TopRate>, rdma: &Rdma, now: Instant) -> Vec<Between> {
    let empty = |pair| Between {
        pair,
        overlay: TopRate::default(),
        rdma: TopRate::default(),
        rdma_total: Volume::default(),
    };
    let mut all: BTreeMap<_, _> =
        overlay.into_iter().map(|(pair, overlay)| (pair, Between { overlay, ..empty(pair) })).collect();
    for (pair, total, rate) in rdma.talks(now).filter(|(_, total, _)| total.messages > 0) {
        let between = all.entry(pair).or_insert_with(|| empty(pair));
        (between.rdma, between.rdma_total) = (rate, total);
    }
    all.into_values().collect()
}

/// The instances by their MACs.
fn by_mac(state: &State) -> BTreeMap<String, Vid> {
    let mac = |(vid, at): (&Vid, &moves::journal::Instance)| {
        let mac = Blueprint::decode(&at.spec).ok()?.spec.network.mac;
        Some((mac.map(|byte| format!("{byte:02x}")).join(":"), *vid))
    };
    state.snapshot().instances.iter().filter_map(mac).collect()
}

/// Both hosts of a flow count it, and each direction is a flow of its own.
fn on_overlay(
    flows: impl Iterator<Item = NetFlow>,
    vids: &BTreeMap<String, Vid>,
) -> BTreeMap<(Vid, Vid), TopRate> {
    let mut directed = BTreeMap::<(Vid, Vid), TopRate>::new();
    for flow in flows {
        let ends = flow.macs.as_ref().and_then(|[from, to]| Some((*vids.get(from)?, *vids.get(to)?)));
        if let Some(ends) = ends {
            let rate = directed.entry(ends).or_default();
            rate.bytes_per_second = flow.bytes_per_second.max(rate.bytes_per_second);
            rate.messages_per_second = flow.frames_per_second.max(rate.messages_per_second);
        }
    }
    let mut both = BTreeMap::<(Vid, Vid), TopRate>::new();
    for ((from, to), rate) in directed.into_iter().filter(|(_, rate)| rate.bytes_per_second > 0) {
        let sum = both.entry((from.min(to), from.max(to))).or_default();
        sum.bytes_per_second += rate.bytes_per_second;
        sum.messages_per_second += rate.messages_per_second;
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_two_hosts_count_is_one_and_both_directions_are_one_pair() {
        let vid = |number| Vid::new(number).unwrap();
        let vids = BTreeMap::from([("a".to_owned(), vid(1)), ("b".to_owned(), vid(2))]);
        let flow = |from: &str, to: &str, rate| NetFlow {
            macs: Some([from.into(), to.into()]),
            bytes: 0,
            frames: 0,
            bytes_per_second: rate,
            frames_per_second: rate / 10,
        };
        let flows = [flow("a", "b", 100), flow("a", "b", 90), flow("b", "a", 5), flow("a", "stranger", 9)];
        let rate = TopRate { bytes_per_second: 105, messages_per_second: 10 };
        assert_eq!(on_overlay(flows.into_iter(), &vids), BTreeMap::from([((vid(1), vid(2)), rate)]));
    }
}
