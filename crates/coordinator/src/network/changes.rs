//! Changes of the overlay that the command line requests.

use std::sync::Arc;
use std::time::Duration;

use ::moves::HostName;
use api::{DEFAULT_MTU, Event, Failure, NetChange, NetDevice, NetLaid, Purpose, Shape};
use overlay::Mac;
use overlay::mac::InvalidMac;
use rpc::net::{self, DeviceKind, FoundTap, Question, ToNode};
use rpc::wire::Answer;
use store::DeviceKey;

use super::plan::{self, Plan, Terms};
use super::{devices, moves, show, use_plan};
use crate::cluster::{AskError, Cluster, Inner};
use crate::{failure, hosts};

/// Time limit for a node to make a device.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// Makes a change, and waits until it is in use.
pub async fn fulfil(cluster: &Arc<Cluster>, wanted: NetChange) -> Result<Event, Failure> {
    match wanted {
        NetChange::Lay { shape, center, plain } => {
            lay(cluster, shape, center.as_deref(), plain).await.map(Event::NetLaid)
        }
        NetChange::AddLink { ends: [a, b], cost, plain } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            let linked = |inner: &Inner| inner.network.plan().add_link(&a, &b, Terms { cost, plain });
            change(cluster, linked).await.map(Event::NetLaid)
        }
        NetChange::RemoveLink { ends: [a, b] } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |inner| inner.network.plan().remove_link(&a, &b)).await.map(Event::NetLaid)
        }
        NetChange::Attach { host, device, purpose, mac } => {
            let wanted = Wanted { purpose, mac: mac.map(|mac| own_mac(&mac)).transpose()? };
            if let Purpose::Station { netns: Some(netns), .. } = &wanted.purpose {
                check_netns(netns)?;
            }
            if matches!(wanted.purpose, Purpose::Proxy { .. }) {
                lay_first(cluster, &host).await?;
            }
            let host = member(cluster, &host).await?;
            let (kind, mac) = decide(cluster, &host, &device, wanted).await?;
            let attached = attach(cluster.clone(), host, device, kind, mac);
            let NetDevice { mac, mtu_bytes, adopted, .. } =
                whole(async { attached.await.map_err(not_attached) }).await?.describe();
            Ok(Event::NetAttached { mac, mtu_bytes, adopted })
        }
        NetChange::Detach { host, device } => {
            let name = HostName::new(&host).map_err(|_| failure::no_host(&host))?;
            if cluster.lock().devices.count(&name) == 0 {
                member(cluster, &host).await?;
            }
            let detached = detach(cluster, &name, &device)?;
            // When the user gets the result, the device's name is free. A node that does not answer removes the device when it reconnects.
            let _ = cluster.ask_net(&name, Question::UpToDate, DEVICE_LIMIT).await;
            Ok(detached)
        }
        NetChange::Move { host, device, to } => {
            let (host, to) = (member(cluster, &host).await?, member(cluster, &to).await?);
            whole(moves::make(cluster.clone(), host, device, to)).await
        }
    }
}

/// The host called `name`, which need not be part of the overlay.
fn known(cluster: &Cluster, name: &str) -> Result<HostName, Failure> {
    hosts::find(&cluster.lock(), name)
}

/// Lays a star with `host` in the center, unless a plan exists.
async fn lay_first(cluster: &Arc<Cluster>, host: &str) -> Result<(), Failure> {
    if cluster.lock().network.plan().is_empty() {
        lay(cluster, Shape::Star, Some(host), false).await?;
    }
    Ok(())
}

/// Lays a topology of the connected hosts.
async fn lay(
    cluster: &Arc<Cluster>,
    shape: Shape,
    center: Option<&str>,
    plain: bool,
) -> Result<NetLaid, Failure> {
    let center = center.map(|name| known(cluster, name)).transpose()?;
    change(cluster, |inner| {
        let connected = inner.nodes.keys().cloned().collect();
        match &center {
            Some(away) if !inner.nodes.contains_key(away) => Err(failure::host_down(away)),
            _ if inner.network.plan().is_empty() => {
                Plan::random()?.lay(shape, center.as_ref(), &connected, plain)
            }
            _ => inner.network.plan().lay(shape, center.as_ref(), &connected, plain),
        }
    })
    .await
}

