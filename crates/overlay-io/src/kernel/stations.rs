//! Stations between which the kernel carries frames.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use aya::Ebpf;
use aya::programs::TcAttachType;
use aya::programs::tc::SchedClassifierLink;
use overlay::Mac;
use overlay::switch::{Changes, PortId, ShortCut, Switch};

use super::devices::Devices;
use super::{Table, attach, program, table};
use crate::tap::Tap;

/// What may be carried soon.
pub struct Due(Vec<(Mac, ShortCut)>);

/// See the module.
pub struct Stations {
    programs: Ebpf,
    devices: Arc<Devices>,
    here: Table<[u8; 8], u32>,
    there: Table<[u8; 8], u32>,
    taps: HashMap<PortId, Attached>,
    /// What the maps say.
    known: HashMap<Mac, ShortCut>,
}

/// A TAP whose frames a program sees.
struct Attached {
    tap: Arc<Tap>,
    index: u32,
    /// It does so until this is dropped.
    _link: SchedClassifierLink,
}

impl Stations {
    pub fn new(mut programs: Ebpf, devices: Arc<Devices>) -> io::Result<Self> {
        let (here, there) = (table(&mut programs, "here")?, table(&mut programs, "there")?);
        program(&mut programs, "from_station")?.load().map_err(io::Error::other)?;
        Ok(Self { programs, devices, here, there, taps: HashMap::new(), known: HashMap::new() })
    }

    pub fn attach(&mut self, port: PortId, tap: &Arc<Tap>) -> io::Result<()> {
        self.detach(port);
        let (name, index) = self.devices.find(tap).ok_or(io::ErrorKind::NotFound)?;
        let program = program(&mut self.programs, "from_station")?;
        let link = attach(program, &name, TcAttachType::Egress)?;
        let link = program.take_link(link).map_err(io::Error::other)?;
        self.taps.insert(port, Attached { tap: tap.clone(), index, _link: link });
        Ok(())
    }

    pub fn detach(&mut self, port: PortId) {
        let at_port = self.known.iter().filter(|(_, known)| **known == ShortCut::Port(port));
        let macs: Vec<Mac> = at_port.map(|(mac, _)| *mac).collect();
        macs.into_iter().for_each(|mac| self.remove(mac));
        self.taps.remove(&port);
    }

    /// Removes what is not so any more, and returns what is new.
    pub fn retract(&mut self, switch: &Switch, changes: Changes) -> Due {
        let changed: Vec<Mac> = match changes {
            Changes::Some(macs) => macs.into_iter().collect(),
            Changes::All => switch.managed_macs().chain(self.known.keys().copied()).collect(),
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
            self.insert(mac, short_cut);
        }
    }

    /// Leaves alone TAPs that are not where they were.
    pub fn look(&mut self) {
        let find = |attached: &Attached| self.devices.find(&attached.tap).map(|(_, index)| index);
        let is_gone = |attached: &Attached| find(attached) != Some(attached.index);
        let gone = self.taps.iter().filter(|(_, attached)| is_gone(attached)).map(|(port, _)| *port);
        gone.collect::<Vec<_>>().into_iter().for_each(|port| self.detach(port));
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
                let Some(Attached { index, .. }) = self.taps.get(&port) else { return };
                self.here.insert(key, index, 0)
            }
            ShortCut::Node(node) => self.there.insert(key, u32::from(node.0), 0),
        };
        // What there is no room for the plane carries.
        if inserted.is_ok() {
            self.known.insert(mac, short_cut);
        }
    }

    fn remove(&mut self, mac: Mac) {
        let removed = match self.known.remove(&mac) {
            Some(ShortCut::Port(_)) => self.here.remove(&key(mac)),
            Some(ShortCut::Node(_)) => self.there.remove(&key(mac)),
            None => return,
        };
        // Nobody else takes anything out.
        debug_assert!(removed.is_ok(), "{removed:?}");
    }
}

/// A MAC as the programs look it up.
fn key(mac: Mac) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [a, b, c, d, e, f, 0, 0]
}
