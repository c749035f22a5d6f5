//! Devices that nodes request for themselves: those of machines that joined with `transhume net up`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use ::moves::HostName;
use api::Failure;
use rpc::net::{DeviceKind, ToNode};
use rpc::wire::reason;
use tokio::time::{Instant, sleep};

use super::rollout::Order;
use super::{changes, devices};
use crate::cluster::{AskError, Cluster, Inner};

/// How long a request waits for another change of the same device, such as a request over a previous connection.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often that is checked.
const LOOK: Duration = Duration::from_millis(50);

/// Pause after each request of a node: without it, one node could keep the store and all other nodes busy.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest name of a network device, in bytes.
const LONGEST_NAME: usize = 15;

/// The most devices of a host, including those that it requests.
const MOST: usize = 1024;

/// A node's request.
pub struct Wanted {
    pub device: String,
    pub kind: DeviceKind,
    /// The former name of the device.
    pub former: Option<String>,
}

/// Hosts with a request in progress, and the latest further request of each, which replaces earlier ones.
#[derive(Default)]
pub struct Wishes(HashMap<HostName, Option<Wanted>>);

/// Handles the request of the node of `host` for a device.
pub fn wish(cluster: &Arc<Cluster>, inner: &mut Inner, host: &HostName, wanted: Wanted) {
    match inner.wishes.0.entry(host.clone()) {
        Entry::Occupied(mut next) => {
            let former = next.get_mut().take().and_then(|passed_over| passed_over.former);
            let wanted = Wanted { former: former.or(wanted.former), ..wanted };
            next.insert(Some(wanted));
        }
        Entry::Vacant(next) => {
            next.insert(None);
            tokio::spawn(fulfil(cluster.clone(), host.clone(), wanted));
        }
    }
}

async fn fulfil(cluster: Arc<Cluster>, host: HostName, first: Wanted) {
    let mut next = Some(first);
    while let Some(wanted) = next {
        plug(&cluster, &host, wanted).await;
        sleep(PAUSE).await;
        let wishes = &mut cluster.lock().wishes.0;
        next = wishes.get_mut(&host).and_then(Option::take);
        if next.is_none() {
            wishes.remove(&host);
        }
    }
}

/// Attaches the device. An existing device stays, with its MAC.
async fn plug(cluster: &Arc<Cluster>, host: &HostName, wanted: Wanted) {
    let failure = match try_to_plug(cluster, host, wanted).await {
        // A node that did not answer repeats its request when it reconnects.
        Ok(()) | Err(AskError::Silent(_)) => return,
        Err(error) => Failure::from(error),
    };
    tracing::warn!("cannot attach the device that {host} requests: {failure}");
    let inner = &mut *cluster.lock();
    // A node with an invalid request stays connected.
    if inner.wishes.0.get(host).is_none_or(Option::is_none) {
        let reason = reason(&failure.message, &failure.remedy);
        inner.order([Order { to: vec![host.clone()], what: ToNode::NotPlugged { reason } }]);
    }
}

async fn try_to_plug(cluster: &Arc<Cluster>, host: &HostName, wanted: Wanted) -> Result<(), AskError> {
    let Wanted { device, kind, former } = wanted;
    let fits = |kind: &DeviceKind| match kind {
        DeviceKind::Station { address, .. } => address.as_ref().is_none_or(|text| text.len() <= 64),
        DeviceKind::Proxy { .. } | DeviceKind::Contained { .. } | DeviceKind::Adopted { .. } => false,
    };
    if device.len() > LONGEST_NAME || !fits(&kind) {
        return Err(Failure::new("the node requests an invalid device", "choose a shorter name").into());
    }
    for name in former.iter().chain([&device]) {
        await_turn(cluster, host, name).await?;
        let is_former = *name != device;
        let is_as_wanted = {
            let inner = cluster.lock();
            let found = inner.devices.get(&devices::key(host, name));
            found.ok().map(|found| !is_former && found.is(&kind))
        };
        match is_as_wanted {
            Some(true) => return Ok(()),
            Some(false) => drop(changes::detach(cluster, host, name)?),
            None => {}
        }
    }
    if cluster.lock().devices.count(host) >= MOST {
        let what = format!("{host} already has {MOST} devices, the maximum");
        return Err(Failure::new(what, "detach some of them first: `transhume net detach`").into());
    }
    let host = changes::member(cluster, host.as_str()).await?;
    changes::attach(cluster.clone(), host, device, kind, None).await.map(drop)
}

