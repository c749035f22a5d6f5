//! `transhume net status`, `devices`, `links` and `macs`

use std::process::ExitCode;

use api::{Carrier, Event, NetDevice, NetHost, NetLink, NetMac, NetStatus, NetTunnel, Request};
use clap::Args;
use serde::Serialize;

use crate::cli::target::{Target, unexpected};
use crate::failure::Result;
use crate::{output, table};

/// What stands in a cell that has nothing to say.
const NOTHING: &str = "-";

/// Shows how the overlay is: its topology, and each host's part of it
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net status\n  transhume net status --json | jq '.hosts[].state.dropped'"
)]
pub struct Status {
    /// Writes JSON
    #[arg(long)]
    json: bool,
}

/// Lists the network devices that are plugged in
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net devices\n  transhume net devices --json | jq -r '.[].name'"
)]
pub struct Devices {
    /// Writes JSON
    #[arg(long)]
    json: bool,
}

/// Lists the links between hosts
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net links\n  transhume net links --json | jq '.[] | select(.up | not)'"
)]
pub struct Links {
    /// Writes JSON
    #[arg(long)]
    json: bool,
}

/// Lists where MACs are, as each host knows it
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net macs\n  transhume net macs --json | jq -r '.[] | select(.known_by == \"h1\") | .mac'"
)]
pub struct Macs {
    /// Writes JSON
    #[arg(long)]
    json: bool,
}

/// Something of a host's.
#[derive(Serialize)]
struct Of<'a, T> {
    host: &'a str,
    #[serde(flatten)]
    what: &'a T,
}

/// A MAC, and the host that knows it.
#[derive(Serialize)]
struct KnownMac {
    known_by: String,
    #[serde(flatten)]
    mac: NetMac,
}

fn state(target: &Target) -> Result<NetStatus> {
    let mut client = target.send(&Request::Network)?;
    let mut status = NetStatus::default();
    loop {
        match client.next_event()? {
            Event::Network(network) => status.network = network,
            Event::NetHost(host) => status.hosts.push(*host),
            Event::NetLinks(links) => status.links.extend(links),
            Event::Done => return Ok(status),
            Event::Failed(failure) => return Err(failure.into()),
            event => return Err(unexpected(&event)),
        }
    }
}

fn known_macs(target: &Target) -> Result<Vec<KnownMac>> {
    let mut client = target.send(&Request::Macs)?;
    let mut known = Vec::new();
    loop {
        match client.next_event()? {
            Event::NetMacs { host, macs } => {
                known.extend(macs.into_iter().map(|mac| KnownMac { known_by: host.clone(), mac }));
            }
            Event::Done => return Ok(known),
            Event::Failed(failure) => return Err(failure.into()),
            event => return Err(unexpected(&event)),
        }
    }
}

