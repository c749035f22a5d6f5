//! Sockets over connections: hostile peers send anything, honest ones work on, and data before a violation can be read.

use std::collections::{HashMap, VecDeque};

use cm::socket::{
    AGREEMENT, Dialogue, HEADER, Kind, MAPPING, MAX_CREDITS, Mapping, SLOT, SLOTS, Slot, Violation, agrees,
    header, parse,
};

use crate::input::Input;

const KIND_AT: u32 = 28;
const CREDITS: u32 = (1 << KIND_AT) - 1;

/// Lets a peer send the script's messages.
///
/// # Panics
/// If the socket accepts an invalid message, or refuses an honest one.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(8) {
        0 => datagram(input.rest()),
        1 => {
            let private = input.rest();
            assert_eq!(agrees(private), private.get(..AGREEMENT.len()) == Some(&AGREEMENT));
        }
        2 => honest(&mut input),
        _ => hostile(&mut input),
    }
}

fn datagram(bytes: &[u8]) {
    let Some((from, data)) = parse(bytes) else { return };
    assert_eq!(data, &bytes[HEADER..]);
    // A decoded message is encoded again, and means the same.
    let again = header(from);
    assert_eq!(parse(&again), Some((from, &[][..])));
}

/// A socket, its slots, and their expected content.
struct Side {
    dialogue: Dialogue,
    memory: Vec<u8>,
    posted: VecDeque<usize>,
    /// Bytes that have come and were not read, and SENDs of data so far.
    unread: VecDeque<u8>,
    taken: usize,
    /// Credits that were given to the peer, and got from it.
    gave: usize,
    got: usize,
    sent: usize,
    mappings: HashMap<u64, Mapping>,
}

impl Side {
    fn new() -> Self {
        Self {
            dialogue: Dialogue::default(),
            memory: vec![0; SLOTS * SLOT],
            posted: (0..SLOTS).collect(),
            unread: VecDeque::new(),
            taken: 0,
            gave: 0,
            got: 0,
            sent: 0,
            mappings: HashMap::new(),
        }
    }

    /// Lets a message come, as the device does; `None` without a receive for it.
    fn deliver(
        &mut self,
        word: Option<u32>,
        contents: &[u8],
        length: usize,
    ) -> Option<Result<Slot, Violation>> {
        let slot = self.posted.pop_front()?;
        let bytes = &mut self.memory[slot * SLOT..(slot + 1) * SLOT];
        bytes[..contents.len()].copy_from_slice(contents);
        let before = self.dialogue.is_violated();
        let done = self.dialogue.received(slot, length, word, bytes);
        assert_eq!(done.is_err(), self.dialogue.is_violated());
        assert!(!before || done.is_err(), "a peer is ignored after its first violation");
        match done {
            Ok(Slot::Kept) => {
                self.taken += 1;
                self.unread.extend(&bytes[..length]);
            }
            Ok(Slot::Done) => self.posted.push_back(slot),
            Err(Violation) => {}
        }
        if let (Ok(_), Some(word)) = (done, word) {
            self.got += (word & CREDITS) as usize;
            if word >> KIND_AT == Kind::Mapping as u32 {
                self.mapped(contents);
            }
        }
        assert!(self.taken <= MAX_CREDITS + self.gave, "more data than receives for it");
        assert!(self.got <= self.sent, "more credits than SENDs of data");
        Some(done)
    }

    fn mapped(&mut self, contents: &[u8]) {
        let word = |at: usize| u64::from_be_bytes(contents[at..at + 8].try_into().expect("eight bytes"));
        let key = u32::from_be_bytes(contents[24..].try_into().expect("four bytes"));
        let mapping = Mapping { offset: word(0), length: word(8), address: word(16), key };
        self.mappings.insert(mapping.offset, mapping);
    }

    fn read(&mut self, most: usize, peeks: bool) {
        let (mut into, mut freed) = (vec![0; most], Vec::new());
        let got = self.dialogue.read(&self.memory, &mut into, peeks, &mut freed);
        assert_eq!(got, most.min(self.unread.len()));
        assert!(self.unread.iter().take(got).eq(&into[..got]), "the bytes differ from the received ones");
        if peeks {
            assert!(freed.is_empty());
            return;
        }
        self.unread.drain(..got);
        for slot in freed {
            assert!(!self.posted.contains(&slot), "posted twice");
            self.posted.push_back(slot);
            self.dialogue.owe();
        }
    }

    /// The word of a SEND.
    fn word(&mut self, kind: Kind) -> u32 {
        self.sent += usize::from(kind == Kind::Data);
        let word = self.dialogue.word(kind);
        assert_eq!(word >> KIND_AT, kind as u32);
        self.gave += (word & CREDITS) as usize;
        assert!(self.gave <= self.taken && self.sent <= MAX_CREDITS + self.got);
        word
    }

    /// `offset` has the latest mapping that the peer has sent.
    fn look(&self, offset: u64) {
        let Some((address, left, key)) = self.dialogue.place(offset) else { return };
        let is_it = |mapping: &Mapping| {
            let skipped = offset.wrapping_sub(mapping.offset);
            let place = (mapping.address.wrapping_add(skipped), mapping.key);
            offset >= mapping.offset
                && skipped < mapping.length
                && place == (address, key)
                && left == mapping.length - skipped
        };
        assert!(self.mappings.values().any(is_it), "nothing is mapped there");
    }

