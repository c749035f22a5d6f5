//! `transhume net status`, `devices` and `macs`

use std::process::ExitCode;

use api::{Carrier, Event, NetDevice, NetHost, NetMac, NetStatus, NetTunnel, Request};
use clap::Args;
use serde::Serialize;

use crate::cli::target::{Target, unexpected};
use crate::failure::Result;
use crate::{output, table};

/// What stands in a cell that has nothing to say.
pub const NOTHING: &str = "-";

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

/// How the overlay is.
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
