//! Moves of a station's device to another host; the station keeps its MAC and address.
//!
//! ```text
//! source          coordinator         destination        others
//!   │                  │── Prepare ───────▶│ makes it, muted
//!   │◀──── Pause ──────│
//!   │ keeps frames     │ notes the new place: the point of no return
//!   │◀──── Commit ─────│──── Commit ──────▶│── Commit ─────▶│
//!   │ sends them on    │── Resume ────────▶│ carries frames
//!   │◀─── Devices ─────│                   │
//! ```
//!
//! Until the point of no return, a failure leaves the station on its source; afterwards it has moved. At the end both hosts get their
//! lists of devices, and a node that was disconnected gets its list when it reconnects, so no partial move remains.

use std::sync::Arc;
use std::time::Duration;

use ::moves::HostName;
use api::{Event, Failure};
use overlay::switch::Entry;
use rpc::net::{Question, ToNode};
use store::DeviceKey;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::devices::{self, Changed, Device, Devices};
use super::orders::{self, Order};
use super::rollout::Rollout;
use super::{nics, notices, plan};
use crate::core::{Cluster, Command, Owner, State};
use crate::failure;

/// Time limit for a node to make a device.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for a node's other steps, which take no time by themselves. Tests restart their nodes meanwhile.
const LIMIT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// How long the station waits at most for nodes that have not yet learned its new location; they would reject its frames. The rest of
/// a hand-over takes a few milliseconds, and the whole has a target of 50 ms.
const HEARSAY: Duration = Duration::from_millis(20);

/// A move in progress.
struct Move {
    cluster: Arc<Cluster>,
    from: HostName,
    to: HostName,
    begun: Arc<Begun>,
}

/// The changes of a move.
struct Begun {
    old_key: DeviceKey,
    new_key: DeviceKey,
    /// The device after the move.
    device: Device,
    entry: Entry,
}

/// Moves the device `name` from `from` to `to`.
///
/// # Errors
/// If the device is not moved, or is moved but does not run yet.
pub async fn make(
    cluster: Arc<Cluster>,
    from: HostName,
    name: String,
    to: HostName,
) -> Result<Event, Failure> {
    let begun = cluster.run(BeginMove { from: from.clone(), name: name.clone(), to: to.clone() }).await?;
    let moving = Move { cluster, from, to, begun: Arc::new(begun) };
    let result = moving.carry_out(&name).await;
    moving.end().await;
    result
}

/// The move of a device, which begins.
struct BeginMove {
    from: HostName,
    name: String,
    to: HostName,
}

impl Command for BeginMove {
    type Reply = Result<Begun, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        owner.view().check_whole()?;
        owner.ready().await?;
        owner.edit(|state| self.begin(state))
    }
}

impl BeginMove {
    fn begin(self, state: &mut State) -> Result<Begun, Failure> {
        let Self { from, name, to } = self;
        let (old_key, new_key) = (devices::key(&from, &name), devices::key(&to, &name));
        if state.get::<Devices>().get(&old_key).is_err() {
            nics::check_no_nic(state, &from, &name)?;
        }
        let device = state.get::<Devices>().get(&old_key)?.clone();
        if from == to {
            return Err(Failure::new(format!("{name} is already on {from}"), "choose another host"));
        }
        if let Some(away) = [&from, &to].into_iter().find(|host| !state.links().is_up(host)) {
            return Err(failure::host_down(away));
        }
        let number = state.get::<Rollout>().plan().number(&to).ok_or_else(|| plan::not_joined(&to))?;
        let no_station = || {
            let remedy = "detach it, and make another proxy on that host: `transhume net proxy`";
            Failure::new(format!("{name} is a proxy, which cannot move because its LAN stays"), remedy)
        };
        device.entry(number).ok_or_else(no_station)?;
        if device.is_adopted() {
            let what = format!("{name} is an adopted TAP of {from} and cannot move");
            return Err(Failure::new(what, "attach a new device, which can move: `transhume net attach`"));
        }
        let devices = state.get_mut::<Devices>();
        devices.check_free(&new_key)?;
        devices.begin(&old_key)?;
        devices.begin(&new_key).inspect_err(|_| devices.end(&old_key))?;
        let device = devices.begin_move(device);
        let entry = device.entry(number).ok_or_else(no_station)?;
        Ok(Begun { old_key, new_key, device, entry })
    }
}

