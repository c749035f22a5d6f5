//! The carrier of frames on short cuts, like the kernel: it knows only what the switch has reported.

use std::collections::HashMap;

use fastrand::Rng;
use overlay::Mac;
use overlay::switch::{Changes, PortId, ShortCut, Switch};
use overlay::topology::NodeId;

use super::Mode;

impl Mode {
    /// Whether a frame that may take a short cut does so. Where all stay in order they all do.
    pub fn takes_short_cut(self, rng: &mut Rng) -> bool {
        self == Self::Calm || rng.bool()
    }
}

/// See the module.
#[derive(Default)]
pub struct Carrier {
    known: HashMap<Mac, ShortCut>,
}

impl Carrier {
    /// The node to which `frame` goes, which comes from `port`, if it takes a short cut.
    pub fn way(&mut self, switch: &mut Switch, port: PortId, frame: &[u8]) -> Option<NodeId> {
        self.follow(switch);
        let (to, from) = ends(frame);
        match (self.known.get(&from)?, self.known.get(&to)?) {
            (ShortCut::Port(home), ShortCut::Node(node)) if *home == port => Some(*node),
            _ => None,
        }
    }

    /// The port to which `frame` goes that has come from `node`, if no switch need decide on it.
    pub fn port(&mut self, switch: &mut Switch, node: NodeId, frame: &[u8]) -> Option<PortId> {
        self.follow(switch);
        let (to, from) = ends(frame);
        match (self.known.get(&from)?, self.known.get(&to)?) {
            (ShortCut::Node(home), ShortCut::Port(port)) if *home == node => Some(*port),
            _ => None,
        }
    }

    /// Learns the changes, which are all differences from before.
    fn follow(&mut self, switch: &mut Switch) {
        let changed: Vec<Mac> = match switch.take_changes() {
            Changes::Some(macs) => macs.into_iter().collect(),
            Changes::All => switch.managed_macs().chain(self.known.keys().copied()).collect(),
        };
        for mac in changed {
            match switch.short_cut(mac) {
                Some(short_cut) => drop(self.known.insert(mac, short_cut)),
                None => drop(self.known.remove(&mac)),
            }
        }
        let now = switch.managed_macs().filter_map(|mac| Some((mac, switch.short_cut(mac)?)));
        assert_eq!(self.known, now.collect(), "a change is not told of");
    }
}

/// The destination of a frame, and its source.
fn ends(frame: &[u8]) -> (Mac, Mac) {
    let mac = |at: usize| Mac(frame[at..at + 6].try_into().unwrap());
    (mac(0), mac(6))
}
