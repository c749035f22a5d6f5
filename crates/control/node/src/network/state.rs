//! The state of the overlay on this host, for `transhume net status`.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{Carrier, NetDevice, NetFlow, NetHostState, NetMac, NetSwitchedOff, NetTunnel};
use moves::HostName;
use overlay::Mac;
use overlay::matrix::Traffic;
use overlay::switch::{Gate, MacState, Origin, PortId, State};
use overlay::topology::NodeId;
use overlay::tunnel::header::Protection;
use overlay_io::carrier;
use overlay_io::counters::Counter;
use overlay_io::faults::{Place, SwitchedOff};
use rpc::net::{Question, describe_nic};
use rpc::wire::split_reason;

use super::devices::Present;
use super::joined::Joined;
use super::nics::Listed;

/// Collects the state of the overlay on this host.
pub fn of(joined: &Joined) -> NetHostState {
    let switch = joined.plane.command(|switch, now, _| switch.state(now));
    NetHostState {
        version: switch.version.map(|version| version.0),
        devices: devices(joined, &switch),
        tunnels: tunnels(joined),
        macs: switch.macs,
        offloads: joined.offloads.on().map(|offload| offload.name().to_owned()).collect(),
        switched_off: joined.plane.switched_off().iter().map(|off| switched_off(joined, off)).collect(),
        dropped: dropped(joined, &switch),
    }
}

/// An offload that is disabled.
pub fn switched_off(joined: &Joined, off: &SwitchedOff) -> NetSwitchedOff {
    let (link, device) = match off.place {
        Place::Node => (None, None),
        Place::Way(node) => (Some(host_name(joined, node)), None),
        Place::Port(port) => (None, Some(device_name(joined, port).unwrap_or_else(|| port.to_string()))),
    };
    let (offload, reason) = (off.offload.name().to_owned(), off.fault.in_words().to_owned());
    NetSwitchedOff { offload, link, device, reason }
}

/// The locations of MACs in ascending order, from number `first` on, as many as fit into a message.
pub fn macs(joined: &Joined, first: usize) -> Vec<NetMac> {
    let mut macs = joined.plane.command(|switch, now, _| switch.macs(now));
    macs.sort_by_key(MacState::place_in_order);
    macs.iter().skip(first).take(Question::MOST_MACS).map(|mac| place(joined, mac)).collect()
}

/// The location of `mac`.
pub fn find(joined: &Joined, mac: Mac) -> Vec<NetMac> {
    let macs = joined.plane.command(|switch, now, _| switch.macs(now));
    macs.iter().filter(|known| known.mac == mac).map(|known| place(joined, known)).collect()
}

/// The traffic between pairs of MACs, the largest flow first.
pub fn flows(joined: &Joined, window_s: u64) -> Vec<NetFlow> {
    let flow = |traffic: Traffic| NetFlow {
        macs: traffic.flow.map(|flow| [flow.from, flow.to].map(|mac| mac.to_string())),
        bytes: traffic.volume.bytes,
        frames: traffic.volume.frames,
        bytes_per_second: traffic.bytes_per_second as u64,
        frames_per_second: traffic.frames_per_second as u64,
    };
    joined.plane.matrix(Duration::from_secs(window_s)).into_iter().map(flow).collect()
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn devices(joined: &Joined, switch: &State) -> Vec<NetDevice> {
    let device = |present: &Present| {
        let state = switch.ports.iter().find(|state| state.port == present.port)?;
        let described = present.device.describe();
        Some(NetDevice {
            mtu_bytes: present.mtu.or(described.mtu_bytes),
            failure: present.failure.as_ref().map(|reason| split_reason(reason).0.to_owned()),
            open: state.gate == Gate::Open,
            blocked_s: state.blocked.as_secs(),
            loops: state.loops,
            ..described
        })
    };
    let nic = |nic: &Listed| {
        let state = switch.ports.iter().find(|state| state.port == nic.port)?;
        Some(NetDevice { open: state.gate == Gate::Open, ..describe_nic(&nic.name, &nic.network) })
    };
    let devices = joined.devices.iter().filter_map(device);
    devices.chain(joined.nics.list().iter().filter_map(nic)).collect()
}

fn tunnels(joined: &Joined) -> Vec<NetTunnel> {
    let tunnel = |(host, node, connected): (&HostName, NodeId, bool)| {
        let peer = joined.plane.peer(node);
        NetTunnel {
            host: host.to_string(),
            address: peer.as_ref().map(|peer| peer.address.to_string()),
            connected: connected || peer.as_ref().is_some_and(|peer| peer.is_alive),
            plain: peer.is_some_and(|peer| peer.protection == Protection::Plain),
            carrier: peer.map(|peer| match peer.carrier {
                carrier::Carrier::Udp => Carrier::Udp,
                carrier::Carrier::Connection => Carrier::Tls,
            }),
            by_kernel: peer.is_some_and(|peer| peer.by_kernel),
            kernel_frames: peer.map_or(0, |peer| peer.kernel_frames),
            datagram_bytes: peer.map_or(0, |peer| peer.arrives),
            carries_bits_per_second: peer.and_then(|peer| peer.rate).map(|rate| rate.saturating_mul(8)),
            round_trip_us: peer.and_then(|peer| peer.round_trip).map(microseconds),
            sent: peer.map_or(0, |peer| peer.sent),
            lost: peer.map_or(0, |peer| peer.lost),
        }
    };
    let mut tunnels: Vec<_> = joined.tunnels.iter().map(tunnel).collect();
    tunnels.sort_by(|one, other| one.host.cmp(&other.host));
    tunnels
}

fn place(joined: &Joined, mac: &MacState) -> NetMac {
    let host = host_name(joined, mac.node);
    let (managed, vlan) = match mac.origin {
        Origin::Managed { .. } => (true, 0),
        Origin::Learned { vlan } => (false, vlan),
    };
    let device = mac.port.and_then(|port| device_name(joined, port));
    NetMac { mac: mac.mac.to_string(), host, device, managed, vlan }
}

fn host_name(joined: &Joined, node: NodeId) -> String {
    joined.hosts.get(&node).map_or_else(|| format!("node {node}"), HostName::to_string)
}

fn device_name(joined: &Joined, port: PortId) -> Option<String> {
    joined.devices.name_of(port).or_else(|| joined.nics.name_of(port))
}

fn dropped(joined: &Joined, switch: &State) -> Vec<(String, u64)> {
    let frames = switch.dropped.iter().map(|(reason, count)| (reason.name(), *count));
    let datagrams = Counter::ALL.iter().map(|counter| (counter.name(), joined.plane.counter(*counter)));
    add_up(frames.chain(datagrams))
}

/// Frames and datagrams share some drop reasons, which are added up.
fn add_up(counted: impl Iterator<Item = (&'static str, u64)>) -> Vec<(String, u64)> {
    let mut sums = BTreeMap::<_, u64>::new();
    for (reason, count) in counted.filter(|(_, count)| *count > 0) {
        *sums.entry(reason).or_default() += count;
    }
    sums.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_listed_once() {
        let counted = [("stale", 2), ("malformed", 7), ("forged", 0), ("malformed", 5)];
        assert_eq!(add_up(counted.into_iter()), [("malformed".into(), 12), ("stale".into(), 2)]);
    }
}
