//! Metrics of the overlay for Prometheus, in the OpenMetrics text format over HTTP.

use std::fmt;
use std::sync::Arc;

use api::{Carrier, NetDevice, NetFlow, NetHostState, NetTunnel};
use metrics::{Exposition, label};
use tokio::net::TcpListener;

use crate::network::Network;

/// The number of pairs of MACs in the metrics: those that have sent most in the last [`WINDOW_S`] seconds.
const MOST_FLOWS: usize = 64;

const WINDOW_S: u64 = 60;

/// Answers for as long as it is polled.
pub async fn serve(network: Arc<Network>, listener: TcpListener) {
    let expose = move || {
        let network = network.clone();
        async move {
            let (state, flows) = network.look(WINDOW_S).await;
            exposition(&state, &flows)
        }
    };
    metrics::serve(listener, expose).await;
}

fn exposition(state: &NetHostState, flows: &[NetFlow]) -> Result<String, fmt::Error> {
    let mut exposition = Exposition::new("transhume_overlay");
    tunnels(&mut exposition, &state.tunnels);
    devices(&mut exposition, &state.devices);
    let dropped = state.dropped.iter().map(|(reason, count)| (label("reason", reason), *count));
    exposition.counters("dropped", "Dropped frames and datagrams", dropped);
    let help = "Offloads that are disabled because they misbehaved";
    exposition.gauge("offloads_switched_off", help, state.switched_off.len() as f64);
    exposition.gauge("macs", "Known MAC addresses", state.macs as f64);
    let version = f64::from(state.version.unwrap_or(0));
    exposition.gauge("topology_version", "The version of the topology in use; 0 for none", version);
    let pairs = flows.iter().filter_map(|flow| {
        let [from, to] = flow.macs.as_ref()?;
        Some((vec![("source", from.clone()), ("destination", to.clone())], flow.bytes_per_second as f64))
    });
    let help = "Traffic from one MAC to another in the last minute, for the largest flows";
    exposition.gauges("flow_bytes_per_second", help, pairs.take(MOST_FLOWS));
    exposition.text()
}

fn tunnels(exposition: &mut Exposition, tunnels: &[NetTunnel]) {
    let each = |value: fn(&NetTunnel) -> Option<f64>| {
        tunnels.iter().filter_map(move |tunnel| Some((label("peer", &tunnel.host), value(tunnel)?)))
    };
    let up = each(|tunnel| Some(f64::from(u8::from(tunnel.connected))));
    exposition.gauges("tunnel_up", "Whether the connection to the other host is up", up);
    let plain = each(|tunnel| Some(f64::from(u8::from(tunnel.plain))));
    exposition.gauges("tunnel_plain", "Whether datagrams are sent without encryption", plain);
    let by_tls = each(|tunnel| Some(f64::from(u8::from(tunnel.carrier? == Carrier::Tls))));
    exposition.gauges("tunnel_by_tls", "Whether datagrams are sent over TLS because UDP is blocked", by_tls);
    let by_kernel = each(|tunnel| Some(f64::from(u8::from(tunnel.by_kernel))));
    exposition.gauges("tunnel_by_kernel", "Whether the kernel forwards frames between stations", by_kernel);
    let time = each(|tunnel| Some(tunnel.round_trip_us? as f64 / 1e6));
    exposition.gauges(
        "tunnel_round_trip_seconds",
        "The recent round-trip time of a datagram and its answer",
        time,
    );
    let rate = each(|tunnel| Some(tunnel.carries_bits_per_second? as f64));
    let help = "The highest rate received there in the last minute";
    exposition.gauges("tunnel_carries_bits_per_second", help, rate);
    let length = each(|tunnel| Some(tunnel.datagram_bytes as f64).filter(|bytes| *bytes > 0.0));
    exposition.gauges("tunnel_datagram_bytes", "The largest datagram known to arrive, in bytes", length);
    let counted = |value: fn(&NetTunnel) -> u64| {
        tunnels.iter().map(move |tunnel| (label("peer", &tunnel.host), value(tunnel)))
    };
    let carried = counted(|tunnel| tunnel.kernel_frames);
    exposition.counters("tunnel_kernel_frames", "Frames and segments sent by the kernel", carried);
    let sent = counted(|tunnel| tunnel.sent);
    exposition.counters(
        "tunnel_datagrams_sent",
        "Datagrams sent, up to the last report of the other host",
        sent,
    );
    let lost = counted(|tunnel| tunnel.lost);
    exposition.counters(
        "tunnel_datagrams_lost",
        "Datagrams lost, up to the last report of the other host",
        lost,
    );
}

fn devices(exposition: &mut Exposition, devices: &[NetDevice]) {
    let is_up = |device: &NetDevice| device.failure.is_none() && device.open && device.blocked_s == 0;
    let up = devices.iter().map(|device| (label("device", &device.name), f64::from(u8::from(is_up(device)))));
    exposition.gauges("device_up", "Whether the device forwards frames", up);
    let loops = devices.iter().map(|device| (label("device", &device.name), device.loops));
    exposition.counters("device_loops", "Loops detected at the device", loops);
}

#[cfg(test)]
mod tests {
    use api::NetDeviceKind;

    use super::*;

    #[test]
    fn all_that_is_known_is_written() {
        let tunnel = NetTunnel {
            host: "h\"2".into(),
            address: None,
            connected: true,
            plain: false,
            carrier: Some(Carrier::Tls),
            by_kernel: true,
            kernel_frames: 5,
            datagram_bytes: 1472,
            carries_bits_per_second: Some(8000),
            round_trip_us: Some(250),
            sent: 1000,
            lost: 3,
        };
        let device = NetDevice {
            name: "tap1".into(),
            mac: "02:00:00:00:00:01".into(),
            kind: NetDeviceKind::Station,
            bridge: None,
            netns: None,
            adopted: false,
            address: None,
            mtu_bytes: None,
            failure: Some("no room".into()),
            open: true,
            blocked_s: 0,
            loops: 2,
        };
        let state = NetHostState {
            version: Some(7),
            devices: vec![device],
            tunnels: vec![tunnel],
            macs: 9,
            offloads: Vec::new(),
            switched_off: Vec::new(),
            dropped: vec![("replayed".into(), 4)],
        };
        let flow = NetFlow {
            macs: Some(["a".into(), "b".into()]),
            bytes: 600,
            frames: 6,
            bytes_per_second: 10,
            frames_per_second: 0,
        };
        let text = exposition(&state, &[flow]).unwrap();
        let expected = [
            r#"tunnel_up{peer="h\"2"} 1.0"#,
            r#"tunnel_by_tls{peer="h\"2"} 1.0"#,
            r#"tunnel_by_kernel{peer="h\"2"} 1.0"#,
            r#"tunnel_kernel_frames_total{peer="h\"2"} 5"#,
            r#"tunnel_round_trip_seconds{peer="h\"2"} 0.00025"#,
            r#"tunnel_carries_bits_per_second{peer="h\"2"} 8000.0"#,
            r#"tunnel_datagrams_lost_total{peer="h\"2"} 3"#,
            r#"device_up{device="tap1"} 0.0"#,
            r#"device_loops_total{device="tap1"} 2"#,
            r#"dropped_total{reason="replayed"} 4"#,
            "macs 9.0",
            "offloads_switched_off 0.0",
            "topology_version 7.0",
            r#"flow_bytes_per_second{source="a",destination="b"} 10.0"#,
        ];
        for line in expected {
            assert!(text.contains(&format!("\ntranshume_overlay_{line}\n")), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