impl Status {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let status = state(target)?;
        if self.json {
            output::json(&status)?;
        } else {
            output::write(render(&status))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Devices {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let status = state(target)?;
        let devices = status.hosts.iter().flat_map(|host| {
            let devices = host.state.iter().flat_map(|state| &state.devices);
            devices.map(|what| Of { host: &host.name, what })
        });
        let devices: Vec<_> = devices.collect();
        if self.json {
            output::json(&devices)?;
        } else {
            let rows: Vec<_> = devices.iter().map(device).collect();
            output::write(table::render(["HOST", "DEVICE", "MAC", "STATE", "LOOPS"], &rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Links {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let status = state(target)?;
        if self.json {
            output::json(&status.links)?;
        } else {
            let rows: Vec<_> = status.links.iter().map(|link| self::link(&status.hosts, link)).collect();
            output::write(table::render(
                [
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
                ],
                &rows,
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Macs {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let macs = known_macs(target)?;
        if self.json {
            output::json(&macs)?;
        } else {
            let rows: Vec<_> = macs.iter().map(place).collect();
            output::write(table::render(["MAC", "VLAN", "HOST", "DEVICE", "ORIGIN", "KNOWN BY"], &rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn render(NetStatus { network, hosts, .. }: &NetStatus) -> String {
    if hosts.is_empty() {
        return "no hosts are joined; `transhume net layout star` joins all that are up\n".into();
    }
    let mut text = format!("topology {}, ", network.version);
    text += &match (&network.awaited[..], &network.center) {
        ([], Some(center)) => format!("center {center}\n"),
        ([], None) => "in use\n".into(),
        (awaited, _) => format!("not yet in use: {} must install it\n", awaited.join(", ")),
    };
    let rows: Vec<_> = hosts.iter().map(host).collect();
    text += &table::render(["HOST", "NODE", "TOPOLOGY", "DEVICES", "TUNNELS", "MACS", "DROPPED"], &rows);
    for host in hosts {
        if let Some(failure) = &host.failure {
            text += &format!("{} has not installed the topology: {failure}\n", host.name);
        }
    }
    text
}

fn host(host: &NetHost) -> [String; 7] {
    let Some(state) = &host.state else {
        let nothing = || NOTHING.to_owned();
        return [host.name.clone(), "down".into(), nothing(), nothing(), nothing(), nothing(), nothing()];
    };
    let up = state.tunnels.iter().filter(|tunnel| tunnel.connected).count();
    let is_over_tls = |tunnel: &&NetTunnel| tunnel.connected && tunnel.carrier == Some(Carrier::Tls);
    let over_tls = state.tunnels.iter().filter(is_over_tls).count();
    let dropped: u64 = state.dropped.iter().map(|(_, count)| count).sum();
    [
        host.name.clone(),
        "up".into(),
        state.version.map_or_else(|| NOTHING.into(), |version| version.to_string()),
        state.devices.len().to_string(),
        match over_tls {
            0 => format!("{up}/{}", state.tunnels.len()),
            _ => format!("{up}/{}, {over_tls} tls", state.tunnels.len()),
        },
        state.macs.to_string(),
        dropped.to_string(),
    ]
}

fn device(of: &Of<'_, NetDevice>) -> [String; 5] {
    let Of { host, what: NetDevice { name, mac, failure, open, blocked_s, loops } } = of;
    let state = match (failure, open, blocked_s) {
        (Some(failure), ..) => format!("failed: {failure}"),
        (None, false, _) => "moving".into(),
        (None, true, 0) => "up".into(),
        (None, true, seconds) => format!("blocked {seconds} s"),
    };
    [(*host).to_owned(), name.clone(), mac.clone(), state, loops.to_string()]
}

fn link(hosts: &[NetHost], link: &NetLink) -> [String; 10] {
    let [a, b] = &link.ends;
    let from = hosts.iter().find(|host| host.name == *a).and_then(|host| host.state.as_ref());
    let tunnel = from.and_then(|state| state.tunnels.iter().find(|tunnel| tunnel.host == *b));
    let tunnel = tunnel.filter(|tunnel| tunnel.datagram_bytes > 0);
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
        cell(
            tunnel
                .filter(|tunnel| tunnel.sent > 0)
                .map(|tunnel| format!("{:.3} %", tunnel.lost as f64 / tunnel.sent as f64 * 100.0)),
        ),
        cell(
            tunnel
                .and_then(|tunnel| tunnel.carries_bits_per_second)
                .map(|bits| format!("{:.0} Mbit/s", bits as f64 / 1e6)),
        ),
    ]
}

fn place(known: &KnownMac) -> [String; 6] {
    let KnownMac { known_by, mac } = known;
    let text = |device: &Option<String>| device.clone().unwrap_or_else(|| NOTHING.into());
    [
        mac.mac.clone(),
        if mac.vlan == 0 { NOTHING.into() } else { mac.vlan.to_string() },
        mac.host.clone(),
        text(&mac.device),
        if mac.managed { "managed" } else { "learned" }.into(),
        known_by.clone(),
    ]
}
