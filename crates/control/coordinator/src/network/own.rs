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

use super::devices::{self, Devices};
use super::orders::{self, Order};
use super::{layout, plugging};
use crate::core::{AskError, Cluster, Feature, State};

/// How long a request waits for another change of the same device, such as a request over a previous connection.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often that is checked.
const LOOK: Duration = Duration::from_millis(50);

/// Pause after each request of a node: without it, one node could keep the store and all other nodes busy.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest name of a network device, in bytes.
const LONGEST_NAME: usize = 15;

/// The limit of devices of a host, including those that it requests.
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
pub async fn wish(cluster: &Arc<Cluster>, host: &HostName, wanted: Wanted) {
    let name = host.clone();
    if let Some(wanted) = cluster.edit(move |state| state.get_mut::<Wishes>().take(name, wanted)).await {
        tokio::spawn(fulfil(cluster.clone(), host.clone(), wanted));
    }
}

impl Feature for Wishes {}

impl Wishes {
    /// Returns the wish, if no earlier one of the host is being fulfilled; otherwise it waits.
    fn take(&mut self, host: HostName, wanted: Wanted) -> Option<Wanted> {
        match self.0.entry(host) {
            Entry::Occupied(mut next) => {
                let former = next.get_mut().take().and_then(|passed_over| passed_over.former);
                let wanted = Wanted { former: former.or(wanted.former), ..wanted };
                next.insert(Some(wanted));
                None
            }
            Entry::Vacant(next) => {
                next.insert(None);
                Some(wanted)
            }
        }
    }

    /// The next wish of the host, after one was fulfilled.
    fn next(&mut self, host: &HostName) -> Option<Wanted> {
        let next = self.0.get_mut(host).and_then(Option::take);
        if next.is_none() {
            self.0.remove(host);
        }
        next
    }
}

async fn fulfil(cluster: Arc<Cluster>, host: HostName, first: Wanted) {
    let mut next = Some(first);
    while let Some(wanted) = next {
        plug(&cluster, &host, wanted).await;
        sleep(PAUSE).await;
        let of = host.clone();
        next = cluster.edit(move |state| state.get_mut::<Wishes>().next(&of)).await;
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
    let view = cluster.view();
    // A node with an invalid request stays connected.
    if view.get::<Wishes>().0.get(host).is_none_or(Option::is_none) {
        let reason = reason(&failure.message, &failure.remedy);
        orders::send(&view, [Order { to: vec![host.clone()], what: ToNode::NotPlugged { reason } }]);
    }
}

async fn try_to_plug(cluster: &Arc<Cluster>, host: &HostName, wanted: Wanted) -> Result<(), AskError> {
    let Wanted { device, kind, former } = wanted;
    let fits = |kind: &DeviceKind| match kind {
        DeviceKind::Station { address, .. } => address.as_ref().is_none_or(|text| text.len() <= 64),
        DeviceKind::Proxy { .. }
        | DeviceKind::Contained { .. }
        | DeviceKind::Adopted { .. }
        | DeviceKind::Redirected { .. } => false,
    };
    if device.len() > LONGEST_NAME || !fits(&kind) {
        return Err(Failure::new("the node requests an invalid device", "choose a shorter name").into());
    }
    for name in former.iter().chain([&device]) {
        await_turn(cluster, host, name).await?;
        let is_former = *name != device;
        let is_as_wanted = {
            let state = cluster.view();
            let found = state.get::<Devices>().get(&devices::key(host, name));
            found.ok().map(|found| !is_former && found.is(&kind))
        };
        match is_as_wanted {
            Some(true) => return Ok(()),
            Some(false) => drop(plugging::detach(cluster, host, name).await?),
            None => {}
        }
    }
    if cluster.view().get::<Devices>().count(host) >= MOST {
        let what = format!("{host} already has {MOST} devices, the maximum");
        return Err(Failure::new(what, "detach some of them first: `transhume net detach`").into());
    }
    let host = layout::member(cluster, host.as_str()).await?;
    plugging::attach(cluster.clone(), host, device, kind, None).await.map(drop)
}

/// Waits until no change of the device called `name` is in progress.
async fn await_turn(cluster: &Cluster, host: &HostName, name: &str) -> Result<(), Failure> {
    let (key, end) = (devices::key(host, name), Instant::now() + PATIENCE);
    loop {
        let key = key.clone();
        let try_it = move |state: &mut State| {
            let devices = state.get_mut::<Devices>();
            devices.begin(&key).inspect(|()| devices.end(&key))
        };
        let begun = cluster.edit(try_it).await;
        match begun {
            Err(_) if Instant::now() < end => sleep(LOOK).await,
            begun => return begun,
        }
    }
}

#[cfg(test)]
mod tests;
