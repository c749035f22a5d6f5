//! The history of each frame, and the forbidden events.

use std::collections::HashMap;

use overlay::switch::PortId;

use super::Mode;

/// The source and the destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A managed station.
    Managed(usize),
    /// A station that is not.
    Learned(usize),
    /// All.
    Everyone,
    /// None: it has a foreign source, and must be dropped.
    Nobody,
}

/// A place where stations are.
pub type Place = (usize, PortId);

/// A frame.
#[derive(Debug)]
pub struct Record {
    pub source: usize,
    pub sent_from: Place,
    pub audience: Audience,
    /// Nodes where it has been before it was sent on after its MAC, and since then.
    visits: [Vec<usize>; 2],
    deliveries: Vec<Place>,
    /// Whether it has come to its destination.
    pub arrived: bool,
}

/// All frames, by their numbers.
pub struct Records {
    mode: Mode,
    frames: Vec<Record>,
    /// The last number that came from a station to a managed one.
    last: HashMap<(usize, usize), u64>,
}

impl Records {
    pub fn new(mode: Mode) -> Self {
        Self { mode, frames: vec![], last: HashMap::new() }
    }

    /// A frame is sent. Returns its number.
    pub fn send(&mut self, source: usize, sent_from: Place, audience: Audience) -> u64 {
        let visits = [vec![sent_from.0], vec![]];
        self.frames.push(Record { source, sent_from, audience, visits, deliveries: vec![], arrived: false });
        self.frames.len() as u64 - 1
    }

    /// A frame has come to a node. No node sees it twice, but that one which sends it on after its MAC; this happens
    /// once, so there are two ways, each without a circle.
    pub fn visit(&mut self, id: u64, node: usize, forwarded: bool) {
        let record = &mut self.frames[id as usize];
        let way = &mut record.visits[usize::from(forwarded)];
        assert!(!way.contains(&node), "frame {id} comes to {node} again: {record:?}");
        way.push(node);
        let everyone = record.audience == Audience::Everyone;
        assert!(!everyone || !forwarded, "frame {id} for all is sent on");
    }

    /// A frame leaves through a port, behind which the managed station `running` runs, if any.
    pub fn deliver(&mut self, id: u64, to: Place, running: Option<usize>) {
        let record = &mut self.frames[id as usize];
        assert!(record.sent_from != to, "frame {id} comes back: {record:?}");
        assert!(!record.deliveries.contains(&to), "frame {id} comes twice: {record:?}");
        record.deliveries.push(to);
        match record.audience {
            Audience::Nobody => panic!("the lie {id} is believed: {record:?}"),
            Audience::Managed(station) => {
                assert_eq!(running, Some(station), "{id} comes to the wrong place: {record:?}");
                assert_eq!(record.deliveries.len(), 1, "{id} comes to two places: {record:?}");
                record.arrived = true;
                let last = self.last.insert((record.source, station), id);
                let is_behind = self.mode != Mode::Calm || last.is_none_or(|last| last < id);
                assert!(is_behind, "{id} is overtaken by {last:?}");
            }
            Audience::Learned(_) | Audience::Everyone => {}
        }
    }

    /// A frame has come to the station that is not managed.
    pub fn arrive(&mut self, id: u64, station: usize) {
        let record = &mut self.frames[id as usize];
        record.arrived |= record.audience == Audience::Learned(station);
    }

    /// Nothing is under way any more.
    pub fn check_end(&self, ports: &[Place]) {
        if self.mode == Mode::Rough {
            return;
        }
        for (id, record) in self.frames.iter().enumerate() {
            match record.audience {
                Audience::Nobody => {}
                Audience::Everyone if self.mode == Mode::Calm => {
                    assert_eq!(record.deliveries.len() + 1, ports.len(), "{id}: {record:?}");
                }
                // A port that is muted or paused does not get frames for all.
                Audience::Everyone => {}
                Audience::Managed(_) | Audience::Learned(_) => {
                    assert!(record.arrived, "frame {id} is lost: {record:?}");
                }
            }
        }
    }
}
