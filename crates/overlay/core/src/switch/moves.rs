//! Moves of a MAC from one node to another, or from one port to another.
//!
//! ```text
//! source                                destination
//!    │                                     │ prepare: the port is muted, frames for the MAC are kept
//!    │ hold: frames for the MAC are kept   │
//!    │ pause: nothing leaves, frames       │
//!    │ for the MAC are kept                │
//!  ══╪═══ commit: the coordinator records the new place and epoch, and tells all nodes ═══════╪══
//!    │ the kept frames follow the MAC,     │
//!    │ then late ones, for the grace time  │ still muted
//!    │                                     │ resume: the kept frames, then all others
//!
//! rollback instead:
//!    │ unpause: the kept frames, then on   │ abort: kept frames go back to the source
//! ```
//!
//! The engine resumes the instance when the relevant nodes have the commit: a node without it drops frames
//! from the new place as spoofed. Only unicast frames for the MAC are kept. A broadcast reaches many
//! nodes, and if two of them kept it, the instance would get it twice.

use std::collections::HashSet;
use std::time::Duration;

use fabric::Epoch;

use super::kept::{Arriving, Kept, Leaving};
use super::{Destination, Entry, Gate, MAX_ADDRESSES, Place, PortId, Reason, Switch, To};
use crate::mac::Mac;
use crate::segment::VnetHeader;
use crate::topology::NodeId;

/// A frame to send, and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// Where it goes.
    pub to: To,
    /// The offload work that is still to be done for it, as in a [`Frame`](super::Frame).
    pub vnet: VnetHeader,
    /// The frame.
    pub bytes: Box<[u8]>,
}

impl Parcel {
    /// A frame with which all is done.
    pub(super) fn whole(to: To, frame: Vec<u8>) -> Self {
        Self { to, vnet: VnetHeader::default(), bytes: frame.into_boxed_slice() }
    }
}

/// Why something asked of the switch is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The address is not a station's.
    #[error("{0} is not a station's address")]
    NoStation(Mac),
    /// More than [`MAX_ADDRESSES`].
    #[error("{0} has more than {MAX_ADDRESSES} addresses")]
    TooManyAddresses(Mac),
    /// There are as many managed MACs as there may be.
    #[error("the table of stations is full: no room for {0}")]
    Full(Mac),
    /// The port is not there, or not known.
    #[error("{0} has no port here")]
    NoPort(Mac),
    /// The MAC is on another node.
    #[error("{0} is not on this node")]
    NotHere(Mac),
    /// The epoch is not a new one.
    #[error("{0} has moved in the meantime")]
    Old(Mac),
    /// A move to here is under way, to be resumed or aborted first.
    #[error("{0} is moving to this node")]
    Arriving(Mac),
    /// The move is not committed.
    #[error("{0} has not moved here yet")]
    NotCommitted(Mac),
    /// The move is committed.
    #[error("{0} has already moved here")]
    Committed(Mac),
}

impl Switch {
    /// At the destination of a move: `port` is for `mac`, with `epoch`, and muted until [`Switch::resume`]. May be
    /// repeated.
    ///
    /// # Errors
    /// If the epoch is not newer than the known one, the port is not there or is the MAC's already, or another move to
    /// here is under way.
    pub fn prepare(&mut self, mac: Mac, port: PortId, epoch: Epoch) -> Result<(), Refused> {
        self.ports.get(port).ok_or(Refused::NoPort(mac))?;
        if !self.managed.is_newer(mac, epoch) {
            return Err(Refused::Old(mac));
        }
        if let Some(arriving) = self.moves.arriving.get(&mac) {
            let is_same = (arriving.port, arriving.epoch, arriving.committed) == (port, epoch, false);
            return if is_same { Ok(()) } else { Err(Refused::Arriving(mac)) };
        }
        if self.home(mac) == Some(Place::Port(port)) {
            return Err(Refused::Committed(mac));
        }
        self.set_gate(port, Gate::Muted);
        self.moves.arriving.insert(mac, Arriving { port, epoch, committed: false, kept: Kept::default() });
        self.changes.add(mac);
        Ok(())
    }

    /// At the source of a move: nothing comes from the MAC's port any more, and frames for the MAC are kept. May be
    /// repeated.
    ///
    /// # Errors
    /// If the MAC does not live here, or does not run here yet.
    pub fn pause(&mut self, mac: Mac) -> Result<(), Refused> {
        self.leave(mac, Gate::Paused)
    }

