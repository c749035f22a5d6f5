//! A TAP that another program has open, such as a virtual machine (ADR 0050).
//!
//! ```text
//! guest ── QEMU ── TAP ⇄ `th-…` ── plane
//! ```
//!
//! A TAP has one reader and writer, and here that is the other program. So the node makes a TAP of its own beside it, and the kernel
//! redirects each frame that comes in at one of them: it leaves through the other, with its offloads. From the machine it takes only
//! frames of the station's own MAC. The TAP of the node goes with the node; the filters stay and drop frames until the next node, which
//! knows them by their precedence, replaces them.

use std::fs;

use overlay_io::tap::{Offloads, Tap};
use rpc::net::Device;
use rpc::wire::reason;
use serde::Deserialize;

use super::interface::{Interface, Link, ip_in, link_of, open, tc_in};
use super::namespace::Namespace;

/// The precedence of the filters.
const PRECEDENCE: u32 = 29_810;

/// The TAP that is redirected, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    index: u32,
}

/// Refuses a TAP in a bridge, which forwards its frames already.
///
/// # Errors
/// A [`reason`].
pub fn check_free(name: &str, link: &Link) -> Result<(), String> {
    let Some(master) = &link.master else { return Ok(()) };
    let remedy = format!(
        "take it out with `ip link set dev {name} nomaster`, or attach another device and put that into {master}"
    );
    Err(reason(&format!("{name} is a port of {master}"), &remedy))
}

/// Redirects frames between the TAP of `device` and a new one, with `offloads`.
///
/// # Errors
/// A [`reason`].
pub async fn begin(
    device: &Device,
    namespace: Option<&Namespace>,
    offloads: Offloads,
) -> Result<Interface, String> {
    let (name, netns) = (&device.name, namespace.map(Namespace::name));
    ip_in(netns, &["link", "set", "dev", name, "up"]).await.map_err(|_| gone(name))?;
    let link = link_of(name, netns).await?.filter(Link::is_tap).ok_or_else(|| gone(name))?;
    check_free(name, &link)?;
    if !link.has_carrier() {
        return Err(unused(name));
    }
    forget_former(name, netns).await?;
    let own = format!("th-{:x}", link.index);
    let tap = open(namespace, offloads, || Tap::new(&own))?;
    without_ipv6(namespace, &own)?;
    let mtu = link.mtu.to_string();
    ip_in(netns, &["link", "set", "dev", &own, "mtu", &mtu, "arp", "off", "up"]).await?;
    redirect(netns, &own, &["u32", "0", "0"], name).await?;
    redirect(netns, name, &["ether", "src", &device.mac.to_string()], &own).await?;
    let namespace = namespace.map(Namespace::identity).transpose()?;
    Ok(Interface { tap, mtu: link.mtu, namespace, source: Some(Source { index: link.index }) })
}

/// Gives the TAP `name` back: its frames go to its host again.
pub async fn end(name: &str, netns: Option<&str>) {
    // One that is gone has no filters.
    if let Err(reason) = forget_former(name, netns).await {
        tracing::warn!("{name} keeps its filters: {reason}");
    }
}

/// Whether the TAP `name` is not the `source` any more, or no program has it open.
pub async fn has_ended(name: &str, netns: Option<&str>, source: Source) -> bool {
    let link = link_of(name, netns).await.ok().flatten();
    !link.is_some_and(|link| link.index == source.index && link.has_carrier())
}

fn gone(name: &str) -> String {
    reason(
        &format!("there is no TAP {name} any more"),
        "start the virtual machine that uses it, or detach it with `transhume net detach`",
    )
}

fn unused(name: &str) -> String {
    let remedy = "start the virtual machine, or detach the TAP with `transhume net detach`";
    reason(&format!("no program has the TAP {name} open: its virtual machine has ended"), remedy)
}

/// Lets frames that come in at `from` and match leave through `to`.
async fn redirect(netns: Option<&str>, from: &str, what: &[&str], to: &str) -> Result<(), String> {
    tc_in(netns, &["qdisc", "add", "dev", from, "ingress"]).await?;
    let precedence = PRECEDENCE.to_string();
    let filter =
        ["filter", "add", "dev", from, "ingress", "pref", &precedence, "protocol", "all", "u32", "match"];
    let action = ["action", "mirred", "egress", "redirect", "dev", to];
    tc_in(netns, &[&filter, what, &action].concat()).await.map(drop)
}

/// Removes the redirection of a former node. Other filters are the user's.
async fn forget_former(name: &str, netns: Option<&str>) -> Result<(), String> {
    let queues: Vec<Queue> = listed(&tc_in(netns, &["-json", "qdisc", "show", "dev", name]).await?);
    if !queues.iter().any(|queue| ["ingress", "clsact"].contains(&queue.kind.as_str())) {
        return Ok(());
    }
    let filters: Vec<Filter> =
        listed(&tc_in(netns, &["-json", "filter", "show", "dev", name, "ingress"]).await?);
    if filters.iter().any(|filter| filter.pref != PRECEDENCE)
        || queues.iter().any(|queue| queue.kind == "clsact")
    {
        let remedy = format!("remove them with `tc qdisc del dev {name} ingress` (or `clsact`)");
        return Err(reason(&format!("{name} has traffic filters of another program"), &remedy));
    }
    tc_in(netns, &["qdisc", "del", "dev", name, "ingress"]).await.map(drop)
}

/// A queue of a device, in the output of `tc`.
#[derive(Deserialize)]
struct Queue {
    kind: String,
}

/// A filter of a device, in the output of `tc`.
#[derive(Deserialize)]
struct Filter {
    pref: u32,
}

fn listed<T: for<'a> Deserialize<'a>>(output: &[u8]) -> Vec<T> {
    serde_json::from_slice(output).unwrap_or_default()
}

/// The host must say nothing on the device, as it does with IPv6. Kernels without IPv6 have nothing to switch off.
fn without_ipv6(namespace: Option<&Namespace>, name: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    let switch_off = || fs::write(&path, "1");
    let _absent = match namespace {
        Some(namespace) => namespace.enter(switch_off)?,
        None => switch_off(),
    };
    Ok(())
}
