//! Nodes that restart in the middle of a move of a station.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fabric::{Epoch, netns};
use overlay::Mac;
use overlay::switch::{Entry, Gate, Limits, Origin, PortState, Switch};
use overlay::topology::{NodeId, Topology, Version};
use overlay_io::offloads::Offloads;
use overlay_io::plane::Plane;
use overlay_io::socket::Socket;
use overlay_io::tap;
use rpc::net::{Device, DeviceKind, ToNode};

use super::devices::Devices;
use super::joined::Joined;
use super::nics::Nics;
use super::tunnels::Tunnels;

pub const HERE: NodeId = NodeId(1);
pub const THERE: NodeId = NodeId(2);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn device() -> Device {
    Device { name: "tap1".into(), mac: MAC, kind: DeviceKind::Station { address: None, mtu: 1400 } }
}

fn entry(node: NodeId, epoch: u64) -> Entry {
    Entry { mac: MAC, node, port: None, epoch: Epoch(epoch), addresses: vec![] }
}

fn devices(devices: &[Device], moving: &[Mac]) -> ToNode {
    ToNode::Devices { devices: devices.to_vec(), moving: moving.to_vec() }
}

fn all_stations(entry: Entry) -> [ToNode; 2] {
    let all_until = Some(Epoch(9));
    let part = |entries, all_until| ToNode::Stations { entries, all_until };
    [part(vec![entry], None), part(vec![], all_until)]
}

/// A node that has just started.
pub fn started() -> Joined {
    let topology = Topology::mesh(Version(1), &[HERE, THERE]).unwrap();
    let mut switch = Switch::new(HERE, 7, Limits::default());
    switch.install(topology.routes(HERE).unwrap()).unwrap();
    switch.use_version(Version(1)).unwrap();
    let socket = Socket::bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let plane = Arc::new(Plane::start(switch, socket, None).unwrap());
    Joined {
        overlay: 1,
        me: HERE,
        devices: Devices::new(plane.clone(), tap::Offloads::NONE),
        nics: Nics::default(),
        offloads: Offloads::NONE,
        plane,
        topology,
        plain: HashSet::new(),
        hosts: BTreeMap::new(),
        tunnels: Tunnels::default(),
        listed: Vec::new(),
        moving: HashSet::new(),
    }
}

/// The location and epoch of the station, and the ports.
fn known(joined: &Joined) -> (Option<(NodeId, u64)>, Vec<PortState>) {
    joined.plane.command(|switch, now, _| {
        let managed = switch.macs(now).into_iter().find_map(|known| match known.origin {
            Origin::Managed { epoch, .. } if known.mac == MAC => Some((known, epoch.0)),
            _ => None,
        });
        let ports = switch.state(now).ports;
        if let Some((known, _)) = managed {
            assert_eq!(known.port.is_some(), known.node == HERE);
        }
        (managed.map(|(known, epoch)| (known.node, epoch)), ports)
    })
}

/// A node that was restarted in the middle of a move and receives these orders, in a namespace without other devices.
async fn restarted(told: impl IntoIterator<Item = ToNode>) -> Joined {
    let mut joined = started();
    for order in told {
        joined.obey(order).await;
    }
    joined
}

/// Lets `test` make devices in a namespace of its own.
fn alone<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let namespace = netns::create().unwrap();
    netns::enter(namespace.as_fd(), || runtime.block_on(test())).unwrap();
}

#[track_caller]
fn assert_runs_here(joined: &Joined, epoch: u64) {
    let (place, ports) = known(joined);
    assert_eq!(place, Some((HERE, epoch)));
    assert_eq!(ports.iter().map(|port| port.gate).collect::<Vec<_>>(), [Gate::Open]);
    assert!(joined.plane.is_served(ports[0].port));
}

#[test]
fn a_proxy_goes_back_into_its_bridge() {
    let ip = |line: &str| {
        let called = std::process::Command::new("ip").args(line.split(' ')).output().unwrap();
        assert!(called.status.success(), "{line}: {called:?}");
        called.stdout
    };
    alone(async || {
        let bridge = "br1".to_owned();
        ip("link add br1 type bridge");
        let mut joined = started();
        let proxy = Device { kind: DeviceKind::Proxy { bridge }, ..device() };
        joined.devices.attach(proxy).await.unwrap();
        let failure = |joined: &Joined| joined.devices.iter().next().unwrap().failure.clone();
        for leave in ["link set tap1 nomaster", "link del br1"] {
            ip(leave);
            joined.devices.mend().await;
            let is_there = failure(&joined).is_none();
            assert_eq!(is_there, leave != "link del br1", "{leave}: {:?}", failure(&joined));
        }
        assert!(failure(&joined).unwrap().starts_with("br1 is not a bridge on this host"));
        ip("link add br1 type bridge");
        joined.devices.mend().await;
        assert_eq!(failure(&joined), None);
        assert!(!ip("link show master br1").is_empty());
    });
}

#[test]
fn a_destination_that_was_restarted_before_the_commit_has_the_station_in_the_end() {
    alone(async || {
        let [some, all] = all_stations(entry(THERE, 3));
        let mut joined = restarted([devices(&[], &[MAC]), some, all]).await;
        assert_eq!(known(&joined).0, Some((THERE, 3)));
        // The preparations of the former node are gone.
        joined.devices.commit(entry(HERE, 4)).unwrap_err();
        joined.devices.resume(MAC).unwrap_err();
        assert_eq!(known(&joined), (Some((THERE, 3)), vec![]));
        joined.obey(devices(&[device()], &[])).await;
        joined.obey(ToNode::Station(entry(HERE, 4))).await;
        assert_runs_here(&joined, 4);
    });
}

#[test]
fn a_destination_that_was_restarted_after_the_commit_has_the_station_in_the_end() {
    alone(async || {
        let [some, all] = all_stations(entry(HERE, 4));
        let mut joined = restarted([devices(&[device()], &[MAC]), some, all]).await;
        assert_eq!(known(&joined).0, None, "until the move is over");
        joined.obey(devices(&[device()], &[])).await;
        joined.obey(ToNode::Station(entry(HERE, 4))).await;
        assert_runs_here(&joined, 4);
    });
}

#[test]
fn a_source_that_was_restarted_before_the_commit_keeps_the_station() {
    alone(async || {
        let [some, all] = all_stations(entry(HERE, 3));
        let mut joined = restarted([devices(&[device()], &[MAC]), some, all]).await;
        joined.obey(devices(&[device()], &[])).await;
        joined.obey(ToNode::Station(entry(HERE, 3))).await;
        assert_runs_here(&joined, 3);
    });
}

#[test]
fn a_source_that_was_restarted_after_the_commit_knows_where_the_station_is() {
    alone(async || {
        let [some, all] = all_stations(entry(THERE, 4));
        let mut joined = restarted([devices(&[], &[MAC]), some, all]).await;
        joined.obey(devices(&[], &[])).await;
        joined.obey(ToNode::Station(entry(THERE, 4))).await;
        assert_eq!(known(&joined), (Some((THERE, 4)), vec![]));
    });
}
