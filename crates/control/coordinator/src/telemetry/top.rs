//! The present figures for users.

use std::sync::Arc;

use api::{Top, TopHost, TopInstance, TopTalk};

use super::{Point, Telemetry};
use crate::core::{Cluster, State};
use crate::network::links;
use crate::network::traffic::{self, Between};

/// The figures of all hosts, instances and links, and the traffic of the last minute.
pub async fn show(cluster: &Arc<Cluster>) -> Top {
    let (talks, links) =
        tokio::join!(traffic::by_network(cluster, traffic::WINDOW_S), links::directions(cluster));
    let state = cluster.view();
    Top { hosts: hosts(&state), instances: instances(&state), talks: named(&state, &talks), links }
}

fn hosts(state: &State) -> Vec<TopHost> {
    let host = |(name, machine): (&moves::HostName, &super::Machine)| TopHost {
        name: name.to_string(),
        processors: machine.last.processors,
        cpu_milli: machine.track.last().map(|point| point.cpu),
        memory_bytes: machine.last.memory,
        memory_used_bytes: machine.last.memory_used,
        pressure_permille: machine.last.pressure.map(|of| [of.cpu, of.memory, of.io]),
        network_bytes_per_second: machine
            .track
            .last()
            .and_then(|point| point.network)
            .map(|rate| u64::from(rate) * 1024),
        instances: state.instances_on(name),
    };
    state.get::<Telemetry>().hosts().iter().map(host).collect()
}

fn instances(state: &State) -> Vec<TopInstance> {
    let mut all: Vec<_> = state
        .snapshot()
        .instances
        .iter()
        .map(|(vid, at)| {
            // Of a host that is not connected, no present figures are known.
            let telemetry = state.get::<Telemetry>();
            let track = telemetry.instance(*vid).filter(|_| telemetry.hosts().contains_key(&at.host));
            let point = track.and_then(super::Track::last);
            let bytes = |of: fn(Point) -> Option<u32>| Some(u64::from(of(point?)?) * 1024);
            TopInstance {
                name: at.name.clone(),
                host: at.host.to_string(),
                cpu_milli: point.map(|point| point.cpu),
                cpu_peak_milli: track.and_then(super::Track::peak).map(|point| point.cpu),
                memory_bytes: bytes(|point| Some(point.memory)),
                disk_bytes_per_second: bytes(|point| point.disk),
                network_bytes_per_second: bytes(|point| point.network),
            }
        })
        .collect();
    all.sort_by(|one, other| other.cpu_milli.cmp(&one.cpu_milli).then_with(|| one.name.cmp(&other.name)));
    all
}

fn named(state: &State, talks: &[Between]) -> Vec<TopTalk> {
    let name = |vid| state.snapshot().instances.get(&vid).map(|at| at.name.clone());
    let mut named: Vec<_> = talks
        .iter()
        .filter_map(|talk| {
            let Between { pair: (one, other), overlay, rdma, rdma_total } = *talk;
            Some(TopTalk {
                ends: [name(one)?, name(other)?],
                bytes_per_second: talk.bytes_per_second(),
                overlay,
                rdma,
                rdma_bytes: rdma_total.bytes,
                rdma_messages: rdma_total.messages,
            })
        })
        .collect();
    named.sort_by(|one, other| {
        other.bytes_per_second.cmp(&one.bytes_per_second).then_with(|| one.ends.cmp(&other.ends))
    });
    named
}
