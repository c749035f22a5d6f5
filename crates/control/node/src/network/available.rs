//! Devices of this host that can be attached to the overlay, and are not: VNET's `DEVICES?`.

use std::collections::BTreeSet;

use api::{NetAvailable, NetAvailableKind};

use super::interface::{Named, ip_in};
use super::joined::Joined;

/// The TAPs and bridges in the node's own namespace that are not attached, in the order of names. The devices of instances are in
/// namespaces of their own.
///
/// # Errors
/// If `ip` fails.
pub async fn devices(joined: &Joined) -> Result<Vec<NetAvailable>, String> {
    let listed = ip_in(None, &["-json", "-details", "link", "show"]).await?;
    Ok(of_links(&listed, &attached(joined)))
}

/// The names of devices that are attached, and of bridges with a proxy.
fn attached(joined: &Joined) -> BTreeSet<String> {
    let devices =
        joined.devices.iter().map(|present| &present.device).filter(|device| device.kind.netns().is_none());
    let names =
        devices.flat_map(|device| [Some(device.name.clone()), device.kind.bridge().map(str::to_owned)]);
    names.flatten().collect()
}

fn of_links(listed: &[u8], attached: &BTreeSet<String>) -> Vec<NetAvailable> {
    let links = serde_json::from_slice::<Vec<Named>>(listed).unwrap_or_default();
    let available = |Named { name, link }: Named| {
        let kind = match link.kind() {
            Some("bridge") => NetAvailableKind::Bridge,
            // One that is in a bridge carries that bridge's frames already.
            _ if link.is_tap() && link.master.is_none() && link.has_carrier() => NetAvailableKind::OpenTap,
            _ if link.is_tap() && link.master.is_none() => NetAvailableKind::Tap,
            _ => return None,
        };
        let is_free = !attached.contains(&name);
        is_free.then_some(NetAvailable { name, kind, mac: link.address, mtu_bytes: link.mtu })
    };
    let mut found: Vec<_> = links.into_iter().filter_map(available).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn link(name: &str, more: &Value) -> Value {
        let mut link = json!({ "ifindex": 7, "ifname": name, "address": "02:00:00:00:00:01", "mtu": 1500, "flags": ["UP"] });
        link.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        link
    }

    #[test]
    fn taps_and_bridges_that_are_not_attached_are_available() {
        let tap = json!({ "linkinfo": { "info_kind": "tun", "info_data": { "type": "tap", "multi_queue": false } } });
        let mut open = tap.clone();
        open["flags"] = json!(["UP", "LOWER_UP"]);
        let mut bridged = tap.clone();
        bridged["master"] = json!("br0");
        let bridge = json!({ "linkinfo": { "info_kind": "bridge", "info_data": {} } });
        let listed = json!([
            link("tap2", &tap),
            link("lo", &json!({})),
            link("veth1", &json!({ "linkinfo": { "info_kind": "veth" } })),
            link("br0", &bridge),
            link("vm1", &open),
            link("inside", &bridged),
            link("ours", &tap),
        ]);
        let found = of_links(&serde_json::to_vec(&listed).unwrap(), &BTreeSet::from(["ours".to_owned()]));
        let kinds: Vec<_> = found.iter().map(|device| (device.name.as_str(), device.kind)).collect();
        let expected = [
            ("br0", NetAvailableKind::Bridge),
            ("tap2", NetAvailableKind::Tap),
            ("vm1", NetAvailableKind::OpenTap),
        ];
        assert_eq!(kinds, expected);
    }
}
