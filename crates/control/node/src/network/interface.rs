//! Creates network devices of this host with `ip`.

use std::time::Duration;

use super::namespace::{Identity, Namespace};
use super::redirection::{self, Source};
use overlay::Mac;
use overlay_io::tap::{Offloads, OpenError, Tap};
use rpc::net::{Device, DeviceKind, FoundTap};
use rpc::wire::reason;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

/// How long `ip` may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A network device that this node created or adopted.
pub struct Interface {
    /// The TAP; closing it deletes the device, unless it is persistent.
    pub tap: Tap,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its named network namespace, if it has one.
    pub namespace: Option<Identity>,
    /// The TAP of another program from which frames are redirected to it, if there is one.
    pub source: Option<Source>,
}

/// The TAP `name` in the network namespace of this name, or in the node's own, if there is one. One that no program has open must be
/// persistent.
///
/// # Errors
/// A [`reason`], if `ip` fails, or the TAP cannot be attached.
pub async fn look(name: &str, netns: Option<&str>) -> Result<Option<FoundTap>, String> {
    let namespace = netns.map(Namespace::open).transpose()?;
    let Some(link) = link_of(name, netns).await?.filter(Link::is_tap) else { return Ok(None) };
    let is_open = is_open(name, namespace.as_ref())?;
    if is_open {
        redirection::check_free(name, &link)?;
    } else if link.tap_info().is_some_and(|tap| tap.multi_queue) {
        let what = format!("{name} is a TAP with several queues, which cannot be attached");
        let remedy = format!("create it with one queue: `ip tuntap add dev {name} mode tap`");
        return Err(reason(&what, &remedy));
    }
    Ok(link.address.parse().ok().map(|mac| FoundTap { mac, mtu: link.mtu, is_open }))
}

/// Whether another program has the TAP `name` open.
fn is_open(name: &str, namespace: Option<&Namespace>) -> Result<bool, String> {
    let adopt = || Tap::adopt(name);
    let adopted = namespace.map_or_else(|| Ok(adopt()), |namespace| namespace.enter(adopt))?;
    Ok(matches!(adopted, Err(OpenError::InUse(_))))
}

/// The network device `name` in the network namespace of this name, or in the node's own, if there is one.
///
/// # Errors
/// If `ip` fails.
pub async fn link_of(name: &str, netns: Option<&str>) -> Result<Option<Link>, String> {
    match ip_in(netns, &["-json", "-details", "link", "show", "dev", name]).await {
        Ok(about) => Ok(link_in(&about)),
        // The device does not exist, or its name is invalid.
        Err(said) if ["does not exist", "not a valid ifname"].iter().any(|words| said.contains(words)) => {
            Ok(None)
        }
        Err(said) => Err(said),
    }
}

/// Adopts a persistent TAP, which must have `mac`. Returns it with its MTU in bytes.
async fn adopt(
    name: &str,
    mac: Mac,
    namespace: Option<&Namespace>,
    offloads: Offloads,
) -> Result<(Tap, u32), String> {
    let netns = namespace.map(Namespace::name);
    let found = look(name, netns).await?.filter(|found| !found.is_open).ok_or_else(|| absent(name))?;
    if found.mac != mac {
        let what = format!("{name} now has the MAC {}, and had {mac} when it was attached", found.mac);
        let remedy = format!(
            "restore the MAC with `ip link set dev {name} address {mac}`, or attach the device again with \
             `transhume net detach` and `transhume net attach`"
        );
        return Err(reason(&what, &remedy));
    }
    let tap = open(namespace, offloads, || Tap::adopt(name))?;
    ip_in(netns, &["link", "set", "dev", name, "up"]).await?;
    Ok((tap, found.mtu))
}

fn absent(name: &str) -> String {
    let remedy = format!(
        "create it with `ip tuntap add dev {name} mode tap`, or detach it with `transhume net detach`"
    );
    reason(&format!("there is no persistent TAP {name} any more"), &remedy)
}

