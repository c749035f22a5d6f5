//! Makes network devices of this host, with `ip`.

use std::time::Duration;

use super::namespace::{Identity, Namespace};
use overlay_io::tap::{Offloads, OpenError, Tap};
use rpc::net::{Device, DeviceKind};
use rpc::wire::reason;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

/// How long `ip` may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A network device that was made.
pub struct Interface {
    /// It is gone when this is dropped.
    pub tap: Tap,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// The network namespace in which it is, if it was to be in one with a name.
    pub namespace: Option<Identity>,
}

/// Makes `device`, with `offloads`, which the kernel does right.
///
/// # Errors
/// As [`reason`] makes them.
pub async fn make(device: &Device, offloads: Offloads) -> Result<Interface, String> {
    let Device { name, mac, kind } = device;
    let mac = mac.to_string();
    let namespace = kind.netns().map(Namespace::open).transpose()?;
    let make = || open(name, offloads);
    let tap = namespace.as_ref().map_or_else(|| Ok(make()), |namespace| namespace.enter(make))??;
    let ip = async |arguments: &[&str]| ip_in(kind.netns(), arguments).await;
    let mtu = match kind {
        DeviceKind::Station { address, mtu } | DeviceKind::Contained { address, mtu, .. } => {
            ip(&["link", "set", "dev", name, "address", &mac, "mtu", &mtu.to_string(), "up"]).await?;
            if let Some(address) = address {
                ip(&["address", "add", address, "dev", name]).await?;
            }
            *mtu
        }
        DeviceKind::Proxy { bridge } => {
            // The LAN and the device have to share the MTU.
            let mtu = mtu_of_bridge(bridge).await?;
            let to = ["address", &mac, "mtu", &mtu.to_string(), "master", bridge, "up"];
            ip(&[&["link", "set", "dev", name], &to[..]].concat()).await?;
            mtu
        }
    };
    let namespace = namespace.map(|namespace| namespace.identity()).transpose()?;
    Ok(Interface { tap, mtu, namespace })
}

fn open(name: &str, offloads: Offloads) -> Result<Tap, String> {
    let mut tap = Tap::new(name).map_err(|error| {
        let way_out = match &error {
            OpenError::Refused { .. } => "take another name: `ip link` lists those that are taken",
            OpenError::Name(_) | OpenError::NoDriver(_) => "",
        };
        reason(&with_source(&error), way_out)
    })?;
    tap.set_offloads(offloads).map_err(|error| format!("{name}: {error}"))?;
    Ok(tap)
}

fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

async fn mtu_of_bridge(bridge: &str) -> Result<u32, String> {
    let no_bridge = || {
        let way_out = "make one, put the LAN's interface into it (`ip link add br0 type bridge`, \
                       `ip link set eth0 master br0`), and give it the interface's address";
        reason(&format!("{bridge} is no bridge of this host"), way_out)
    };
    // Not from /sys, which may show another network namespace.
    let about =
        ip(&["-json", "link", "show", "dev", bridge, "type", "bridge"]).await.map_err(|_| no_bridge())?;
    mtu_in(&about).ok_or_else(no_bridge)
}

/// The MTU of the first link in what `ip -json link` says.
fn mtu_in(about: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Link {
        mtu: Option<u32>,
    }
    let links: Vec<Link> = serde_json::from_slice(about).ok()?;
    links.first()?.mtu
}

/// Runs `ip` in the network namespace of this name, or in the node's own, and returns what it says.
async fn ip_in(netns: Option<&str>, arguments: &[&str]) -> Result<Vec<u8>, String> {
    match netns {
        Some(netns) => ip(&[&["-netns", netns], arguments].concat()).await,
        None => ip(arguments).await,
    }
}

/// Runs `ip`, and returns what it says.
async fn ip(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let called = timeout(LIMIT, Command::new("ip").args(arguments).kill_on_drop(true).output()).await;
    let said = |what: &str| format!("ip {}: {}", arguments.join(" "), what.trim());
    let called = called.map_err(|_| said("it does not end"))?;
    let called = called
        .map_err(|error| reason(&format!("`ip` cannot be run: {error}"), "install iproute2 on this host"))?;
    if called.status.success() {
        return Ok(called.stdout);
    }
    Err(said(&String::from_utf8_lossy(&called.stderr)))
}
