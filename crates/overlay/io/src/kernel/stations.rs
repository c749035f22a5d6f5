//! The stations with frames that the kernel carries.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::MapError;
use aya::programs::tc::SchedClassifierLink;
use overlay::Mac;
use overlay::switch::{Changes, PortId, ShortCut, Switch};

use super::devices::TapPlace;
use super::tables::{Table, table};
use crate::tap::Tap;

/// Stations that may be carried soon.
pub struct Due(Vec<(Mac, ShortCut)>);

/// See the module.
pub struct Stations {
    here: Table<[u8; 8], [u32; 2]>,
    there: Table<[u8; 8], u32>,
    taps: HashMap<PortId, Attached>,
    /// The content of the maps.
    known: HashMap<Mac, ShortCut>,
}

/// A TAP with an attached program.
pub struct Attached {
    pub tap: Arc<Tap>,
    pub place: TapPlace,
    /// It does so until this is dropped.
    pub _link: SchedClassifierLink,
}

impl Stations {
    pub fn new(programs: &mut Ebpf) -> io::Result<Self> {
        let (here, there) = (table(programs, "here")?, table(programs, "there")?);
        Ok(Self { here, there, taps: HashMap::new(), known: HashMap::new() })
    }

    /// The frames of `port`, which is not attached yet, may be carried.
    pub fn attach(&mut self, port: PortId, attached: Attached) {
        self.taps.insert(port, attached);
    }

    /// Leaves `port` to the plane. The caller drops the result without locks.
    pub fn detach(&mut self, port: PortId) -> Option<Attached> {
        self.at(port).into_iter().for_each(|mac| self.remove(mac));
        self.taps.remove(&port)
    }

    /// The TAPs, and where they were.
    pub fn taps(&self) -> Vec<(PortId, Arc<Tap>, TapPlace)> {
        self.taps.iter().map(|(port, attached)| (*port, attached.tap.clone(), attached.place)).collect()
    }

    /// `tap` of `port` is there by now. If that is another device it is left to the plane, as by [`Self::detach`].
    pub fn moved(&mut self, port: PortId, tap: &Arc<Tap>, place: Option<TapPlace>) -> Option<Attached> {
        let attached = self.taps.get_mut(&port).filter(|attached| Arc::ptr_eq(&attached.tap, tap))?;
        let Some(place) = place.filter(|place| place.index == attached.place.index) else {
            return self.detach(port);
        };
        attached.place = place;
        self.at(port).into_iter().for_each(|mac| self.insert(mac, ShortCut::Port(port)));
        None
    }

    /// The entries for `port`.
    fn at(&self, port: PortId) -> Vec<Mac> {
        let known = self.known.iter();
        known.filter(|(_, known)| **known == ShortCut::Port(port)).map(|(mac, _)| *mac).collect()
    }

    /// Removes outdated entries, and returns new ones.
    pub fn retract(&mut self, switch: &Switch, changes: Changes) -> Due {
        let changed: Vec<Mac> = match changes {
            Changes::Some(macs) => macs.into_iter().collect(),
            Changes::All => {
                let gone = self.known.keys().copied().filter(|mac| switch.short_cut(*mac).is_none());
                switch.managed_macs().chain(gone).collect()
            }
        };
        let mut due = Vec::new();
        for mac in changed {
            let wanted = switch.short_cut(mac).filter(|wanted| self.can_be(*wanted));
            if self.known.get(&mac).copied() != wanted {
                self.remove(mac);
                due.extend(wanted.map(|wanted| (mac, wanted)));
            }
        }
        Due(due)
    }

    pub fn extend(&mut self, due: Due) {
        for (mac, short_cut) in due.0 {
            // An entry that could not be removed would be there twice.
            if !self.known.contains_key(&mac) {
                self.insert(mac, short_cut);
            }
        }
    }

    fn can_be(&self, wanted: ShortCut) -> bool {
        match wanted {
            ShortCut::Port(port) => self.taps.contains_key(&port),
            ShortCut::Node(_) => true,
        }
    }

    fn insert(&mut self, mac: Mac, short_cut: ShortCut) {
        let key = key(mac);
        let inserted = match short_cut {
            ShortCut::Port(port) => {
                let Some(Attached { place, .. }) = self.taps.get(&port) else { return };
                self.here.insert(key, [place.index, place.longest], 0)
            }
            ShortCut::Node(node) => self.there.insert(key, u32::from(node.0), 0),
        };
        // Entries without room are left to the plane.
        if inserted.is_ok() {
            self.known.insert(mac, short_cut);
        }
    }

    fn remove(&mut self, mac: Mac) {
        let removed = match self.known.get(&mac) {
            Some(ShortCut::Port(_)) => self.here.remove(&key(mac)),
            Some(ShortCut::Node(_)) => self.there.remove(&key(mac)),
            None => return,
        };
        // A remaining entry is removed with the MAC's next change.
        if matches!(removed, Ok(()) | Err(MapError::KeyNotFound)) {
            self.known.remove(&mac);
        }
    }
}

/// A MAC as the programs look it up.
fn key(mac: Mac) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [a, b, c, d, e, f, 0, 0]
}