/// Makes `device`, with `offloads` that the kernel does correctly.
///
/// # Errors
/// A [`reason`].
pub async fn make(device: &Device, offloads: Offloads) -> Result<Interface, String> {
    let Device { name, mac, kind } = device;
    check_address(kind)?;
    let namespace = kind.netns().map(Namespace::open).transpose()?;
    let new = || open(namespace.as_ref(), offloads, || Tap::new(name));
    let ip = async |arguments: &[&str]| ip_in(kind.netns(), arguments).await;
    let mac_text = mac.to_string();
    let (tap, mtu) = match kind {
        DeviceKind::Station { address, mtu } | DeviceKind::Contained { address, mtu, .. } => {
            let tap = new()?;
            ip(&["link", "set", "dev", name, "address", &mac_text, "mtu", &mtu.to_string(), "up"]).await?;
            if let Some(address) = address {
                ip(&["address", "add", address, "dev", name]).await?;
            }
            (tap, *mtu)
        }
        DeviceKind::Proxy { bridge } => {
            let tap = new()?;
            // The LAN and the device have to share the MTU.
            let mtu = mtu_of_bridge(bridge).await?;
            let to = ["address", &mac_text, "mtu", &mtu.to_string(), "master", bridge, "up"];
            ip(&[&["link", "set", "dev", name], &to[..]].concat()).await?;
            (tap, mtu)
        }
        DeviceKind::Adopted { .. } => adopt(name, *mac, namespace.as_ref(), offloads).await?,
        DeviceKind::Redirected { .. } => {
            return redirection::begin(device, namespace.as_ref(), offloads).await;
        }
    };
    let namespace = namespace.map(|namespace| namespace.identity()).transpose()?;
    Ok(Interface { tap, mtu, namespace, source: None })
}

/// Checks that a device with the MTU of `kind` can have its address. The kernel would refuse the address later, without a reason.
fn check_address(kind: &DeviceKind) -> Result<(), String> {
    /// RFC 8200, section 5.
    const LEAST_FOR_IPV6: u32 = 1280;
    match kind {
        DeviceKind::Station { address: Some(address), mtu }
        | DeviceKind::Contained { address: Some(address), mtu, .. }
            if address.contains(':') && *mtu < LEAST_FOR_IPV6 =>
        {
            let what = format!("a device with an MTU of {mtu} cannot have the IPv6 address {address}");
            Err(reason(&what, &format!("choose an MTU of at least {LEAST_FOR_IPV6}, or an IPv4 address")))
        }
        _ => Ok(()),
    }
}

/// Whether the device `name` is known to be in no bridge, or in a bridge other than `bridge`.
pub async fn has_left(name: &str, bridge: &str) -> bool {
    let about = ip(&["-json", "link", "show", "dev", name]).await;
    let link = about.ok().and_then(|about| link_in(&about));
    link.is_some_and(|link| link.master.as_deref() != Some(bridge))
}

/// Opens a TAP in a network namespace, or in the node's own.
pub fn open(
    namespace: Option<&Namespace>,
    offloads: Offloads,
    open: impl FnOnce() -> Result<Tap, OpenError> + Send,
) -> Result<Tap, String> {
    let opened = match namespace {
        Some(namespace) => namespace.enter(open)?,
        None => open(),
    };
    let mut tap = opened.map_err(|error| {
        let remedy = match &error {
            OpenError::Refused { .. } => "choose another name: `ip link` lists those in use",
            OpenError::InUse(_) => {
                "attach another device and put both into a bridge, or end the program that uses it, such as a virtual machine"
            }
            OpenError::Name(_) | OpenError::NoDriver(_) | OpenError::Absent(_) => "",
        };
        reason(&with_source(&error), remedy)
    })?;
    tap.set_offloads(offloads).map_err(|error| error.to_string())?;
    Ok(tap)
}

fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

async fn mtu_of_bridge(bridge: &str) -> Result<u32, String> {
    let no_bridge = || {
        let remedy = "create a bridge, put the LAN's interface into it (`ip link add br0 type bridge`, \
                       `ip link set eth0 master br0`), and give it the interface's address";
        reason(&format!("{bridge} is not a bridge on this host"), remedy)
    };
    // Not from /sys, which may show another network namespace.
    let about =
        ip(&["-json", "link", "show", "dev", bridge, "type", "bridge"]).await.map_err(|_| no_bridge())?;
    link_in(&about).map(|link| link.mtu).ok_or_else(no_bridge)
}