    /// At the source of a move: frames for the MAC are kept, while it still sends. So none reaches an instance that is about to stop.
    /// May be repeated.
    ///
    /// # Errors
    /// As [`Switch::pause`].
    pub fn hold(&mut self, mac: Mac) -> Result<(), Refused> {
        self.leave(mac, Gate::Held)
    }

    fn leave(&mut self, mac: Mac, gate: Gate) -> Result<(), Refused> {
        let Some(Place::Port(port)) = self.home(mac) else { return Err(Refused::NotHere(mac)) };
        if self.moves.arriving.get(&mac).is_some_and(|arriving| arriving.committed) {
            return Err(Refused::Arriving(mac));
        }
        self.set_gate(port, gate);
        self.moves.leaving.entry(mac).or_insert_with(|| Leaving { port, kept: Kept::default() });
        self.changes.add(mac);
        Ok(())
    }

    /// Applies the coordinator's entry of a MAC. Returns whether it is new: an entry as old as the known one, or older,
    /// changes nothing. Adds kept frames for the MAC that now go elsewhere to `out`; the caller sends them before any
    /// other.
    ///
    /// # Errors
    /// If the entry breaks a limit, or names a port of this node that does not exist.
    pub fn commit(&mut self, entry: &Entry, now: Duration, out: &mut Vec<Parcel>) -> Result<bool, Refused> {
        if !self.managed.is_newer(entry.mac, entry.epoch) {
            return Ok(false);
        }
        let home = self.home_of(entry)?;
        self.managed.push(entry, Some(home), now);
        self.changes.add(entry.mac);
        match home {
            Place::Port(port) => self.arrived(entry.mac, port, out),
            Place::Node(node) => self.left(entry, node, out),
        }
        Ok(true)
    }

    /// The highest epoch of `mac` that is known, also if its instance has ended.
    #[must_use]
    pub fn epoch_of(&self, mac: Mac) -> Option<Epoch> {
        self.managed.epoch_of(mac)
    }

    fn home(&self, mac: Mac) -> Option<Place> {
        self.managed.get(mac)?.home
    }

    fn home_of(&self, entry: &Entry) -> Result<Place, Refused> {
        let mac = entry.mac;
        if !mac.is_station() {
            return Err(Refused::NoStation(mac));
        }
        if entry.addresses.len() > MAX_ADDRESSES {
            return Err(Refused::TooManyAddresses(mac));
        }
        if self.managed.len() >= self.limits.managed && !self.managed.knows(mac) {
            return Err(Refused::Full(mac));
        }
        if entry.node != self.me {
            return Ok(Place::Node(entry.node));
        }
        let arriving = self.moves.arriving.get(&mac).filter(|arriving| arriving.epoch <= entry.epoch);
        let port = entry.port.or(arriving.map(|arriving| arriving.port));
        let port = port.filter(|port| self.ports.get(*port).is_some()).ok_or(Refused::NoPort(mac))?;
        Ok(Place::Port(port))
    }

    /// The MAC is on `port` from now on. If it was prepared, it does not run before [`Switch::resume`].
    fn arrived(&mut self, mac: Mac, port: PortId, out: &mut Vec<Parcel>) {
        let mut kept = self.moves.leaving.remove(&mac).map(|leaving| leaving.kept).unwrap_or_default();
        match self.moves.arriving.remove(&mac) {
            Some(mut arriving) if arriving.port == port => {
                kept.append(arriving.kept);
                (arriving.kept, arriving.committed) = (kept, true);
                self.moves.arriving.insert(mac, arriving);
            }
            arriving => {
                kept.append(arriving.map(|arriving| arriving.kept).unwrap_or_default());
                self.set_gate(port, Gate::Open);
                kept.release(port, out);
            }
        }
    }

    /// The MAC is on another node from now on. Its port here stays as it is: nothing runs behind it.
    fn left(&mut self, entry: &Entry, node: NodeId, out: &mut Vec<Parcel>) {
        if let Some(leaving) = self.moves.leaving.remove(&entry.mac) {
            self.send_on(leaving.kept, node, out);
        }
        let is_void = |arriving: &Arriving| arriving.epoch <= entry.epoch;
        if self.moves.arriving.get(&entry.mac).is_some_and(is_void)
            && let Some(arriving) = self.moves.arriving.remove(&entry.mac)
        {
            self.send_on(arriving.kept, node, out);
        }
    }

