//! One device of an instance: its port, and whether it carries frames.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fabric::Epoch;
use instance::{InstanceName, Network};
use overlay::Mac;
use overlay::switch::{Entry, Parcel, PortId, PortKind, Switch};
use overlay::topology::NodeId;
use overlay_io::plane::Plane;
use overlay_io::tap::{Offloads, Tap};

/// The overlay, while this host is part of it.
pub struct Overlay {
    pub plane: Weak<Plane>,
    pub me: NodeId,
    pub offloads: Offloads,
}

pub struct Nic {
    pub name: InstanceName,
    pub network: Network,
    pub tap: Arc<Tap>,
    pub port: PortId,
    pub stage: Stage,
    /// The epoch with which the instance is on this host, as far as its node knows.
    pub here: Option<Epoch>,
}

/// Whether the device carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not yet.
    Arriving,
    /// It does.
    Running,
    /// It still sends, and frames for it are kept.
    Held,
    /// Not any more.
    Paused,
}

impl Stage {
    /// The stage of a device after a cut: a device that has never carried frames is still arriving.
    pub fn cut(self) -> Self {
        match self {
            Self::Arriving => Self::Arriving,
            Self::Running | Self::Held | Self::Paused => Self::Paused,
        }
    }

    /// The stage of a device whose instance is about to stop.
    pub fn hold(self) -> Self {
        if self == Self::Running { Self::Held } else { self }
    }
}

impl Overlay {
    pub fn plane(&self) -> Option<(Arc<Plane>, NodeId)> {
        Some((self.plane.upgrade()?, self.me))
    }
}

impl Nic {
    /// Gives the device its port.
    pub fn plug(&mut self, overlay: Option<&Overlay>) -> io::Result<()> {
        let Some((plane, me)) = overlay.and_then(Overlay::plane) else { return Ok(()) };
        plane.command(|switch, now, parcels| {
            switch.attach(self.port, PortKind::Instance);
            self.settle_in(switch, me, now, parcels);
        });
        self.serve(overlay)
    }

    /// Carries frames between its port and its TAP.
    pub fn serve(&mut self, overlay: Option<&Overlay>) -> io::Result<()> {
        let Some((plane, _)) = overlay.and_then(Overlay::plane) else { return Ok(()) };
        plane.release(self.port);
        // A TAP that another plane has used has its offloads set already.
        if let Some((tap, overlay)) = Arc::get_mut(&mut self.tap).zip(overlay) {
            tap.set_offloads(overlay.offloads)?;
        }
        plane.serve(self.port, self.tap.clone())
    }

    /// Brings the switch's record of the device up to date.
    pub fn settle(&self, overlay: Option<&Overlay>) {
        if let Some((plane, me)) = overlay.and_then(Overlay::plane) {
            plane.command(|switch, now, parcels| self.settle_in(switch, me, now, parcels));
        }
    }

    /// Brings the switch's record up to date. A change that the switch refuses is in effect already, or will be when the
    /// coordinator has announced the instance's location.
    pub fn settle_in(&self, switch: &mut Switch, me: NodeId, now: Duration, parcels: &mut Vec<Parcel>) {
        let mac = Mac(self.network.mac);
        if let Some(epoch) = self.here {
            let addresses = vec![self.network.address.into()];
            let entry = Entry { mac, node: me, port: Some(self.port), epoch, addresses };
            let _ = switch.commit(&entry, now, parcels);
        }
        match self.stage {
            Stage::Arriving => {
                let next = switch.epoch_of(mac).map_or(Epoch::default(), Epoch::next);
                let _ = switch.prepare(mac, self.port, next);
            }
            Stage::Running => {
                let _ = switch.resume(mac, parcels);
                let _ = switch.unpause(mac, now, parcels);
            }
            Stage::Held => {
                let _ = switch.hold(mac);
            }
            Stage::Paused => {
                let _ = switch.pause(mac);
            }
        }
    }
}