/// The output of `ip -json -details link` about a link.
#[derive(Deserialize)]
pub struct Link {
    #[serde(rename = "ifindex")]
    pub index: u32,
    pub address: String,
    pub mtu: u32,
    /// The bridge that it is in.
    pub master: Option<String>,
    flags: Vec<String>,
    linkinfo: Option<LinkInfo>,
}

/// A link with its name.
#[derive(Deserialize)]
pub struct Named {
    #[serde(rename = "ifname")]
    pub name: String,
    #[serde(flatten)]
    pub link: Link,
}

impl Link {
    /// The kernel's word for its kind, if it is no hardware.
    pub fn kind(&self) -> Option<&str> {
        self.linkinfo.as_ref()?.info_kind.as_deref()
    }

    fn tap_info(&self) -> Option<TapInfo> {
        let info = self.linkinfo.as_ref()?.info_data.clone()?;
        serde_json::from_value::<TapInfo>(info).ok().filter(|tap| tap.kind == "tap")
    }

    /// Whether it is a TAP.
    pub fn is_tap(&self) -> bool {
        self.tap_info().is_some()
    }

    /// Whether it is up, and a TAP's program has it open.
    pub fn has_carrier(&self) -> bool {
        self.flags.iter().any(|flag| flag == "LOWER_UP")
    }
}

/// A field of the output with `-details`, about links that are no hardware.
#[derive(Deserialize)]
struct LinkInfo {
    info_kind: Option<String>,
    /// Other fields for each kind of link.
    info_data: Option<serde_json::Value>,
}

/// The part about a TUN or TAP.
#[derive(Deserialize)]
struct TapInfo {
    #[serde(rename = "type")]
    kind: String,
    multi_queue: bool,
}

/// The first link in the output of `ip`.
fn link_in(about: &[u8]) -> Option<Link> {
    serde_json::from_slice::<Vec<Link>>(about).ok()?.into_iter().next()
}

/// Runs `ip` in the network namespace of this name, or in the node's own, and returns its output.
pub async fn ip_in(netns: Option<&str>, arguments: &[&str]) -> Result<Vec<u8>, String> {
    run_in(netns, "ip", arguments).await
}

/// The same with `tc`.
pub async fn tc_in(netns: Option<&str>, arguments: &[&str]) -> Result<Vec<u8>, String> {
    run_in(netns, "tc", arguments).await
}

async fn run_in(netns: Option<&str>, program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    match netns {
        Some(netns) => run(program, &[&["-netns", netns], arguments].concat()).await,
        None => run(program, arguments).await,
    }
}

/// Runs `ip`, and returns its output.
async fn ip(arguments: &[&str]) -> Result<Vec<u8>, String> {
    run("ip", arguments).await
}

async fn run(program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let called = timeout(LIMIT, Command::new(program).args(arguments).kill_on_drop(true).output()).await;
    let said = |what: &str| format!("{program} {}: {}", arguments.join(" "), what.trim());
    let called = called.map_err(|_| said("timed out"))?;
    let called = called.map_err(|error| {
        reason(&format!("`{program}` cannot be run: {error}"), "install iproute2 on this host")
    })?;
    if called.status.success() {
        return Ok(called.stdout);
    }
    Err(said(&String::from_utf8_lossy(&called.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_ipv6_address_with_too_small_an_mtu_is_refused_before_the_device_is_made() {
        let refused = async |kind| {
            let device = Device { name: "transhume-test".into(), mac: Mac([2, 0, 0, 0, 0, 1]), kind };
            make(&device, Offloads::ALL).await.err().unwrap_or_default()
        };
        let address = Some("fd00::77/64".to_owned());
        let station = DeviceKind::Station { address: address.clone(), mtu: 1279 };
        let contained = DeviceKind::Contained { netns: "none".into(), address: address.clone(), mtu: 68 };
        for (kind, mtu) in [(station, "1279"), (contained, "68")] {
            let said = refused(kind).await;
            assert!(said.contains("fd00::77/64") && said.contains(mtu) && said.contains("1280"), "{said}");
        }
        assert_eq!(check_address(&DeviceKind::Station { address, mtu: 1280 }), Ok(()));
        assert_eq!(
            check_address(&DeviceKind::Station { address: Some("10.88.0.1/24".into()), mtu: 68 }),
            Ok(())
        );
    }
}
