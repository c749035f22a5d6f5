//! Datagrams between two nodes while an attacker on the path keeps, repeats and changes them; and frames on an
//! unencrypted link.

use std::time::Duration;

use overlay::segment::vnet::{LENGTH, VnetHeader};
use overlay::tunnel::header::{HEADER, Header, Protection};
use overlay::tunnel::keys::{Direction, Root, TAG};
use overlay::tunnel::lane::{Limits, Opening, Refused, Sealing, overhead};
use overlay_io::kernel::{HandedOver, What};

use crate::input::Input;

/// So small that keys change within a script.
const LIMITS: Limits = Limits { blocks: 16, age: Duration::from_secs(2) };

/// Datagrams that the attacker keeps, at most.
const KEPT: usize = 64;

const LANE: u8 = 2;
const SESSION: u32 = 77;

/// A lane, and its sent datagrams.
struct Lane {
    sealing: Sealing,
    opening: Opening,
    protection: Protection,
    /// A sent datagram, its content, and whether it was accepted.
    sent: Vec<(Vec<u8>, Vec<u8>, bool)>,
}

/// Seals, opens, repeats, changes and forges datagrams on a lane.
///
/// # Panics
/// If one is accepted twice, or though it was changed or forged, or the newest sent one is refused.
pub fn lane(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut lane = Lane::new(&if input.coin() { Root::new(&[7; 32]) } else { Root::plain() });
    let mut now = Duration::ZERO;
    while !input.is_empty() {
        match input.below(6) {
            0 => lane.send(input.bytes(), now),
            1 => {
                let length = lane.sent.len();
                lane.deliver(input.below(length.max(1)));
            }
            2 => lane.deliver_newest(),
            3 => lane.deliver_changed(&mut input),
            4 => lane.deliver_made_up(&mut input),
            _ => {
                now += Duration::from_millis(u64::from(input.byte()) * 20);
                lane.sealing.confirm(lane.opening.newest());
            }
        }
    }
}

impl Lane {
    fn new(root: &Root) -> Self {
        let direction = Direction::FromDialer;
        let sealing = Sealing::new(root, direction, LANE, SESSION, LIMITS, Duration::ZERO);
        let opening = Opening::new(root, direction, LANE);
        Self { sealing, opening, protection: root.protection(), sent: Vec::new() }
    }

    fn send(&mut self, content: &[u8], now: Duration) {
        let tag = overhead(self.protection) - HEADER;
        let mut datagram = [&[0; HEADER][..], content, &vec![0; tag]].concat();
        // All datagrams that may be sealed with an unconfirmed key were.
        if self.sealing.seal(&mut datagram, now).is_err() {
            return;
        }
        if self.sent.len() == KEPT {
            self.sent.remove(0);
        }
        self.sent.push((datagram, content.to_vec(), false));
    }

    fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Refused> {
        let header = Header::decode(datagram).ok_or(Refused::Short)?;
        self.opening.open(&header, &mut datagram.to_vec()).map(|content| content.to_vec())
    }

    /// Delivers a sent datagram, which may have come before. True if it was taken.
    fn deliver(&mut self, at: usize) -> bool {
        let Some((datagram, content, was_taken)) = self.sent.get(at).cloned() else { return false };
        let opened = self.open(&datagram);
        if let Ok(opened) = &opened {
            assert!(*opened == content && !was_taken, "changed, or taken twice");
            self.sent[at].2 = true;
        }
        opened.is_ok()
    }

    /// After any other datagrams, the one sent last is taken, once.
    fn deliver_newest(&mut self) {
        let Some(newest) = self.sent.len().checked_sub(1) else { return };
        let was_taken = self.sent[newest].2;
        let is_taken = self.deliver(newest);
        // A plain datagram may carry any forged number.
        if self.protection == Protection::Sealed {
            assert_eq!(is_taken, !was_taken);
        }
    }

    /// Nothing that was changed is taken where it would be noticed.
    fn deliver_changed(&mut self, input: &mut Input<'_>) {
        let length = self.sent.len();
        let Some((mut datagram, ..)) = self.sent.get(input.below(length.max(1))).cloned() else { return };
        let (place, change) = (input.word() as usize, input.byte());
        match change {
            0 => datagram.truncate(place % datagram.len()),
            255 => datagram.extend(input.bytes().iter().chain(&[0])),
            change => {
                let place = place % datagram.len();
                datagram[place] ^= change;
            }
        }
        let opened = self.open(&datagram);
        // The receiver finds lane and session by the header, which the key covers.
        assert!(self.protection == Protection::Plain || opened.is_err());
    }

    /// No datagram of a sender without the key is accepted.
    fn deliver_made_up(&mut self, input: &mut Input<'_>) {
        let protection = input.pick(&[Protection::Sealed, Protection::Plain]);
        let generation = input.below(4) as u16;
        let header =
            Header { protection, lane: LANE, generation, session: SESSION, counter: input.long() >> 58 };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        let datagram = [&header.encode()[..], input.bytes(), &[0; TAG]].concat();
        let opened = self.open(&datagram);
        assert!(self.protection == Protection::Plain || opened.is_err());
        assert!(protection == self.protection || opened == Err(Refused::Protection));
    }
}

/// Keys change, datagrams are repeated and overtaken, and the attacker sends some.
#[must_use]
pub fn lane_seeds() -> Vec<Vec<u8>> {
    let send = [0, 40].iter().chain(&[9; 40]).copied().collect::<Vec<u8>>();
    let (newest, first, tick) = ([2], [1, 0], [5, 120]);
    let changed = [3, 0, 20, 0, 0, 0, 1];
    let made_up = [4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16, 3, 7, 7, 7];
    let turn = [&send[..], &newest, &tick].concat();
    [0, 1]
        .iter()
        .flat_map(|kind| {
            [
                [&[*kind][..], &send, &first, &first].concat(),
                [&[*kind][..], &turn.repeat(6)].concat(),
                [&[*kind][..], &send, &changed, &newest, &send, &made_up, &newest].concat(),
            ]
        })
        .collect()
}

/// Frames that the kernel hands over: on an unencrypted link an attacker may have made them.
///
/// # Panics
/// If more is decoded than the bytes hold.
pub fn handed_over(bytes: &[u8]) {
    let Some(HandedOver { what: What::Frame(vnet, frame), .. }) = HandedOver::decode(bytes) else { return };
    let Some((header, rest)) = bytes.split_first_chunk::<LENGTH>() else { panic!("a header was read") };
    assert!(rest.ends_with(frame) && frame.len() < rest.len());
    let read = VnetHeader::decode(header);
    let front = (rest.len() - frame.len()) as u16;
    assert!(vnet == read || vnet.csum_start + front == read.csum_start, "a checksum has moved");
    assert_eq!((vnet.gso_size, vnet.csum_offset), (read.gso_size, read.csum_offset));
}

/// A word, and frames with and without a partial checksum.
#[must_use]
pub fn handed_over_seeds() -> Vec<Vec<u8>> {
    let front = [&[2; 12][..], &[0x88, 0xb6, 0, 0, 0, 7]].concat();
    let word = [&VnetHeader::default().encode()[..], &front, &front, &[1, 0, 60], &[0; 40]].concat();
    let frame = |vnet: VnetHeader| [&vnet.encode()[..], &front, &[3; 100]].concat();
    vec![
        word,
        frame(VnetHeader::default()),
        frame(VnetHeader::partial(52, 16)),
        frame(VnetHeader::partial(17, 16)),
    ]
}
