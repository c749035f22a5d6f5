//! `transhume net links`

use std::collections::BTreeSet;
use std::process::ExitCode;

use api::{NetHost, NetLink, NetStatus, NetTunnel};
use clap::Args;
use serde::Serialize;

use super::show::{NOTHING, state, tell_unanswered};
use crate::cli::target::Target;
use crate::failure::Result;
use crate::{output, table};

/// Lists the links between hosts
///
/// The table shows the state of each link at its first host. LOST is the share of datagrams lost in each direction.
/// With --json, each link has `directions`: the state of both ends, with the counters of sent and received
/// datagrams in `tunnel`, which is null if the host does not answer.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net links\n  \
                        transhume net links --json | jq '.[] | select(.up | not)'\n  \
                        transhume net links --json | jq '.[].directions[] | {from, to, us: .tunnel.round_trip_us}'")]
pub struct Arguments {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A link, as `--json` prints it.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    link: &'a NetLink,
    directions: [Direction<'a>; 2],
}

/// The state of a link at one of its hosts.
#[derive(Clone, Copy, Serialize)]
struct Direction<'a> {
    from: &'a str,
    to: &'a str,
    /// Whether the host `from` has answered.
    answers: bool,
    tunnel: Option<&'a NetTunnel>,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let status = state(target)?;
        let links = described(&status);
        if self.json {
            output::json(&links)?;
        } else {
            let rows: Vec<_> = links.iter().map(row).collect();
            let titles = [
                "HOST",
                "HOST",
                "COST",
                "STATE",
                "SEALED",
                "VIA",
                "DATAGRAM",
                "ROUND TRIP",
                "LOST",
                "CARRIES",
            ];
            output::write(table::render(titles, &rows))?;
            tell_unanswered(unanswered(&links));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn described(status: &NetStatus) -> Vec<Described<'_>> {
    let describe = |link| Described { link, directions: directions(&status.hosts, link) };
    status.links.iter().map(describe).collect()
}

/// The hosts that do not answer, in the order of their names.
fn unanswered<'a>(links: &[Described<'a>]) -> BTreeSet<&'a str> {
    let directions = links.iter().flat_map(|link| link.directions);
    directions.filter(|direction| !direction.answers).map(|direction| direction.from).collect()
}

fn directions<'a>(hosts: &'a [NetHost], link: &'a NetLink) -> [Direction<'a>; 2] {
    let direction = |from: &'a str, to: &'a str| {
        let state = hosts.iter().find(|host| host.name == from).and_then(|host| host.state.as_ref());
        let tunnel = state.and_then(|state| state.tunnels.iter().find(|tunnel| tunnel.host == to));
        Direction { from, to, answers: state.is_some(), tunnel }
    };
    let [a, b] = &link.ends;
    [direction(a, b), direction(b, a)]
}

fn row(Described { link, directions }: &Described<'_>) -> [String; 10] {
    let [a, b] = &link.ends;
    let tunnel = directions[0].tunnel.filter(|tunnel| tunnel.datagram_bytes > 0);
    let cell = |value: Option<String>| value.unwrap_or_else(|| NOTHING.into());
    [
        a.clone(),
        b.clone(),
        link.cost.to_string(),
        if link.up { "up" } else { "down" }.into(),
        if link.plain { "no" } else { "yes" }.into(),
        cell(link.carrier.map(|carrier| carrier.name().to_owned())),
        cell(tunnel.map(|tunnel| tunnel.datagram_bytes.to_string())),
        cell(tunnel.and_then(|tunnel| tunnel.round_trip_us).map(|us| format!("{:.2} ms", us as f64 / 1e3))),
        directions.map(lost).join(" / "),
        cell(
            tunnel
                .and_then(|tunnel| tunnel.carries_bits_per_second)
                .map(|bits| format!("{:.0} Mbit/s", bits as f64 / 1e6)),
        ),
    ]
}

/// The share of datagrams that were lost in one direction.
fn lost(direction: Direction<'_>) -> String {
    match direction.tunnel.filter(|tunnel| tunnel.sent > 0) {
        Some(tunnel) => format!("{:.3} %", tunnel.lost as f64 / tunnel.sent as f64 * 100.0),
        None => NOTHING.into(),
    }
}

#[cfg(test)]
mod tests {
    use api::{Carrier, NetHostState};
    use serde_json::json;

    use super::*;

    /// A host with a tunnel to another host, with this round trip time and losses per 1000 datagrams.
    fn host(name: &str, to: &str, round_trip_us: u64, lost: u64) -> NetHost {
        let tunnel = NetTunnel {
            host: to.into(),
            address: Some("192.0.2.1:7701".into()),
            connected: true,
            plain: false,
            carrier: Some(Carrier::Tls),
            by_kernel: false,
            kernel_frames: 0,
            datagram_bytes: 1472,
            carries_bits_per_second: Some(8_000_000),
            round_trip_us: Some(round_trip_us),
            sent: 1000,
            lost,
        };
        let state = NetHostState { tunnels: vec![tunnel], ..NetHostState::default() };
        NetHost { name: name.into(), connected: true, state: Some(state), noted: vec![], failure: None }
    }

    fn status(hosts: Vec<NetHost>) -> NetStatus {
        let link = NetLink {
            ends: ["h1".into(), "h2".into()],
            cost: 7,
            plain: false,
            up: true,
            carrier: Some(Carrier::Tls),
        };
        NetStatus { hosts, links: vec![link], ..NetStatus::default() }
    }

    #[test]
    fn json_has_what_both_hosts_know_and_all_that_the_table_shows() {
        let status = status(vec![host("h1", "h2", 250, 3), host("h2", "h1", 300, 20)]);
        let links = described(&status);
        let cells = ["h1", "h2", "7", "up", "yes", "tls", "1472", "0.25 ms", "0.300 % / 2.000 %", "8 Mbit/s"];
        assert_eq!(row(&links[0]), cells);
        let tunnel = |to: &str, round_trip_us: u64, lost: u64| {
            json!({
                "host": to, "address": "192.0.2.1:7701", "connected": true, "plain": false, "carrier": "tls",
                "by_kernel": false, "kernel_frames": 0, "datagram_bytes": 1472,
                "carries_bits_per_second": 8_000_000, "round_trip_us": round_trip_us, "sent": 1000, "lost": lost,
            })
        };
        let expected = json!([{
            "ends": ["h1", "h2"], "cost": 7, "plain": false, "up": true, "carrier": "tls",
            "directions": [
                {"from": "h1", "to": "h2", "answers": true, "tunnel": tunnel("h2", 250, 3)},
                {"from": "h2", "to": "h1", "answers": true, "tunnel": tunnel("h1", 300, 20)},
            ],
        }]);
        assert_eq!(serde_json::to_value(&links).unwrap(), expected);
    }

    #[test]
    fn silent_hosts_have_no_link_state() {
        let status = status(vec![host("h2", "h1", 300, 20)]);
        let links = described(&status);
        assert_eq!(row(&links[0])[6..], [NOTHING, NOTHING, "- / 2.000 %", NOTHING]);
        let written = serde_json::to_value(&links).unwrap();
        assert_eq!(
            written[0]["directions"][0],
            json!({"from": "h1", "to": "h2", "answers": false, "tunnel": null})
        );
        assert_eq!(written[0]["directions"][1]["answers"], json!(true));
        assert!(unanswered(&links).into_iter().eq(["h1"]));
    }
}
