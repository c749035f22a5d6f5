//! The devices of this host on the overlay, as the coordinator orders them.
//!
//! A device has its port as soon as the coordinator orders it, even while the device cannot be created, so that the switch's record
//! of its station stays correct.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fabric::Epoch;
use overlay::Mac;
use overlay::switch::{Entry, PortId, PortKind};
use overlay_io::plane::Plane;
use overlay_io::tap::{Offloads, Tap};
use rpc::net::{Device, DeviceKind};
use rpc::wire::reason;
use tokio::time::sleep;

use super::interface::{self, Interface};
use super::namespace::Identity;
use super::redirection::{self, Source};

/// The limit of devices of a host. Ports with higher numbers belong to instances.
pub const MOST: usize = 1024;

/// How often to check whether a device is gone.
const LOOK: Duration = Duration::from_millis(1);

/// The attached devices of this host.
pub struct Devices {
    plane: Arc<Plane>,
    /// By name.
    present: BTreeMap<String, Present>,
    offloads: Offloads,
}

/// A device that the coordinator has ordered.
pub struct Present {
    pub device: Device,
    pub port: PortId,
    /// The reason why it could not be created.
    pub failure: Option<String>,
    /// Its MTU in bytes when it was last created.
    pub mtu: Option<u32>,
    /// The network namespace in which it was last made, if that has a name.
    namespace: Option<Identity>,
    /// The TAP of another program from which frames are redirected to it.
    source: Option<Source>,
}

impl Present {
    /// Whether the network namespace in which it was made does not exist any more, or has lost its name.
    fn has_lost_namespace(&self) -> bool {
        let netns = self.device.kind.netns().zip(self.namespace);
        netns.is_some_and(|(name, identity)| !identity.is_called(name))
    }
}

impl Devices {
    /// Makes an empty set of devices. `offloads` are the usable ones of the kernel.
    pub fn new(plane: Arc<Plane>, offloads: Offloads) -> Self {
        Self { plane, present: BTreeMap::new(), offloads }
    }

    /// Creates the `wanted` devices and deletes the others, except stations that are `moving`. Afterwards each station that is not
    /// moving is at its location.
    pub async fn set(&mut self, wanted: Vec<Device>, moving: &HashSet<Mac>) {
        let stays = |device: &Device| moving.contains(&device.mac) || wanted.contains(device);
        for name in self.names(|present| !stays(&present.device)) {
            self.take_away(&name).await;
        }
        for device in wanted {
            if moving.contains(&device.mac) {
                continue;
            }
            if !self.present.contains_key(&device.name)
                && let Err(reason) = self.add(device, None).await
            {
                tracing::warn!("{reason}");
            }
        }
        self.end_moves(moving);
    }

    fn names(&self, which: impl Fn(&Present) -> bool) -> Vec<String> {
        let chosen = self.present.iter().filter(|(_, present)| which(present));
        chosen.map(|(name, _)| name.clone()).collect()
    }

    /// Creates a device.
    pub async fn attach(&mut self, device: Device) -> Result<(), String> {
        self.make(device, None).await
    }

    /// Creates the device of a station that moves here with `epoch`.
    pub async fn prepare(&mut self, device: Device, epoch: Epoch) -> Result<(), String> {
        self.make(device, Some(epoch)).await
    }

    async fn make(&mut self, device: Device, epoch: Option<Epoch>) -> Result<(), String> {
        let name = device.name.clone();
        // A device of a connection that arrived meanwhile is the same one.
        if epoch.is_some() || self.present.get(&name).is_none_or(|present| present.device != device) {
            self.add(device, epoch).await?;
        }
        match self.present.get_mut(&name).and_then(|present| present.failure.take()) {
            None => Ok(()),
            Some(failure) => {
                self.take_away(&name).await;
                Err(failure)
            }
        }
    }

    /// Gives `device` a port, which is muted if the station has not arrived yet, and tries to make the device.
    async fn add(&mut self, device: Device, arrives: Option<Epoch>) -> Result<(), String> {
        let (name, mac) = (device.name.clone(), device.mac);
        if self.present.contains_key(&name) {
            let remedy = "choose another name, or detach it first with `transhume net detach`";
            return Err(reason(&format!("{name} is attached already"), remedy));
        }
        let port = self.free_port()?;
        let kind = match device.kind {
            DeviceKind::Station { .. }
            | DeviceKind::Contained { .. }
            | DeviceKind::Adopted { .. }
            | DeviceKind::Redirected { .. } => PortKind::Instance,
            DeviceKind::Proxy { .. } => PortKind::Lan,
        };
        let attached = self.plane.command(|switch, _, _| {
            switch.attach(port, kind);
            arrives.map_or(Ok(()), |epoch| switch.prepare(mac, port, epoch))
        });
        if let Err(refused) = attached {
            self.plane.unplug(port);
            return Err(refused.to_string());
        }
        self.present.insert(
            name.clone(),
            Present { device, port, failure: None, mtu: None, namespace: None, source: None },
        );
        self.try_to_make(&name).await;
        Ok(())
    }

