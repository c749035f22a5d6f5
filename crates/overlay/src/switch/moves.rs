//! How a MAC moves from one node to another, or from one port to another.
//!
//! ```text
//! source                                destination
//!    │                                     │ prepare: the port is muted, frames for the MAC are kept
//!    │ pause: nothing leaves, frames       │
//!    │ for the MAC are kept                │
//!  ══╪═══ the coordinator writes down the new place and epoch, and tells all nodes: commit ═══╪══
//!    │ the kept frames go after the MAC,   │
//!    │ then stragglers, for the grace time │ still muted
//!    │                                     │ resume: the kept frames, then all others
//!
//! rolled back instead:
//!    │ unpause: the kept frames, then on   │ abort: what was kept goes back to the source
//! ```
//!
//! The engine resumes when the nodes whose stations matter have the commit: a node that does not know yet takes what
//! comes from the new place for a lie. Only frames for the MAC alone are kept. What was sent to many has come to many
//! nodes, and kept at two of them it would come to the instance twice.

use std::collections::HashSet;
use std::time::Duration;

use fabric::Epoch;

use super::kept::{Arriving, Kept, Leaving};
use super::{Destination, Entry, Gate, MAX_ADDRESSES, Place, PortId, Reason, Switch, To};
use crate::mac::Mac;
use crate::segment::VnetHeader;
use crate::topology::NodeId;

/// A frame that is to be sent, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// Where it goes.
    pub to: To,
    /// What is left to do with it, as in a [`Frame`](super::Frame).
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
    /// The address is no station's.
    #[error("{0} is no address of a station")]
    NoStation(Mac),
    /// More than [`MAX_ADDRESSES`].
    #[error("{0} has more than {MAX_ADDRESSES} addresses")]
    TooManyAddresses(Mac),
    /// There are as many managed MACs as there may be.
    #[error("there is no room for {0}")]
    Full(Mac),
    /// The port is not there, or not known.
    #[error("{0} has no port here")]
    NoPort(Mac),
    /// The MAC lives elsewhere.
    #[error("{0} does not live here")]
    NotHere(Mac),
    /// The epoch is not a new one.
    #[error("{0} has moved in the meantime")]
    Old(Mac),
    /// A move to here is under way, to be resumed or aborted first.
    #[error("{0} is on its way to here")]
    Arriving(Mac),
    /// The move is not committed.
    #[error("{0} has not moved here yet")]
    NotCommitted(Mac),
    /// The move is committed.
    #[error("{0} has moved here")]
    Committed(Mac),
}

impl Switch {
    /// At the destination of a move: `port` is for `mac`, with `epoch`, and muted until [`Switch::resume`]. May be
    /// repeated.
    ///
    /// # Errors
    /// If the epoch is not newer than what is known, the port is not there or is the MAC's already, or another move to
    /// here is under way.
    pub fn prepare(&mut self, mac: Mac, port: PortId, epoch: Epoch) -> Result<(), Refused> {
        self.ports.get(port).ok_or(Refused::NoPort(mac))?;
        if !self.managed.is_news(mac, epoch) {
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
        let Some(Place::Port(port)) = self.home(mac) else { return Err(Refused::NotHere(mac)) };
        if self.moves.arriving.get(&mac).is_some_and(|arriving| arriving.committed) {
            return Err(Refused::Arriving(mac));
        }
        self.set_gate(port, Gate::Paused);
        self.moves.leaving.entry(mac).or_insert_with(|| Leaving { port, kept: Kept::default() });
        self.changes.add(mac);
        Ok(())
    }

    /// Takes what the coordinator says of a MAC. Returns whether it is news: what is as old as what is known, or older,
    /// changes nothing. Frames that were kept for the MAC, and now go elsewhere, are added to `out`, and are to be sent
    /// before any other.
    ///
    /// # Errors
    /// If the entry breaks a limit, or says that the MAC is on a port of this node that is not there.
    pub fn commit(&mut self, entry: &Entry, now: Duration, out: &mut Vec<Parcel>) -> Result<bool, Refused> {
        if !self.managed.is_news(entry.mac, entry.epoch) {
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

    /// The MAC lives on `port` from now on. If it was prepared it does not run before [`Switch::resume`].
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

    /// The MAC lives on another node from now on. Its port here stays as it is: nothing runs behind it.
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

    /// What was kept goes after its MAC, but no frame does so twice.
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

    /// At the destination, after the commit: the MAC's instance runs. What was kept for it is added to `out`, and is to
    /// be sent before any other. May be repeated.
    ///
    /// # Errors
    /// If the move is not committed, or the MAC does not live here.
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

    /// At the destination, when the move is rolled back: the port is as before [`Switch::prepare`]. What was kept is
    /// added to `out`, on its way to where the MAC lives. May be repeated.
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
                    // This node has not heard yet that the MAC has left it, so it does not know where to.
                    _ => arriving.kept.frames.iter().for_each(|_| self.counters.drop(Reason::Stale)),
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// At the source, when the move is rolled back: the instance runs on. What was kept for it is added to `out`, and is
    /// to be sent before any other. May be repeated.
    ///
    /// # Errors
    /// If the MAC does not live here, so that another node may run it.
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

    /// The instance of `mac` has ended. Returns whether this is news, as [`Switch::commit`] does; no late message brings
    /// the MAC back.
    pub fn withdraw(&mut self, mac: Mac, epoch: Epoch, now: Duration) -> bool {
        let entry = Entry { mac, node: self.me, port: None, epoch, addresses: Vec::new() };
        let is_news = self.managed.push(&entry, None, now);
        if is_news {
            self.changes.add(mac);
            self.moves.leaving.remove(&mac);
            self.moves.arriving.remove(&mac);
        }
        is_news
    }

    /// Takes `present` for all stations that there were when the coordinator gave out `until`: of others, what is known with
    /// an earlier epoch is withdrawn.
    pub fn withdraw_others(&mut self, present: &HashSet<Mac>, until: Epoch, now: Duration) {
        let known = self.managed.iter().map(|(mac, _, managed)| (mac, managed.epoch()));
        let gone: Vec<_> = known.filter(|(mac, epoch)| *epoch < until && !present.contains(mac)).collect();
        for (mac, _) in gone {
            self.withdraw(mac, until, now);
        }
    }
}