    fn finish(mut self) {
        self.read(self.unread.len() + 1, false);
        assert!(!self.dialogue.has_data());
    }
}

fn hostile(input: &mut Input<'_>) {
    let mut side = Side::new();
    while !input.is_empty() {
        match input.below(8) {
            0 => side.read(usize::from(input.byte()), input.coin()),
            1 => side.read(input.word() as usize % (3 * SLOT), input.coin()),
            2 if side.dialogue.may_send() => drop(side.word(Kind::Data)),
            3 => drop(side.word(input.pick(&[Kind::Credits, Kind::End, Kind::Mapping]))),
            4 => side.look(if input.coin() { u64::from(input.byte()) } else { input.long() }),
            _ => attack(&mut side, input),
        }
    }
    side.finish();
}

fn attack(side: &mut Side, input: &mut Input<'_>) {
    let kind = u32::from(input.byte() & 0xf);
    let credits = if input.coin() { u32::from(input.byte()) } else { input.word() & CREDITS };
    let word = (input.byte() != 0xff).then_some(kind << KIND_AT | credits);
    let (contents, length) = match input.below(8) {
        0 => (mapping(input).to_bytes().to_vec(), MAPPING),
        1 => (vec![input.byte(); SLOT], SLOT),
        2 => (Vec::new(), SLOT + usize::from(input.byte())),
        3 => (Vec::new(), input.word() as usize),
        4 => (Vec::new(), 0),
        _ => {
            let contents = input.bytes().to_vec();
            let length = contents.len();
            (contents, length)
        }
    };
    side.deliver(word, &contents, length);
}

fn mapping(input: &mut Input<'_>) -> Mapping {
    let offset = if input.coin() { u64::from(input.byte()) } else { input.long() };
    let length = if input.coin() { u64::from(input.byte()) } else { input.long() };
    Mapping { offset, length, address: input.long(), key: input.word() }
}

/// Two sockets: their programs cannot make either reject the other's messages, and all bytes arrive.
fn honest(input: &mut Input<'_>) {
    let mut sides = [Side::new(), Side::new()];
    let mut ways: [VecDeque<(u32, Vec<u8>)>; 2] = Default::default();
    while !input.is_empty() {
        let at = input.below(2);
        let (side, way) = (&mut sides[at], &mut ways[at]);
        match input.below(6) {
            0 => side.read(usize::from(input.byte()) * 64, input.coin()),
            1 => way.push_back((side.word(Kind::Credits), Vec::new())),
            2 => way.push_back((side.word(Kind::Mapping), mapping(input).to_bytes().to_vec())),
            3 => carry(&mut sides[1 - at], way),
            _ if side.dialogue.may_send() => {
                let data = [input.bytes(), &[7]].concat();
                way.push_back((side.word(Kind::Data), data));
            }
            _ => {}
        }
    }
    for at in 0..2 {
        ways[at].push_back((sides[at].word(Kind::End), Vec::new()));
        while !ways[at].is_empty() {
            carry(&mut sides[1 - at], &mut ways[at]);
        }
        assert!(sides[1 - at].dialogue.has_ended());
    }
    sides.into_iter().for_each(Side::finish);
}

fn carry(to: &mut Side, way: &mut VecDeque<(u32, Vec<u8>)>) {
    if let Some((word, contents)) = way.pop_front() {
        let done = to.deliver(Some(word), &contents, contents.len()).expect("a receive is there");
        assert!(done.is_ok(), "an honest peer is believed");
    }
}

/// Each kind of message, right and wrong, and a full window.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let says = |kind: u8, credits: u8, rest: &[u8]| [&[5, kind, 1, credits, 0], rest].concat();
    let mapping = [&[0, 1, 4, 1, 64], [9; 12].as_slice()].concat();
    let data = says(0, 0, &[5, 4, 1, 2, 3, 4]);
    let script = |parts: &[&[u8]]| [&[3], parts.concat().as_slice()].concat();
    let read = [0, 255, 0];
    let turns = [0, 4, 3, 1, 2, 3, 0, 3, 1, 0, 9, 0, 1, 1, 1, 3, 1, 2, 1, 7, 1, 9, 0, 3];
    vec![
        [&[0], header("10.1.2.3:80".parse().expect("an address")).as_slice(), b"data"].concat(),
        [&[0], header("[fe80::1]:7".parse().expect("an address")).as_slice(), b"data"].concat(),
        [&[1], AGREEMENT.as_slice(), &[0; 4]].concat(),
        [&[2], turns.repeat(8).as_slice()].concat(),
        script(&[&data, &read, &[3, 0], &[2], &says(1, 1, &[4]), &says(2, 0, &[4]), &data]),
        script(&[&says(3, 0, &mapping), &[4, 1, 5], &[4, 1, 200], &says(3, 0, &[5, 2, 0, 0])]),
        script(&[&data.repeat(MAX_CREDITS), &[1, 0, 0, 0, 0, 1], &read, &[3, 0], &data.repeat(2)]),
        script(&[&[2, 2], &says(1, 3, &[4])]),
        script(&[&says(0, 0, &[1, 9]), &[1, 0xff, 0xff, 0, 0, 0], &says(0, 0, &[2, 1])]),
        script(&[&[5, 0, 1, 0, 0xff, 5, 1, 1]]),
    ]
}