    /// Creates devices again that failed or disappeared, also after the deletion of their namespace or bridge.
    pub async fn mend(&mut self) {
        let is_due = |present: &Present| !self.plane.is_served(present.port) || present.has_lost_namespace();
        let mut due = self.names(is_due);
        for (name, present) in self.present.iter().filter(|(_, present)| !is_due(present)) {
            if let DeviceKind::Proxy { bridge } = &present.device.kind
                && interface::has_left(name, bridge).await
            {
                due.push(name.clone());
            }
            if let Some(source) = present.source
                && redirection::has_ended(name, present.device.kind.netns(), source).await
            {
                due.push(name.clone());
            }
        }
        for name in due {
            self.try_to_make(&name).await;
        }
    }

    async fn try_to_make(&mut self, name: &str) {
        let Some(present) = self.present.get_mut(name) else { return };
        // The remains of a station that has left.
        release(&self.plane, present.port).await;
        (present.mtu, present.namespace, present.source) = (None, None, None);
        let made = interface::make(&present.device, self.offloads).await;
        let served = made.and_then(|Interface { tap, mtu, namespace, source }| {
            (present.mtu, present.namespace, present.source) = (Some(mtu), namespace, source);
            self.plane.serve(present.port, tap).map_err(|error| error.to_string())
        });
        let failure = served.err();
        if let Some(reason) = &failure
            && present.failure != failure
        {
            tracing::warn!("{name} cannot be attached: {reason}");
        }
        present.failure = failure;
    }

    async fn take_away(&mut self, name: &str) {
        if let Some(present) = self.present.remove(name) {
            // Frames that were kept for a station that does not come go back to its location.
            let _ = self.plane.command(|switch, _, parcels| switch.abort(present.device.mac, parcels));
            release(&self.plane, present.port).await;
            self.plane.unplug(present.port);
            if matches!(present.device.kind, DeviceKind::Redirected { .. }) {
                redirection::end(name, present.device.kind.netns()).await;
            }
        }
    }

    /// Starts all stations of this host, except those that are `moving`, since their moves are over.
    pub fn end_moves(&self, moving: &HashSet<Mac>) {
        for Present { device, .. } in self.iter().filter(|present| !moving.contains(&present.device.mac)) {
            self.plane.command(|switch, now, parcels| {
                // For a station that does not move, and for a LAN, there is no move to end.
                let _ = switch.resume(device.mac, parcels);
                let _ = switch.unpause(device.mac, now, parcels);
            });
        }
    }

    /// Pauses a station that moves away: it sends nothing more.
    pub fn pause(&self, mac: Mac) -> Result<(), String> {
        self.plane.command(|switch, _, _| switch.pause(mac)).map_err(|refused| refused.to_string())
    }

    /// Records the new location of a station.
    pub fn commit(&self, mut entry: Entry) -> Result<(), String> {
        entry.port = self.port_of(entry.mac);
        let committed = self.plane.command(|switch, now, parcels| switch.commit(&entry, now, parcels));
        committed.map(drop).map_err(|refused| refused.to_string())
    }

    /// Starts a station that has moved here.
    pub fn resume(&self, mac: Mac) -> Result<(), String> {
        let resumed = self.plane.command(|switch, _, parcels| switch.resume(mac, parcels));
        resumed.map_err(|refused| refused.to_string())?;
        if let Some(port) = self.port_of(mac) {
            self.plane.announce(port, mac);
        }
        Ok(())
    }

    /// All ordered devices, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Present> {
        self.present.values()
    }

    fn port_of(&self, mac: Mac) -> Option<PortId> {
        self.iter().find(|present| present.device.mac == mac).map(|present| present.port)
    }

    /// The device at `port`.
    pub fn name_of(&self, port: PortId) -> Option<String> {
        self.iter().find(|present| present.port == port).map(|present| present.device.name.clone())
    }

    fn free_port(&self) -> Result<PortId, String> {
        let is_free = |port: &u16| !self.present.values().any(|present| present.port.0 == *port);
        let free = (1..=MOST as u16).find(is_free).map(PortId);
        free.ok_or_else(|| {
            reason(
                &format!("{MOST} devices are attached, which is the limit"),
                "detach some first with `transhume net detach`",
            )
        })
    }
}

/// Removes the network device of `port`, if there is one.
async fn release(plane: &Plane, port: PortId) {
    if let Some(tap) = plane.release(port) {
        destroy(tap).await;
    }
}

/// Waits until the device of `tap` is gone and its name is free: a thread of the plane may still use it.
async fn destroy(mut tap: Arc<Tap>) {
    while let Err(shared) = Arc::try_unwrap(tap) {
        tap = shared;
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroying_a_device_waits_for_its_users() {
        const NAME: &str = "st0";
        let namespace = fabric::netns::create().expect("a network namespace: these tests run as root");
        let inside = || {
            let tap = Arc::new(Tap::new(NAME).unwrap());
            let looked_at = tap.clone();
            let looking = std::thread::spawn(move || {
                std::thread::sleep(10 * LOOK);
                drop(looked_at);
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(destroy(tap));
            let again = Tap::new(NAME);
            looking.join().unwrap();
            again.map(drop).unwrap();
        };
        fabric::netns::enter(std::os::fd::AsFd::as_fd(&namespace), inside).unwrap();
    }
}
