//! Latency, loss and available rate of the links of the overlay.

use std::sync::Arc;

use api::{NetHostState, NetTunnel, TopLink};
use moves::HostName;
use rpc::net::Question;
use rpc::wire::Answer;

use super::rollout::Rollout;
use super::show::ask_all;
use crate::core::Cluster;

/// Each direction of each link, in the order of names. Hosts that do not answer are left out.
pub async fn directions(cluster: &Arc<Cluster>) -> Vec<TopLink> {
    let plan = cluster.view().get::<Rollout>().plan().clone();
    let answers = ask_all(cluster, &plan, &Question::State).await;
    let states = answers.into_iter().filter_map(|(host, answer)| match answer {
        Some(Answer::Net(state)) => Some((host, *state)),
        _ => None,
    });
    states.flat_map(|(host, state)| from_host(host, state)).collect()
}

/// Those that begin at `host`.
fn from_host(host: HostName, state: NetHostState) -> impl Iterator<Item = TopLink> {
    let link = move |tunnel: NetTunnel| TopLink {
        from: host.to_string(),
        to: tunnel.host,
        round_trip_us: tunnel.round_trip_us,
        sent: tunnel.sent,
        lost: tunnel.lost,
        available_bits_per_second: tunnel.carries_bits_per_second,
    };
    state.tunnels.into_iter().filter(|tunnel| tunnel.connected).map(link)
}
