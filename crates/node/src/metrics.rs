//! Metrics of the overlay, as Prometheus reads them: in the OpenMetrics text format, over HTTP.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use api::{Carrier, NetDevice, NetFlow, NetHostState, NetTunnel};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rpc::lobby::PAUSE;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::node::Node;

/// The most connections at a time.
const MOST: usize = 16;

/// How long one may last: Prometheus asks again.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a client may take for its question.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// The pairs of MACs that are told of: those that have sent most in the last [`WINDOW_S`] seconds.
const MOST_FLOWS: usize = 64;

const WINDOW_S: u64 = 60;

/// Answers for as long as it is polled.
pub async fn serve(node: Arc<Node>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, _)) => {
                let node = node.clone();
                tokio::spawn(async move {
                    // Whoever does not wait for the answer has no use for it.
                    let _ = timeout(LIMIT, converse(node, tcp)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("metrics: no connection accepted: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(node: Arc<Node>, tcp: TcpStream) -> hyper::Result<()> {
    let answer = service_fn(move |request| {
        let node = node.clone();
        async move { Ok::<_, Infallible>(answer(&node, &request).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(QUESTION_LIMIT);
    server.serve_connection(TokioIo::new(tcp), answer).await
}

async fn answer(node: &Node, request: &Request<Incoming>) -> Response<String> {
    let refused = |status: StatusCode, text: &str| {
        let mut response = Response::new(format!("{text}\n"));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return refused(StatusCode::NOT_FOUND, "metrics are at /metrics");
    }
    if request.method() != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read");
    }
    let (state, flows) = node.look_at_network(WINDOW_S).await;
    let Ok(text) = exposition(&state, &flows) else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written");
    };
    let mut response = Response::new(text);
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format));
    response
}

fn exposition(state: &NetHostState, flows: &[NetFlow]) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("transhume_overlay");
    tunnels(&mut registry, &state.tunnels);
    devices(&mut registry, &state.devices);
    let dropped = state.dropped.iter().map(|(reason, count)| (label("reason", reason), *count));
    counters(&mut registry, "dropped", "Frames and datagrams that went nowhere", dropped);
    gauge(&mut registry, "macs", "MACs that are known", state.macs as f64);
    let version = f64::from(state.version.unwrap_or(0));
    gauge(&mut registry, "topology_version", "The topology by which frames are sent; 0 for none", version);
    let pairs = flows.iter().filter_map(|flow| {
        let [from, to] = flow.macs.as_ref()?;
        Some((vec![("source", from.clone()), ("destination", to.clone())], flow.bytes_per_second as f64))
    });
    let help = "What one MAC has sent to another in the last minute, of those that have sent most";
    gauges(&mut registry, "flow_bytes_per_second", help, pairs.take(MOST_FLOWS));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

fn tunnels(registry: &mut Registry, tunnels: &[NetTunnel]) {
    let each = |value: fn(&NetTunnel) -> Option<f64>| {
        tunnels.iter().filter_map(move |tunnel| Some((label("peer", &tunnel.host), value(tunnel)?)))
    };
    let up = each(|tunnel| Some(f64::from(u8::from(tunnel.connected))));
    gauges(registry, "tunnel_up", "Whether the connection to the other host stands", up);
    let plain = each(|tunnel| Some(f64::from(u8::from(tunnel.plain))));
    gauges(registry, "tunnel_plain", "Whether datagrams are not sealed", plain);
    let by_tls = each(|tunnel| Some(f64::from(u8::from(tunnel.carrier? == Carrier::Tls))));
    gauges(
        registry,
        "tunnel_by_tls",
        "Whether datagrams go over TLS, because UDP does not get through",
        by_tls,
    );
    let by_kernel = each(|tunnel| Some(f64::from(u8::from(tunnel.by_kernel))));
    gauges(registry, "tunnel_by_kernel", "Whether the kernel carries frames between stations", by_kernel);
    let time = each(|tunnel| Some(tunnel.round_trip_us? as f64 / 1e6));
    gauges(registry, "tunnel_round_trip_seconds", "How long a datagram and its answer take of late", time);
    let rate = each(|tunnel| Some(tunnel.carries_bits_per_second? as f64));
    let help = "What has come there at the best in the last minute";
    gauges(registry, "tunnel_carries_bits_per_second", help, rate);
    let length = each(|tunnel| Some(tunnel.datagram_bytes as f64).filter(|bytes| *bytes > 0.0));
    gauges(registry, "tunnel_datagram_bytes", "Bytes of a datagram that arrives, as far as is known", length);
    let counted = |value: fn(&NetTunnel) -> u64| {
        tunnels.iter().map(move |tunnel| (label("peer", &tunnel.host), value(tunnel)))
    };
    let carried = counted(|tunnel| tunnel.kernel_frames);
    counters(registry, "tunnel_kernel_frames", "Frames and segments that the kernel has sent", carried);
    let sent = counted(|tunnel| tunnel.sent);
    counters(
        registry,
        "tunnel_datagrams_sent",
        "Datagrams sent, as far as the other host has reported",
        sent,
    );
    let lost = counted(|tunnel| tunnel.lost);
    counters(registry, "tunnel_datagrams_lost", "Those of them that have not arrived", lost);
}

fn devices(registry: &mut Registry, devices: &[NetDevice]) {
    let is_up = |device: &NetDevice| device.failure.is_none() && device.open && device.blocked_s == 0;
    let up = devices.iter().map(|device| (label("device", &device.name), f64::from(u8::from(is_up(device)))));
    gauges(registry, "device_up", "Whether the device carries frames", up);
    let loops = devices.iter().map(|device| (label("device", &device.name), device.loops));
    counters(registry, "device_loops", "Loops that were found at the device", loops);
}

type Labels = Vec<(&'static str, String)>;

fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Gauge::<f64, AtomicU64>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn gauges(registry: &mut Registry, name: &str, help: &str, of: impl IntoIterator<Item = (Labels, f64)>) {
    let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    for (labels, value) in of {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}

fn counters(registry: &mut Registry, name: &str, help: &str, of: impl IntoIterator<Item = (Labels, u64)>) {
    let family = Family::<Labels, Counter>::default();
    for (labels, value) in of {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, family);
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
            "topology_version 7.0",
            r#"flow_bytes_per_second{source="a",destination="b"} 10.0"#,
        ];
        for line in expected {
            assert!(text.contains(&format!("\ntranshume_overlay_{line}\n")), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
