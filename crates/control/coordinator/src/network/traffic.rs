//! Traffic on the overlay by pairs of instances.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::NetFlow;
use fabric::Vid;
use instance::Blueprint;
use planner::Talk;
use rpc::net::Question;
use rpc::wire::Answer;

use super::rollout::Rollout;
use super::show::ask_all;
use crate::core::{Cluster, State};

/// The seconds over which rates are averaged.
pub const WINDOW_S: u64 = 60;

/// The mean rates of the last seconds. Hosts that do not answer are left out.
pub async fn between_instances(cluster: &Arc<Cluster>, window_s: u64) -> Vec<Talk> {
    let plan = cluster.view().get::<Rollout>().plan().clone();
    let answers = ask_all(cluster, &plan, &Question::Matrix { window_s }).await;
    let flows = answers.into_values().filter_map(|answer| match answer {
        Some(Answer::Flows(flows)) => Some(flows),
        _ => None,
    });
    let vids = by_mac(&cluster.view());
    talks(flows.flatten(), &vids)
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
fn talks(flows: impl Iterator<Item = NetFlow>, vids: &BTreeMap<String, Vid>) -> Vec<Talk> {
    let mut directed = BTreeMap::<(Vid, Vid), u64>::new();
    for flow in flows {
        let ends = flow.macs.as_ref().and_then(|[from, to]| Some((*vids.get(from)?, *vids.get(to)?)));
        if let Some(ends) = ends {
            let rate = directed.entry(ends).or_default();
            *rate = flow.bytes_per_second.max(*rate);
        }
    }
    let mut both = BTreeMap::<(Vid, Vid), u64>::new();
    for ((from, to), rate) in directed {
        *both.entry((from.min(to), from.max(to))).or_default() += rate;
    }
    both.into_iter()
        .filter(|(_, rate)| *rate > 0)
        .map(|((one, other), rate)| Talk { one, other, rate })
        .collect()
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
            frames_per_second: 0,
        };
        let flows = [flow("a", "b", 100), flow("a", "b", 90), flow("b", "a", 5), flow("a", "stranger", 9)];
        assert_eq!(talks(flows.into_iter(), &vids), [Talk { one: vid(1), other: vid(2), rate: 105 }]);
    }
}