    /// Kept frames follow their MAC, but each only once.
    fn send_on(&mut self, kept: Kept, node: NodeId, out: &mut Vec<Parcel>) {
        for frame in kept.frames {
            let to = match frame.forwarded {
                true => Err(Reason::Stale),
                false => self.to_node(Destination::Forwarded(node), node, frame.ingress),
            };
            match to {
                Ok(to) => out.push(frame.send(to)),
                Err(reason) => self.counters.drop(reason),
            }
        }
    }

    /// At the destination, after the commit: the MAC's instance runs. Adds kept frames for it to `out`; the caller
    /// sends them before any other. May be repeated.
    ///
    /// # Errors
    /// If the move is not committed, or the MAC is not here.
    pub fn resume(&mut self, mac: Mac, out: &mut Vec<Parcel>) -> Result<(), Refused> {
        match self.moves.arriving.remove(&mac) {
            Some(arriving) if arriving.committed => {
                self.changes.add(mac);
                self.set_gate(arriving.port, Gate::Open);
                arriving.kept.release(arriving.port, out);
                Ok(())
            }
            Some(arriving) => {
                self.moves.arriving.insert(mac, arriving);
                Err(Refused::NotCommitted(mac))
            }
            None if matches!(self.home(mac), Some(Place::Port(_))) => Ok(()),
            None => Err(Refused::NotHere(mac)),
        }
    }

    /// At the destination, when the move is rolled back: the port is as before [`Switch::prepare`]. Kept frames are
    /// added to `out`, addressed to the place of the MAC. May be repeated.
    ///
    /// # Errors
    /// If the move is committed.
    pub fn abort(&mut self, mac: Mac, out: &mut Vec<Parcel>) -> Result<(), Refused> {
        match self.moves.arriving.remove(&mac) {
            Some(arriving) if arriving.committed => {
                self.moves.arriving.insert(mac, arriving);
                Err(Refused::Committed(mac))
            }
            Some(arriving) => {
                self.changes.add(mac);
                self.set_gate(arriving.port, Gate::Open);
                match self.home(mac) {
                    Some(Place::Node(node)) => self.send_on(arriving.kept, node, out),
                    // This node has not learnt yet that the MAC has left it, so it does not know the new place.
                    _ => arriving.kept.frames.iter().for_each(|_| self.counters.drop(Reason::Stale)),
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// At the source, when the move is rolled back: the instance runs on. Adds kept frames for it to `out`; the caller
    /// sends them before any other. May be repeated.
    ///
    /// # Errors
    /// If the MAC is not here, so that another node may run it.
    pub fn unpause(&mut self, mac: Mac, now: Duration, out: &mut Vec<Parcel>) -> Result<(), Refused> {
        let Some(Place::Port(_)) = self.home(mac) else { return Err(Refused::NotHere(mac)) };
        if let Some(leaving) = self.moves.leaving.remove(&mac) {
            self.managed.stays(mac, now);
            self.changes.add(mac);
            self.set_gate(leaving.port, Gate::Open);
            leaving.kept.release(leaving.port, out);
        }
        Ok(())
    }

    /// The instance of `mac` has ended. Returns whether this is new, as [`Switch::commit`] does; no late message brings
    /// the MAC back.
    pub fn withdraw(&mut self, mac: Mac, epoch: Epoch, now: Duration) -> bool {
        let entry = Entry { mac, node: self.me, port: None, epoch, addresses: Vec::new() };
        let is_newer = self.managed.push(&entry, None, now);
        if is_newer {
            self.changes.add(mac);
            self.moves.leaving.remove(&mac);
            self.moves.arriving.remove(&mac);
        }
        is_newer
    }

    /// Takes `present` for all stations that existed when the coordinator gave out `until`: withdraws all other
    /// knowledge with an earlier epoch.
    pub fn withdraw_others(&mut self, present: &HashSet<Mac>, until: Epoch, now: Duration) {
        let known = self.managed.iter().map(|(mac, _, managed)| (mac, managed.epoch()));
        let gone: Vec<_> = known.filter(|(mac, epoch)| *epoch < until && !present.contains(mac)).collect();
        for (mac, _) in gone {
            self.withdraw(mac, until, now);
        }
    }
}