/// Changes the plan, and waits until it is in use.
async fn change(
    cluster: &Arc<Cluster>,
    change: impl FnOnce(&Inner) -> Result<Plan, Failure>,
) -> Result<NetLaid, Failure> {
    let laid = {
        let mut inner = cluster.lock();
        let plan = change(&inner)?;
        let laid = plan.changed_since(inner.network.plan());
        use_plan(cluster, &mut inner, plan)?;
        laid
    };
    in_use(cluster).await;
    match cluster.lock().network.failed().iter().next() {
        None => Ok(laid),
        Some((host, reason)) => {
            let failure = failure::from_reason(reason);
            Err(Failure::new(format!("cannot include {host}: {}", failure.message), failure.remedy))
        }
    }
}

/// Waits until the current plan, including later changes, is in use.
async fn in_use(cluster: &Cluster) {
    loop {
        let mut changed = std::pin::pin!(cluster.network_changed.notified());
        changed.as_mut().enable();
        if cluster.lock().network.awaited().next().is_none() {
            return;
        }
        changed.await;
    }
}

/// The host called `name`, if it is part of the overlay.
pub(super) async fn member(cluster: &Cluster, name: &str) -> Result<HostName, Failure> {
    let host = known(cluster, name)?;
    if !cluster.lock().network.plan().is_member(&host) {
        return Err(plan::not_joined(&host));
    }
    in_use(cluster).await;
    Ok(host)
}

/// Runs a change to completion, even if the client disconnects.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let ended = tokio::spawn(change).await;
    ended.unwrap_or_else(|error| Err(Failure::new(format!("the change failed: {error}"), "")))
}

/// A requested device.
struct Wanted {
    purpose: Purpose,
    mac: Option<Mac>,
}

/// The kind and MAC of a requested device on `host`: an existing TAP is adopted with
/// its own configuration.
async fn decide(
    cluster: &Arc<Cluster>,
    host: &HostName,
    name: &str,
    wanted: Wanted,
) -> Result<(DeviceKind, Option<Mac>), Failure> {
    let Wanted { purpose, mac } = wanted;
    cluster.lock().check_new(&devices::key(host, name), mac)?;
    let (address, mtu, netns) = match purpose {
        Purpose::Proxy { bridge } => return Ok((DeviceKind::Proxy { bridge }, mac)),
        Purpose::Station { address, mtu, netns } => (address, mtu, netns),
    };
    let look = Question::Look { device: name.to_owned(), netns: netns.clone() };
    let found = match cluster.ask_net(host, look, DEVICE_LIMIT).await? {
        Answer::Tap(found) => found,
        _ => None,
    };
    if let Some(found) = found {
        check_kept(name, found, address.as_deref(), mtu, mac)?;
    }
    let mac = found.map(|found| found.mac).or(mac);
    if let Some(mac) = mac {
        check_unseen(cluster, mac).await?;
    }
    let new = mtu.unwrap_or(DEFAULT_MTU);
    let kind = match (found, netns) {
        (Some(FoundTap { mtu, .. }), netns) => DeviceKind::Adopted { netns, mtu },
        (None, Some(netns)) => DeviceKind::Contained { netns, address, mtu: new },
        (None, None) => DeviceKind::Station { address, mtu: new },
    };
    Ok((kind, mac))
}

/// Checks that the request does not contradict the configuration of an existing TAP, which may be in use.
fn check_kept(
    name: &str,
    found: FoundTap,
    address: Option<&str>,
    mtu: Option<u32>,
    mac: Option<Mac>,
) -> Result<(), Failure> {
    let other = if address.is_some() {
        "keeps its addresses: omit `--address`"
    } else if mac.is_some_and(|mac| mac != found.mac) {
        "keeps its MAC: omit `--mac`"
    } else if mtu.is_some_and(|mtu| mtu != found.mtu) {
        "keeps its MTU: omit `--mtu`"
    } else {
        return Ok(());
    };
    let FoundTap { mac, mtu } = found;
    let what = format!("the TAP {name} already exists, with MAC {mac} and MTU {mtu}");
    Err(Failure::new(what, format!("an adopted TAP {other}; or choose another name")))
}

