//! Offloads that misbehave in use are detected, and disabled.
//!
//! | Offload | Symptom | Action |
//! |---|---|---|
//! | `udp-segment` | the kernel refuses to split, and accepts the same datagrams one by one | all are sent one by one, these included |
//! | | datagrams sent in one call to a node are lost or damaged, and single ones are not ([`path_bursts`](overlay::path_bursts)) | all to this node are sent one by one |
//! | `udp-gro` | merged datagrams do not open, and single ones do ([`Gluing`]) | merging is disabled |
//! | `tcp-segments`, `udp-segments` | headers or checksums from a device are wrong, and right without offloads ([`Claims`]) | the device gets no offloads |
//! | | a device refuses segments | they are split before |
//!
//! Frames lost until then are lost like any other. The first action is undone by another path to the node, the others by another device or a restart.

use std::io;

use overlay::path_bursts::Wrong;
use overlay::segment::matches_claims;
use overlay::segment::vnet::VnetHeader;
use overlay::suspicion::{Change, Suspicion};
use overlay::switch::PortId;
use overlay::topology::NodeId;

use crate::offloads::Offload;
use crate::socket::{Arrival, Socket};
use crate::tap::{self, Tap};

/// A disabled offload, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwitchedOff {
    /// Which.
    pub offload: Offload,
    /// Where.
    pub place: Place,
    /// Why.
    pub fault: Fault,
}

/// Where an offload is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// For all that comes to this node.
    Node,
    /// On the way to a node.
    Way(NodeId),
    /// At a port.
    Port(PortId),
}

/// How it misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It refuses its work.
    Refuses,
    /// Its output does not arrive.
    Loses,
    /// Its output arrives damaged.
    Spoils,
}

impl Fault {
    /// The reason, in words.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Refuses => "the kernel refuses it, and accepts the same data without it",
            Self::Loses => "datagrams that use it are lost, and others arrive",
            Self::Spoils => "frames that use it are damaged, and others are not",
        }
    }
}

impl From<Wrong> for Fault {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Refused => Self::Refuses,
            Wrong::Lost => Self::Loses,
        }
    }
}

/// True if the kernel merges datagrams correctly.
#[derive(Default)]
pub(crate) struct Gluing(Suspicion);

impl Gluing {
    /// `arrival` has come to `socket`. `is_spoilt`: a node has sealed something that did not open.
    pub fn look(&mut self, socket: &Socket, arrival: &Arrival, is_spoilt: bool) {
        let is_about_gro = is_spoilt || arrival.bytes > arrival.length || !self.0.trusts();
        if !is_about_gro || self.0.is_over() || !socket.is_to_glue() {
            return;
        }
        let change = self.0.saw(!is_spoilt);
        carry_out(change, |is_aside| socket.put_gluing_aside(is_aside), || socket.disable_gro_for_good());
    }
}

/// Applies a verdict. A refusal of the kernel changes nothing: the reader notices that a device is gone.
fn carry_out(change: Option<Change>, put_aside: impl FnOnce(bool) -> io::Result<()>, blame: impl FnOnce()) {
    let _ = match change {
        Some(Change::PutAside) => put_aside(true),
        Some(Change::Restored) => put_aside(false),
        Some(Change::ToBlame) => return blame(),
        None => return,
    };
}

/// One of so many frames is checked, as long as nothing is wrong.
const SELDOM: u32 = 64;

/// True if frames are as a device claims.
#[derive(Default)]
pub(crate) struct Claims {
    suspicion: Suspicion,
    /// Frames until the next check.
    pause: u32,
}

impl Claims {
    /// `tap` has handed over `frame` with `vnet`.
    pub fn look(&mut self, tap: &Tap, vnet: &VnetHeader, frame: &[u8]) {
        if self.pause > 0 {
            self.pause -= 1;
            return;
        }
        if self.suspicion.is_over() || tap.offloads() == tap::Offloads::NONE {
            self.pause = u32::MAX;
            return;
        }
        let is_good = matches_claims(vnet, frame);
        let change = self.suspicion.saw(is_good);
        carry_out(change, |is_aside| tap.put_offloads_aside(is_aside), || tap.blame_offloads());
        if is_good && self.suspicion.trusts() {
            self.pause = SELDOM;
        }
    }
}

