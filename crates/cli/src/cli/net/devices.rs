//! `transhume net devices`

use std::process::ExitCode;

use api::{NetDevice, NetHost};
use clap::Args;
use serde::Serialize;

use super::available;
use super::show::{NOTHING, absence, state};
use crate::cli::target::Target;
use crate::failure::Result;
use crate::{output, table};

/// Lists the attached network devices, or those that can be attached
///
/// Devices of hosts that are `away` (not connected) or `silent` (not answering) are shown as stored by the coordinator.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net devices\n  transhume net devices --json | jq -r '.[].name'\n  \
                  transhume net devices --json | jq '.[] | select(.state != \"up\")'\n  \
                  transhume net devices --available"
)]
pub struct Arguments {
    /// Lists the TAPs and bridges of all hosts that `transhume net attach` can attach
    #[arg(long)]
    available: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A device, as `--json` prints it.
#[derive(Serialize)]
struct Listed<'a> {
    host: &'a str,
    state: &'static str,
    #[serde(flatten)]
    device: &'a NetDevice,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        if self.available {
            return available::list(target, self.json);
        }
        let status = state(target)?;
        let devices = listed(&status.hosts);
        if self.json {
            output::json(&devices)?;
        } else {
            let rows: Vec<_> = devices.iter().map(row).collect();
            let titles =
                ["HOST", "DEVICE", "KIND", "BRIDGE", "NETNS", "ADDRESS", "MTU", "MAC", "STATE", "LOOPS"];
            output::write(table::render(titles, &rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn listed(hosts: &[NetHost]) -> Vec<Listed<'_>> {
    hosts.iter().flat_map(of_host).collect()
}

fn of_host(host: &NetHost) -> impl Iterator<Item = Listed<'_>> {
    let devices = host.state.as_ref().map_or(&host.noted, |state| &state.devices);
    let state = |device| if host.state.is_some() { state_of(device) } else { absence(host) };
    devices.iter().map(move |device| Listed { host: &host.name, state: state(device), device })
}

fn state_of(device: &NetDevice) -> &'static str {
    match (&device.failure, device.open, device.blocked_s) {
        (Some(_), ..) => "failed",
        (None, false, _) => "moving",
        (None, true, 0) => "up",
        (None, true, _) => "blocked",
    }
}

fn row(Listed { host, state, device }: &Listed<'_>) -> [String; 10] {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| NOTHING.into());
    [
        (*host).to_owned(),
        device.name.clone(),
        match (device.kind, device.adopted) {
            (kind, false) => kind.name().into(),
            (kind, true) => format!("{}, adopted", kind.name()),
        },
        text(&device.bridge),
        text(&device.netns),
        text(&device.address),
        text(&device.mtu_bytes.map(|mtu| mtu.to_string())),
        device.mac.clone(),
        match (&device.failure, device.blocked_s) {
            (Some(failure), _) => format!("{state}: {failure}"),
            (None, 0) => (*state).to_owned(),
            (None, seconds) => format!("{state} {seconds} s"),
        },
        device.loops.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use api::{NetDeviceKind, NetHostState};
    use serde_json::json;

    use super::*;

    fn station() -> NetDevice {
        NetDevice {
            name: "tap1".into(),
            mac: "02:00:00:00:00:01".into(),
            kind: NetDeviceKind::Station,
            bridge: None,
            netns: Some("web".into()),
            adopted: false,
            address: Some("10.88.0.1/24".into()),
            mtu_bytes: Some(1400),
            failure: None,
            open: true,
            blocked_s: 0,
            loops: 0,
        }
    }

    /// A host that reports `devices`.
    fn answering(devices: Vec<NetDevice>) -> NetHost {
        let state = Some(NetHostState { devices, ..NetHostState::default() });
        NetHost { name: "h1".into(), connected: true, state, noted: vec![], failure: None }
    }

    #[test]
    fn lists_kind_and_state_of_devices() {
        let proxy = NetDevice {
            kind: NetDeviceKind::Proxy,
            bridge: Some("br0".into()),
            netns: None,
            address: None,
            blocked_s: 4,
            loops: 2,
            ..station()
        };
        let failed = NetDevice { failure: Some("no room".into()), mtu_bytes: None, ..station() };
        let hosts = [answering(vec![
            station(),
            proxy,
            failed,
            NetDevice { open: false, adopted: true, ..station() },
        ])];
        let devices = listed(&hosts);
        let (mac, address) = ("02:00:00:00:00:01", "10.88.0.1/24");
        let expected = [
            ["h1", "tap1", "station", NOTHING, "web", address, "1400", mac, "up", "0"],
            ["h1", "tap1", "proxy", "br0", NOTHING, NOTHING, "1400", mac, "blocked 4 s", "2"],
            ["h1", "tap1", "station", NOTHING, "web", address, NOTHING, mac, "failed: no room", "0"],
            ["h1", "tap1", "station, adopted", NOTHING, "web", address, "1400", mac, "moving", "0"],
        ];
        assert_eq!(devices.iter().map(row).collect::<Vec<_>>(), expected);
        assert_eq!(
            serde_json::to_value(&devices[1]).unwrap(),
            json!({
                "host": "h1", "state": "blocked", "name": "tap1", "mac": mac, "kind": "proxy", "bridge": "br0",
                "netns": null, "adopted": false, "address": null, "mtu_bytes": 1400, "failure": null, "open": true, "blocked_s": 4, "loops": 2,
            })
        );
    }

    #[test]
    fn devices_of_silent_hosts_are_listed_as_stored() {
        let noted = || vec![NetDevice { open: false, ..station() }];
        let silent = |connected| NetHost { connected, state: None, noted: noted(), ..answering(vec![]) };
        let hosts = [silent(false), silent(true)];
        let devices = listed(&hosts);
        assert_eq!(
            devices.iter().map(|device| row(device)[8].clone()).collect::<Vec<_>>(),
            ["away", "silent"]
        );
        assert_eq!(serde_json::to_value(&devices[0]).unwrap()["state"], json!("away"));
    }
}