/// Checks that `name` is a valid name of a network namespace: a single path component, and no option of `ip`.
fn check_netns(name: &str) -> Result<(), Failure> {
    const LONGEST: usize = 255;
    let fits = !name.is_empty() && name.len() <= LONGEST && !name.starts_with(['.', '-']);
    if fits && !name.contains(|letter: char| letter == '/' || letter.is_control()) {
        return Ok(());
    }
    let what = format!("{name:?} is not a valid name of a network namespace");
    Err(Failure::new(what, "pass a name from `ip netns list`, not a path"))
}

/// Parses the MAC of a device.
fn own_mac(text: &str) -> Result<Mac, Failure> {
    let mac: Mac = text.parse().map_err(|error: InvalidMac| Failure::new(error.to_string(), ""))?;
    if mac.is_station() {
        return Ok(mac);
    }
    let what = format!("the MAC {mac} is not valid for a device: it is a multicast or zero address");
    Err(Failure::new(what, "choose a MAC whose second digit is even, such as 02:74:72:00:00:01"))
}

/// Checks that no device has `mac` and that no switch has learned it recently, for instance behind a proxy.
async fn check_unseen(cluster: &Arc<Cluster>, mac: Mac) -> Result<(), Failure> {
    cluster.lock().devices.check_mac(mac)?;
    let plan = cluster.lock().network.plan().clone();
    for (_, answer) in show::ask_all(cluster, &plan, &Question::Find { mac }).await {
        let Some(Answer::Macs(places)) = answer else { continue };
        if let Some(place) = places.first() {
            let device = place.device.as_ref().map_or_else(String::new, |device| format!("{device} of "));
            return Err(devices::mac_is_taken(mac, &format!("it was seen at {device}{}", place.host)));
        }
    }
    Ok(())
}

fn not_attached(error: AskError) -> Failure {
    match error {
        AskError::Silent(host) => {
            let remedy = "the device is stored, and the node makes it when it reconnects; `transhume net detach` removes it";
            Failure::new(format!("host {host} did not answer"), remedy)
        }
        error => error.into(),
    }
}

/// Stores a device, and has the node of `host` make it. Returns the device. If the node does not answer, the device stays stored, because it may be in use.
pub(super) async fn attach(
    cluster: Arc<Cluster>,
    host: HostName,
    name: String,
    kind: DeviceKind,
    mac: Option<Mac>,
) -> Result<net::Device, AskError> {
    let key = devices::key(&host, &name);
    let device = {
        let inner = &mut *cluster.lock();
        // The host may have been removed meanwhile.
        if !inner.network.plan().is_member(&host) {
            return Err(plan::not_joined(&host).into());
        }
        inner.check_new(&key, mac)?;
        inner.check_no_instances(&kind)?;
        inner.devices.begin(&key)?;
        let added = inner.devices.add(&inner.store, &key, kind, mac);
        added.map_err(|error| cluster.not_written(inner, error))?
    };
    let asked = cluster.ask_net(&host, Question::Attach(device.for_node(&name)), DEVICE_LIMIT).await;
    let inner = &mut *cluster.lock();
    inner.devices.end(&key);
    if matches!(asked, Ok(_) | Err(AskError::Silent(_))) {
        let number = inner.network.plan().number(&host);
        if let Some(entry) = number.and_then(|number| device.entry(number)) {
            inner.order_all(ToNode::Station(entry));
        }
    } else if let Err(failure) = take_away(&cluster, inner, &host, &key) {
        tracing::warn!("{host} could not make device {name}, which stays stored: {failure}");
    }
    asked.map(|_| device.for_node(&name))
}

