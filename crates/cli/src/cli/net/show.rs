//! `transhume net status` and `macs`

use std::process::ExitCode;

use api::{Carrier, Event, NetHost, NetMac, NetStatus, NetTunnel, Request};
use clap::Args;
use serde::Serialize;

use crate::cli::target::Target;
use crate::failure::{Result, unexpected};
use crate::{output, table};

/// The content of an empty cell.
pub const NOTHING: &str = "-";

/// Shows the state of the overlay: its topology and hosts
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net status\n  transhume net status --json | jq '.hosts[].state.dropped'"
)]
pub struct Status {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Lists the locations of MACs, as each host knows them
///
/// With --json, the MACs are in `macs`, and hosts that do not answer in `unanswered`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net macs\n  transhume net macs --json | jq -r '.macs[] | select(.known_by == \"h1\") | .mac'"
)]
pub struct Macs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// All known MACs, and the hosts that have not answered.
#[derive(Default, Serialize)]
struct KnownMacs {
    macs: Vec<KnownMac>,
    unanswered: Vec<String>,
}

/// A MAC, and the host that knows it.
#[derive(Serialize)]
struct KnownMac {
    known_by: String,
    #[serde(flatten)]
    mac: NetMac,
}

/// The state of the overlay.
pub fn state(target: &Target) -> Result<NetStatus> {
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

/// Reports the hosts that are missing in a table.
pub fn tell_unanswered<'a>(hosts: impl IntoIterator<Item = &'a str>) {
    let hosts: Vec<_> = hosts.into_iter().collect();
    if !hosts.is_empty() {
        eprintln!("transhume: no answer from {}: their entries are missing", hosts.join(", "));
    }
}

fn known_macs(target: &Target) -> Result<KnownMacs> {
    let mut client = target.send(&Request::Macs)?;
    let mut known = KnownMacs::default();
    loop {
        match client.next_event()? {
            Event::NetMacs { host, macs } => {
                known.macs.extend(macs.into_iter().map(|mac| KnownMac { known_by: host.clone(), mac }));
            }
            Event::NetUnanswered { hosts } => known.unanswered = hosts,
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

impl Macs {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let known = known_macs(target)?;
        if self.json {
            output::json(&known)?;
        } else {
            let rows: Vec<_> = known.macs.iter().map(place).collect();
            output::write(table::render(["MAC", "VLAN", "HOST", "DEVICE", "ORIGIN", "KNOWN BY"], &rows))?;
            tell_unanswered(known.unanswered.iter().map(String::as_str));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The state of a host that does not answer.
pub fn absence(host: &NetHost) -> &'static str {
    if host.connected { "silent" } else { "away" }
}

fn render(NetStatus { network, hosts, .. }: &NetStatus) -> String {
    if hosts.is_empty() {
        return "the overlay has no hosts; add all connected hosts with `transhume net layout star`\n".into();
    }
    let mut text = format!("topology {}, ", network.version);
    text += &match (&network.awaited[..], &network.center) {
        ([], Some(center)) => format!("center {center}\n"),
        ([], None) => "in use\n".into(),
        (awaited, _) => format!("not yet in use: waiting for {}\n", awaited.join(", ")),
    };
    let rows: Vec<_> = hosts.iter().map(host).collect();
    text += &table::render(["HOST", "NODE", "TOPOLOGY", "DEVICES", "TUNNELS", "MACS", "DROPPED"], &rows);
    for host in hosts {
        if let Some(failure) = &host.failure {
            text += &format!("{} has not installed the topology: {failure}\n", host.name);
        }
        for off in host.state.iter().flat_map(|state| &state.switched_off) {
            text += &format!("{} has switched off a failing offload: {}\n", host.name, off.in_words());
        }
    }
    text
}

fn host(host: &NetHost) -> [String; 7] {
    let Some(state) = &host.state else {
        let nothing = || NOTHING.to_owned();
        let node = if host.connected { absence(host) } else { "down" };
        return [host.name.clone(), node.into(), nothing(), nothing(), nothing(), nothing(), nothing()];
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