/// Waits until no change of the device called `name` is in progress.
async fn await_turn(cluster: &Cluster, host: &HostName, name: &str) -> Result<(), Failure> {
    let (key, end) = (devices::key(host, name), Instant::now() + PATIENCE);
    loop {
        let begun = {
            let devices = &mut cluster.lock().devices;
            devices.begin(&key).inspect(|()| devices.end(&key))
        };
        match begun {
            Err(_) if Instant::now() < end => sleep(LOOK).await,
            begun => return begun,
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc::net::{FromNode, Question};
    use rpc::wire::Answer;

    use super::super::played::{Played, Said, World};
    use super::*;

    #[tokio::test]
    async fn of_many_wishes_of_a_node_the_first_and_the_last_are_fulfilled() {
        let world = World::new().await;
        let mut node = world.node("h1").await;
        world.lay(&mut [&mut node]).await;
        for number in 0..1000 {
            let (device, address) = (format!("tap{number}"), None);
            node.say(FromNode::Own { device, address, mtu: 1400, former: None });
        }
        let mut asked = vec![];
        while asked.last().is_none_or(|name| name != "tap999") {
            let Question::Attach(device) = node.grant().await else { panic!("others are asked") };
            asked.push(device.name);
        }
        // The first request may be done before all have arrived.
        assert!(asked.len() < 100, "{asked:?}");
        while !world.cluster.lock().wishes.0.is_empty() {
            sleep(LOOK).await;
        }
    }

    #[tokio::test]
    async fn a_wish_that_is_passed_over_leaves_its_former_device_and_one_that_fails_ends_no_other() {
        let world = World::new().await;
        let mut node = world.node("h1").await;
        world.lay(&mut [&mut node]).await;
        world.attach("h1", "tap0", &mut node).await;
        let wish = |node: &Played, device: &str, former: Option<&str>| {
            let (device, former) = (device.to_owned(), former.map(str::to_owned));
            node.say(FromNode::Own { device, address: None, mtu: 1400, former });
        };
        wish(&node, "tap1", None);
        let (first, _) = node.hear_question().await;
        wish(&node, "tap2", Some("tap0"));
        wish(&node, "tap3", Some("tap2"));
        node.answer(first, Err("it cannot be made".into()));
        let (last, device) = loop {
            match node.hear().await {
                Said::Question(number, Question::Attach(device)) => break (number, device),
                Said::Order(ToNode::NotPlugged { reason }) => panic!("{reason}"),
                _ => {}
            }
        };
        assert_eq!(device.name, "tap3");
        node.answer(last, Ok(Answer::Done));
        while !world.cluster.lock().wishes.0.is_empty() {
            sleep(LOOK).await;
        }
        let (host, inner) = (HostName::new("h1").unwrap(), world.cluster.lock());
        let is_there = |name: &&str| inner.devices.get(&devices::key(&host, name)).is_ok();
        assert_eq!(["tap0", "tap1", "tap2", "tap3"].iter().filter(|name| is_there(name)).count(), 1);
        assert!(is_there(&"tap3"));
    }

    #[tokio::test]
    async fn a_device_stays_whose_node_was_lost_before_it_said_that_it_has_it() {
        let world = World::new().await;
        let mut node = world.node("h1").await;
        world.lay(&mut [&mut node]).await;
        let (device, address) = ("tap1".to_owned(), None);
        node.say(FromNode::Own { device, address, mtu: 1400, former: None });
        let (_, Question::Attach(device)) = node.hear_question().await else { panic!("others are asked") };
        world.lose("h1", node).await;
        let mut node = world.node("h1").await;
        // The node has the device, and does not request it again.
        let devices = loop {
            match node.hear_order().await {
                ToNode::Devices { devices, .. } => break devices,
                ToNode::NotPlugged { reason } => panic!("{reason}"),
                _ => {}
            }
        };
        assert_eq!(devices, [device]);
        while !world.cluster.lock().wishes.0.is_empty() {
            sleep(LOOK).await;
        }
        assert_eq!(world.cluster.lock().devices.count(&HostName::new("h1").unwrap()), 1);
        world.attach("h1", "tap2", &mut node).await;
    }

    #[tokio::test]
    async fn a_wish_that_cannot_be_fulfilled_is_refused_before_it_is_noted() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::open(&directory.path().join("store")).unwrap();
        let host = HostName::new("b").unwrap();
        let ask = async |device: &str, address: &str| {
            let kind = DeviceKind::Station { address: Some(address.into()), mtu: 1400 };
            let wanted = Wanted { device: device.into(), kind, former: Some("tap1".into()) };
            Failure::from(try_to_plug(&cluster, &host, wanted).await.unwrap_err()).message
        };
        assert!(ask(&"x".repeat(LONGEST_NAME + 1), "10.88.0.2/24").await.contains("invalid device"));
        assert!(ask("tap0", &"1".repeat(65)).await.contains("invalid device"));
        assert!(ask("tap0", "10.88.0.2/24").await.contains("no host"));
        assert_eq!(cluster.lock().devices.count(&host), 0);
    }
}