impl Inner {
    /// Checks that no device is stored at `key`, and that no device has the requested MAC.
    fn check_new(&self, key: &DeviceKey, mac: Option<Mac>) -> Result<(), Failure> {
        self.check_whole()?;
        self.store.ready().map_err(|error| failure::of_store(&error))?;
        mac.map_or(Ok(()), |mac| self.devices.check_mac(mac))?;
        self.devices.check_free(key)
    }
}

/// Removes a device from the store. If the node is not connected, it removes the device when it reconnects.
pub(super) fn detach(cluster: &Cluster, host: &HostName, name: &str) -> Result<Event, Failure> {
    let key = devices::key(host, name);
    let inner = &mut *cluster.lock();
    if inner.devices.get(&key).is_err() {
        inner.check_no_nic(host, name)?;
    }
    inner.devices.begin(&key)?;
    inner.devices.end(&key);
    take_away(cluster, inner, host, &key)?;
    Ok(if inner.nodes.contains_key(host) { Event::Done } else { Event::NetForgotten })
}

fn take_away(cluster: &Cluster, inner: &mut Inner, host: &HostName, key: &DeviceKey) -> Result<(), Failure> {
    inner.check_whole()?;
    let mac = inner.devices.get(key)?.mac;
    let removed = inner.devices.remove(&inner.store, key, mac);
    let withdrawn = removed.map_err(|error| cluster.not_written(inner, error))?;
    inner.settle(host);
    inner.order_all(withdrawn);
    Ok(())
}