/// The disabled offloads of `tap`, which is `port`.
pub(crate) fn of_tap(port: PortId, tap: &Tap) -> impl Iterator<Item = SwitchedOff> {
    let tap::Offloads { tcp, udp, .. } = tap.offloads();
    let each = [(Offload::TcpSegments, tcp, false), (Offload::UdpSegments, udp, true)];
    let (spoils, refuses) =
        (tap.are_offloads_to_blame(), each.map(|(.., is_udp)| tap.refuses_segments(is_udp)));
    let faults = each.into_iter().zip(refuses).filter(|((_, is_on, _), _)| *is_on);
    faults.filter_map(move |((offload, ..), refuses)| {
        let fault = match (spoils, refuses) {
            (true, _) => Fault::Spoils,
            (false, true) => Fault::Refuses,
            (false, false) => return None,
        };
        Some(SwitchedOff { offload, place: Place::Port(port), fault })
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use overlay::message::Message;
    use overlay::switch::{Limits, Switch};
    use overlay::tunnel::keys::Direction;
    use overlay::tunnel::lane;

    use super::*;
    use crate::carrier::Source;
    use crate::forwarder::Forwarder;
    use crate::peer::{Agreement, Path, Peer};
    use crate::plane::Shared;

    const NOW: Duration = Duration::from_secs(1);

    /// Bytes of each datagram, and how many come together.
    const LENGTH: usize = 200;
    const COUNT: usize = 5;

    fn peer(node: u16, address: SocketAddr, direction: Direction) -> Peer {
        let limits = lane::Limits::default();
        let agreed = Agreement { secret: [7; 32], direction, own: 5, theirs: 5, limits };
        let path = Path { address, longest: 1472, fallback: None };
        Peer::new(NodeId(node), path, agreed, NOW)
    }

    /// A node that receives, and one that sends.
    struct World {
        forwarder: Forwarder,
        gluing: Gluing,
        other: Peer,
    }

    impl World {
        fn new() -> Self {
            let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = socket.address().unwrap();
            let shared = Arc::new(Shared::new(Switch::new(NodeId(1), 1, Limits::default()), socket, None));
            shared.peers.insert(peer(2, address, Direction::FromListener), NOW);
            let other = peer(1, address, Direction::FromDialer);
            Self { forwarder: Forwarder::new(shared, 0), gluing: Gluing::default(), other }
        }

        /// Receives datagrams that the kernel reports as merged, of `said` bytes each. True if they are.
        fn receive(&mut self, count: usize, said: usize) -> bool {
            let mut datagrams = vec![0; count * LENGTH];
            for datagram in datagrams.chunks_mut(LENGTH) {
                // An answer without a question.
                datagram[overlay::tunnel::header::HEADER..][..9].copy_from_slice(&Message::echo(0));
                self.other.sealing(0).seal(datagram, NOW).unwrap();
            }
            let shared = self.forwarder.shared.clone();
            let from = shared.socket.address().unwrap();
            let arrival = Arrival { from, bytes: datagrams.len(), length: said, waited: Duration::ZERO };
            let is_spoilt = self.forwarder.take(Source::Udp(from), &mut datagrams, said, Duration::ZERO);
            self.gluing.look(&shared.socket, &arrival, is_spoilt);
            shared.socket.glues()
        }

        /// The same as long as it is glued, at most so many times.
        fn receive_glued(&mut self, said: usize, most: usize) -> bool {
            (0..most).all(|_| self.receive(COUNT, said))
        }
    }

    #[test]
    fn wrongly_merged_datagrams_disable_gro() {
        for lie in [LENGTH / 2, LENGTH + 1, COUNT * LENGTH, 1, 0, usize::MAX] {
            let mut world = World::new();
            assert!(world.receive_glued(LENGTH, 100) && !world.receive_glued(lie, 16), "{lie}");
            // Some wait already.
            assert!((0..5).all(|_| !world.receive(COUNT, lie)), "{lie}");
            assert!((0..1000).all(|_| !world.receive(1, LENGTH)), "{lie}");
            let off = world.forwarder.shared.switched_off();
            let expected = SwitchedOff { offload: Offload::UdpGro, place: Place::Node, fault: Fault::Spoils };
            assert_eq!(off, [expected], "{lie}");
        }
    }

    #[test]
    fn damage_before_arrival_is_not_blamed_on_gro() {
        let mut world = World::new();
        assert!((0..15).all(|_| world.receive(1, LENGTH / 2)));
        assert!(!world.receive(1, LENGTH / 2), "it is tried without");
        assert!((0..15).all(|_| !world.receive(1, LENGTH / 2)));
        assert!(world.receive(1, LENGTH / 2), "it is as before");
        // Strangers spoil nothing, and good frames make up for bad ones.
        for _ in 0..100 {
            assert!((0..15).all(|_| world.receive(1, LENGTH / 2)));
            assert!(world.receive(COUNT, LENGTH));
        }
        assert_eq!(world.forwarder.shared.switched_off(), []);
    }
}