/// The point of no return.
struct CommitMove {
    to: HostName,
    begun: Arc<Begun>,
}

impl Command for CommitMove {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let changed = self.validate(&owner.view())?;
        devices::note(owner, changed).await
    }
}

impl CommitMove {
    /// One of the hosts may have been removed meanwhile.
    fn validate(&self, state: &State) -> Result<Changed, Failure> {
        let Begun { old_key, new_key, device, .. } = &*self.begun;
        state.check_whole()?;
        state.get::<Devices>().get(old_key)?;
        if !state.get::<Rollout>().plan().is_member(&self.to) {
            return Err(plan::not_joined(&self.to));
        }
        Ok(state.get::<Devices>().moved(old_key, new_key, device.clone()))
    }
}

impl Move {
    async fn carry_out(&self, name: &str) -> Result<Event, Failure> {
        let mac = self.begun.entry.mac;
        let prepare =
            Question::Prepare { device: self.begun.device.for_node(name), epoch: self.begun.entry.epoch };
        self.ask(&self.to, prepare, PREPARE_LIMIT).await?;
        let paused = Instant::now();
        self.ask(&self.from, Question::Pause { mac }, LIMIT).await?;
        self.commit().await?;
        self.tell_all().await;
        self.ask(&self.to, Question::Resume { mac }, LIMIT).await.map_err(|failure| {
            let help = format!("it runs as soon as the node of {} reconnects", self.to);
            Failure::new(format!("{name} has moved, but does not run yet: {}", failure.message), help)
        })?;
        let pause_us = u64::try_from(paused.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(Event::NetMoved { pause_us })
    }

    async fn ask(&self, host: &HostName, question: Question, limit: Duration) -> Result<(), Failure> {
        self.cluster.ask_net(host, question, limit).await?;
        Ok(())
    }

    async fn commit(&self) -> Result<(), Failure> {
        self.cluster.run(CommitMove { to: self.to.clone(), begun: self.begun.clone() }).await
    }

    /// Announces the new location to all nodes, and waits for their confirmations or a time limit.
    async fn tell_all(&self) {
        let members: Vec<_> = self.cluster.view().get::<Rollout>().plan().members().cloned().collect();
        let mut telling = JoinSet::new();
        for host in members {
            let (cluster, entry) = (self.cluster.clone(), self.begun.entry.clone());
            // Other nodes get all locations when they reconnect.
            telling.spawn(async move {
                let _ = cluster.ask_net(&host, Question::Commit(entry), HEARSAY).await;
            });
        }
        telling.join_all().await;
    }

    /// Sends both hosts their lists of devices and the station's location: a node that has restarted meanwhile had no such device
    /// when the location was announced.
    async fn end(&self) {
        let (from, to, begun) = (self.from.clone(), self.to.clone(), self.begun.clone());
        self.cluster.edit(move |state| end(state, from, to, &begun)).await;
    }
}

fn end(state: &mut State, from: HostName, to: HostName, begun: &Begun) {
    // Only reopening the store shows the location.
    if state.check_whole().is_err() {
        return;
    }
    let devices = state.get_mut::<Devices>();
    devices.end_move(begun.entry.mac);
    devices.end(&begun.old_key);
    devices.end(&begun.new_key);
    notices::settle(state, &from);
    notices::settle(state, &to);
    let number = |host: &str| state.get::<Rollout>().plan().number(&HostName::new(host).ok()?);
    if let Some(entry) = state.get::<Devices>().entry(begun.entry.mac, number) {
        orders::send(state, [Order { to: vec![from, to], what: ToNode::Station(entry) }]);
    }
}

#[cfg(test)]
mod tests;