/// Removes all devices of `host` in the same way.
pub(super) fn take_all_away(cluster: &Cluster, inner: &mut Inner, host: &HostName) -> Result<(), Failure> {
    inner.devices.names(host).iter().try_for_each(|name| {
        let key = devices::key(host, name);
        take_away(cluster, inner, host, &key)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;

    use api::NetMac;

    use super::super::played::{Played, Said, World, attach};
    use super::*;

    fn detach(host: &str, device: &str) -> NetChange {
        NetChange::Detach { host: host.into(), device: device.into() }
    }

    /// The MAC in the next withdrawal of a station.
    async fn withdrawn(node: &mut Played) -> Mac {
        loop {
            if let ToNode::Withdraw { mac, .. } = node.hear_order().await {
                return mac;
            }
        }
    }

    #[tokio::test]
    async fn a_device_of_a_host_that_is_away_is_forgotten_and_the_host_told_when_it_is_back() {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        world.attach("h2", "tap1", &mut h2).await;
        world.attach("h2", "tap2", &mut h2).await;
        let macs = ["tap1", "tap2"].map(|name| {
            let key = devices::key(&HostName::new("h2").unwrap(), name);
            world.cluster.lock().devices.get(&key).unwrap().mac
        });
        world.lose("h2", h2).await;
        assert_eq!(world.change(detach("h2", "tap1")).await, Ok(Event::NetForgotten));
        assert_eq!(withdrawn(&mut h1).await, macs[0]);
        // It works even if the host is not part of the overlay.
        world.lay(&mut [&mut h1]).await;
        assert_eq!(world.change(detach("h2", "tap2")).await, Ok(Event::NetForgotten));
        assert_eq!(withdrawn(&mut h1).await, macs[1]);
        let unknown = world.change(detach("h2", "tap2")).await.unwrap_err();
        assert!(unknown.message.contains("h2"), "{unknown:?}");
        let mut h2 = world.node("h2").await;
        let ToNode::Devices { devices, .. } = h2.hear_order().await else { panic!("others come first") };
        assert_eq!(devices, []);
        Played::use_topology(&mut [&mut h1, &mut h2]).await;
        world.attach("h2", "tap1", &mut h2).await;
        let (detached, asked) = tokio::join!(world.change(detach("h2", "tap1")), h2.grant());
        assert_eq!((detached, asked), (Ok(Event::Done), Question::UpToDate));
    }

    /// A request for tap2 on h2 with this MAC.
    fn with_mac(text: &str) -> NetChange {
        let purpose = Purpose::Station { address: None, mtu: None, netns: None };
        let mac = Some(text.to_owned());
        NetChange::Attach { host: "h2".into(), device: "tap2".into(), purpose, mac }
    }

    #[test]
    fn a_namespace_is_named_as_ip_names_it() {
        assert_eq!(check_netns("web-1.x"), Ok(()));
        for bad in
            ["", ".", "..", "../../proc/1/ns/net", "/run/netns/web", "-batch", "a\nb", &"x".repeat(256)]
        {
            let failure = check_netns(bad).unwrap_err();
            assert!(failure.message.contains("is not a valid name of a network namespace"), "{failure:?}");
        }
    }

    /// Answers the question for an existing TAP with `found`.
    async fn say_found(node: &mut Played, found: FoundTap) {
        loop {
            if let Said::Question(number, Question::Look { .. }) = node.hear().await {
                return node.answer(number, Ok(Answer::Tap(Some(found))));
            }
        }
    }

    #[tokio::test]
    async fn a_tap_that_is_there_is_plugged_in_as_it_is_and_does_not_move() {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        let found = FoundTap { mac: Mac([0x52, 0x54, 0, 0, 0, 1]), mtu: 1300 };
        let wanted = |address: Option<&str>, mtu, mac: Option<&str>| {
            let address = address.map(str::to_owned);
            let purpose = Purpose::Station { address, mtu, netns: Some("web".into()) };
            NetChange::Attach {
                host: "h2".into(),
                device: "vm1".into(),
                purpose,
                mac: mac.map(str::to_owned),
            }
        };
        for (other, option) in [
            (wanted(Some("10.88.0.1/24"), None, None), "`--address`"),
            (wanted(None, Some(1400), None), "`--mtu`"),
            (wanted(None, None, Some("52:54:00:00:00:02")), "`--mac`"),
        ] {
            let (refused, ()) = tokio::join!(world.change(other), say_found(&mut h2, found));
            let failure = refused.unwrap_err();
            assert!(
                failure.message.contains("already exists") && failure.remedy.contains(option),
                "{failure:?}"
            );
        }
        let told = async {
            say_found(&mut h2, found).await;
            tokio::join!(say_where(&mut h1, None), say_where(&mut h2, None));
            h2.grant().await
        };
        let (attached, asked) = tokio::join!(world.change(wanted(None, Some(1300), None)), told);
        let mac = found.mac.to_string();
        assert_eq!(attached, Ok(Event::NetAttached { mac, mtu_bytes: Some(1300), adopted: true }));
        let kind = DeviceKind::Adopted { netns: Some("web".into()), mtu: 1300 };
        assert_eq!(asked, Question::Attach(net::Device { name: "vm1".into(), mac: found.mac, kind }));
        let away = NetChange::Move { host: "h2".into(), device: "vm1".into(), to: "h1".into() };
        let failure = world.change(away).await.unwrap_err();
        assert!(failure.message.contains("cannot move"), "{failure:?}");
    }

    /// Answers the question for the location of a MAC.
    async fn say_where(node: &mut Played, place: Option<NetMac>) {
        let (number, question) = node.hear_question().await;
        assert!(matches!(question, Question::Find { .. }), "{question:?}");
        node.answer(number, Ok(Answer::Macs(place.into_iter().collect())));
    }

    #[tokio::test]
    async fn a_device_gets_the_mac_that_is_wanted_unless_somebody_has_it() {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        world.attach("h1", "tap1", &mut h1).await;
        let tap1 = devices::key(&HostName::new("h1").unwrap(), "tap1");
        let taken = world.cluster.lock().devices.get(&tap1).unwrap().mac.to_string();
        for (mac, expected) in [
            (taken.as_str(), "device tap1 on h1 has it"),
            ("01:00:5e:00:00:01", "multicast or zero"),
            ("00:00:00:00:00:00", "multicast or zero"),
            ("52:54:00:12:34", "is not a MAC address"),
        ] {
            let failure = world.change(with_mac(mac)).await.unwrap_err();
            assert!(failure.message.contains(expected), "{failure:?}");
        }
        let mac = "52:54:00:12:34:56";
        let place = NetMac {
            mac: mac.into(),
            host: "h1".into(),
            device: Some("lan0".into()),
            managed: false,
            vlan: 0,
        };
        let heard = async { tokio::join!(say_where(&mut h1, Some(place)), say_where(&mut h2, None)) };
        let (refused, _) = tokio::join!(world.change(with_mac(mac)), heard);
        let failure = refused.unwrap_err();
        assert!(failure.message.contains("it was seen at lan0 of h1"), "{failure:?}");
        let free = async {
            tokio::join!(say_where(&mut h1, None), say_where(&mut h2, None));
            h2.grant().await
        };
        let (attached, asked) = tokio::join!(world.change(with_mac(mac)), free);
        assert_eq!(
            attached,
            Ok(Event::NetAttached { mac: mac.into(), mtu_bytes: Some(1400), adopted: false })
        );
        let Question::Attach(device) = asked else { panic!("{asked:?}") };
        assert_eq!(device.mac.to_string(), mac);
    }

    /// Writes a file until the disk is full.
    fn fill(path: &Path) {
        let mut file = File::create(path).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
    }

    /// A coordinator with a stored device, whose disk is then full.
    async fn full() -> (World, Played) {
        let world = World::new().await;
        let mut h1 = world.node("h1").await;
        world.lay(&mut [&mut h1]).await;
        world.attach("h1", "tap1", &mut h1).await;
        fill(&world.path("fill"));
        (world, h1)
    }

    #[tokio::test]
    async fn on_a_full_disk_nothing_new_is_noted_and_what_is_there_can_be_taken_away() {
        let (world, mut h1) = full().await;
        let lay = NetChange::Lay { shape: Shape::Mesh, center: None, plain: false };
        for wanted in [attach("h1", "tap2"), lay] {
            let failure = world.change(wanted).await.unwrap_err();
            assert!(failure.message.contains("No space left on device"), "{failure:?}");
        }
        let (detached, _) = tokio::join!(world.change(detach("h1", "tap1")), h1.grant());
        detached.unwrap();
        std::fs::remove_file(world.path("fill")).unwrap();
        world.attach("h1", "tap2", &mut h1).await;
    }

    /// Makes a change fail at the write, although the disk seemed to have room.
    async fn break_with(wanted: NetChange) {
        let (world, mut h1) = full().await;
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        std::fs::remove_file(world.path("store.reserve")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), world.path("store.reserve")).unwrap();
        fill(&world.path("more"));
        let changed = async {
            tokio::select! {
                changed = world.change(wanted) => changed,
                (_, question) = h1.hear_question() => panic!("{question:?}"),
            }
        };
        let failure = changed.await.unwrap_err();
        assert!(failure.message.contains("store"), "{failure:?}");
        let broken = tokio::time::timeout(DEVICE_LIMIT, world.cluster.broken()).await.unwrap();
        assert!(broken.to_string().contains("No space left on device"), "{broken}");
        // The disk has room again, but memory and store may differ.
        std::fs::remove_file(world.path("fill")).unwrap();
        let move_away = NetChange::Move { host: "h1".into(), device: "tap1".into(), to: "h1".into() };
        let lay = NetChange::Lay { shape: Shape::Mesh, center: None, plain: false };
        for wanted in [attach("h1", "tap3"), detach("h1", "tap1"), move_away, lay] {
            let failure = world.change(wanted).await.unwrap_err();
            assert!(failure.message.contains("the coordinator is shutting down"), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn a_device_that_cannot_be_noted_ends_the_coordinator() {
        break_with(attach("h1", "tap2")).await;
    }

    #[tokio::test]
    async fn a_device_that_cannot_be_forgotten_ends_the_coordinator() {
        break_with(detach("h1", "tap1")).await;
    }

    #[tokio::test]
    async fn a_layout_that_cannot_be_noted_ends_the_coordinator() {
        break_with(NetChange::Lay { shape: Shape::Mesh, center: None, plain: false }).await;
    }
}
