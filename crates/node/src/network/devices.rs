//! Network devices of this host that are plugged into the overlay.
//!
//! They are noted in a file: after its death, the next node makes them again, with the same MACs and addresses.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use api::Purpose;
use overlay::Mac;
use overlay::switch::{PortId, PortKind};
use overlay_io::plane::Plane;
use overlay_io::tap::{Offloads, OpenError, Tap};
use rpc::wire::reason;
use serde::Deserialize;
use tokio::process::Command;

/// The most devices of a host.
const MOST: usize = 1024;

/// See the module.
pub struct Devices {
    file: PathBuf,
    /// What makes their MACs different from those of other hosts' devices.
    host: String,
    wanted: BTreeMap<String, Purpose>,
    plugged: BTreeMap<String, PortId>,
    offloads: Offloads,
}

impl Devices {
    /// What is noted in `file`; none of it is plugged in yet. `offloads`: what the kernel does right.
    pub fn load(file: PathBuf, host: &str, offloads: Offloads) -> Self {
        let read = fs::read(&file).and_then(|bytes| postcard::from_bytes(&bytes).map_err(io::Error::other));
        let wanted = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {error}", file.display());
            }
            BTreeMap::new()
        });
        Self { file, host: host.into(), wanted, plugged: BTreeMap::new(), offloads }
    }

    /// Plugs in all that is noted.
    pub async fn plug_all(&mut self, plane: &Plane) {
        for (device, purpose) in self.wanted.clone() {
            if let Err(reason) = self.plug(plane, &device, &purpose).await {
                tracing::warn!("{device} is not plugged in: {reason}");
            }
        }
    }

    /// Makes a device and plugs it in.
    pub async fn attach(&mut self, plane: &Plane, device: String, purpose: Purpose) -> Result<(), String> {
        if self.plugged.contains_key(&device) {
            return Err(reason(
                &format!("{device} is plugged in already"),
                "take another name, or take it away first: `transhume net detach`",
            ));
        }
        self.plug(plane, &device, &purpose).await?;
        self.wanted.insert(device, purpose);
        self.note()
    }

    /// Takes a device away.
    pub fn detach(&mut self, plane: &Plane, device: &str) -> Result<(), String> {
        let plugged = self.plugged.remove(device);
        if self.wanted.remove(device).is_none() && plugged.is_none() {
            return Err(reason(
                &format!("no device {device} is plugged in"),
                "`transhume net devices` lists those that are",
            ));
        }
        if let Some(port) = plugged {
            plane.unplug(port);
        }
        self.note()
    }

    /// Names and ports of what is plugged in.
    pub fn plugged(&self) -> impl Iterator<Item = (String, PortId)> {
        self.plugged.iter().map(|(name, port)| (name.clone(), *port))
    }

    /// The device at `port`.
    pub fn name_of(&self, port: PortId) -> Option<String> {
        self.plugged.iter().find(|(_, at)| **at == port).map(|(name, _)| name.clone())
    }

    async fn plug(&mut self, plane: &Plane, device: &str, purpose: &Purpose) -> Result<(), String> {
        let port = self.free_port()?;
        let tap = open(device, self.offloads)?;
        let kind = match purpose {
            Purpose::Station { address, mtu } => {
                configure(device, self.mac(device), address.as_deref(), *mtu).await?;
                PortKind::Instance
            }
            Purpose::Proxy { bridge } => {
                put_into(bridge, device, in_bridge(self.mac(device))).await?;
                PortKind::Lan
            }
        };
        plane.plug(port, kind, Arc::new(tap)).map_err(|error| error.to_string())?;
        self.plugged.insert(device.to_owned(), port);
        Ok(())
    }

    fn free_port(&self) -> Result<PortId, String> {
        let is_free = |port: &u16| !self.plugged.values().any(|taken| taken.0 == *port);
        let free = (1..=MOST as u16).find(is_free).map(PortId);
        free.ok_or_else(|| reason(&format!("{MOST} devices are plugged in"), "take some away first"))
    }

    /// The same for the same device at any time.
    fn mac(&self, device: &str) -> Mac {
        let hash = blake3::hash(format!("{}\0{device}", self.host).as_bytes());
        let [a, b, c, d, e, ..] = *hash.as_bytes();
        // A station's, and nobody's from a factory.
        Mac([0x02, a, b, c, d, e])
    }

    fn note(&self) -> Result<(), String> {
        let noted = postcard::to_stdvec(&self.wanted).map_err(io::Error::other);
        let noted = noted.and_then(|bytes| private::replace(&self.file, &bytes));
        noted.map_err(|error| {
            let what = format!("{}: {error}", self.file.display());
            reason(&what, "make room; until then the device is lost when the node ends")
        })
    }
}

/// The MAC of a device in a bridge, which takes over the lowest MAC that is in it unless it has one of its own: not ours.
fn in_bridge(Mac([_, rest @ ..]): Mac) -> Mac {
    let [a, b, c, d, e] = rest;
    Mac([0xfe, a, b, c, d, e])
}

/// Makes the device.
fn open(device: &str, offloads: Offloads) -> Result<Tap, String> {
    let mut tap = Tap::new(device).map_err(|error| {
        let way_out = match &error {
            OpenError::Refused { .. } => "take another name: `ip link` lists those that are taken",
            OpenError::Name(_) | OpenError::NoDriver(_) => "",
        };
        reason(&with_source(&error), way_out)
    })?;
    tap.set_offloads(offloads).map_err(|error| format!("{device}: {error}"))?;
    Ok(tap)
}

fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

async fn configure(device: &str, mac: Mac, address: Option<&str>, mtu: u32) -> Result<(), String> {
    let (mac, mtu) = (mac.to_string(), mtu.to_string());
    ip(&["link", "set", "dev", device, "address", &mac, "mtu", &mtu, "up"]).await?;
    match address {
        Some(address) => ip(&["address", "add", address, "dev", device]).await.map(drop),
        None => Ok(()),
    }
}

/// Puts the device into a bridge, with whose LAN it has to share the MTU.
async fn put_into(bridge: &str, device: &str, mac: Mac) -> Result<(), String> {
    let no_bridge = || {
        let way_out = "make one, put the LAN's interface into it (`ip link add br0 type bridge`, \
                       `ip link set eth0 master br0`), and give it the interface's address";
        reason(&format!("{bridge} is no bridge of this host"), way_out)
    };
    // Not from /sys, which may show another network namespace.
    let about =
        ip(&["-json", "link", "show", "dev", bridge, "type", "bridge"]).await.map_err(|_| no_bridge())?;
    let mtu = about_mtu(&about).ok_or_else(no_bridge)?.to_string();
    let mac = mac.to_string();
    ip(&["link", "set", "dev", device, "address", &mac, "mtu", &mtu, "master", bridge, "up"]).await.map(drop)
}

/// The MTU of the first link in what `ip -json link` says.
fn about_mtu(about: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Link {
        mtu: Option<u32>,
    }
    let links: Vec<Link> = serde_json::from_slice(about).ok()?;
    links.first()?.mtu
}

/// Runs `ip`, and returns what it says.
async fn ip(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let called = Command::new("ip").args(arguments).output().await;
    let called = called
        .map_err(|error| reason(&format!("`ip` cannot be run: {error}"), "install iproute2 on this host"))?;
    if called.status.success() {
        return Ok(called.stdout);
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&called.stderr).trim()))
}
