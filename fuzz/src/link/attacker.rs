//! A peer that sends arbitrary frames.

use std::os::fd::{FromRawFd, OwnedFd};

use fabric::{Epoch, ProcessId};
use softhca::wire::{
    self, Export, HEADER, Header, Hello, MAX_CONTROL, Opcode, Syndrome, encode_translations,
};
use softhca::{Device, Stream};
use verbs::{HandleKind, LookupList, Translation};

use crate::input::Input;
use crate::ring::{self, Hostile};

use super::application::{Application, FIRST, GROUP, Honest, KINDS, KNOWN_QKEY, MemoryMap, READABLE_BYTE};
use super::arena::{Lent, UNTOUCHED};
use super::pipe::{self, Pipe};
use super::world::{hello, process};

/// So many unwritten bytes in a row can only be memory that was not granted.
const TELLTALE: usize = 16;

/// All that a frame can be.
const OPCODES: [Opcode; 26] = [
    Opcode::Send,
    Opcode::SendImm,
    Opcode::Write,
    Opcode::WriteImm,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
    Opcode::SendInvalidate,
    Opcode::Datagram,
    Opcode::DatagramImm,
    Opcode::Ack,
    Opcode::Nak,
    Opcode::ReadResponse,
    Opcode::AtomicResponse,
    Opcode::ResyncAck,
    Opcode::Resync,
    Opcode::SelectSrq,
    Opcode::DatagramAck,
    Opcode::MapRequest,
    Opcode::Export,
    Opcode::Translate,
    Opcode::TranslateAck,
    Opcode::Hello,
    Opcode::Goodbye,
    Opcode::Barrier,
    Opcode::BarrierAck,
];

/// The stream that the attacker writes to.
pub enum Line {
    /// A stream.
    Stream(Pipe),
    /// Rings in shared memory.
    Ring(Box<Hostile>),
}

impl Line {
    /// Both ends of a stream.
    #[must_use]
    pub fn stream() -> (Self, Box<dyn Stream>) {
        let (near, far) = pipe::pair();
        (Self::Stream(near), Box::new(far))
    }

    /// Both ends of rings.
    #[must_use]
    pub fn ring() -> (Self, Box<dyn Stream>) {
        let (hostile, far) = Hostile::new();
        (Self::Ring(Box::new(hostile)), far)
    }

    fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::Stream(pipe) => pipe.send(bytes),
            // Bytes without room are dropped.
            Self::Ring(hostile) => drop(match in_brief(bytes) {
                Some((tag, brief)) => hostile.send_tagged(&brief, tag),
                None => hostile.send(bytes),
            }),
        }
    }

    fn receive(&mut self) -> Vec<u8> {
        match self {
            Self::Stream(pipe) => pipe.receive(),
            Self::Ring(hostile) => hostile.receive(),
        }
    }
}

/// See the module.
pub struct Attacker {
    make: fn() -> (Line, Box<dyn Stream>),
    line: Option<Line>,
    /// Memory of the link was changed against the rules: bytes that are read from it mean nothing.
    has_tampered: bool,
    /// Numbers and keys as applications know them.
    qpns: [u32; KINDS.len() + 1],
    own_qpns: [u32; KINDS.len() + 1],
    keys: [u32; 4],
    srq_number: u32,
    /// Addresses by which it may try memory.
    places: [u64; 4],
    /// The real handles that it has learnt.
    lookup: LookupList,
    /// The message that each connection expects next, if all goes well.
    next: [u64; KINDS.len() + 1],
    datagrams: u64,
    latest: Vec<u8>,
    /// The rest of a partly sent frame.
    rest: Vec<u8>,
    /// The rest of a partly received frame.
    heard: Vec<u8>,
}

impl Attacker {
    /// An attacker that knows all that `application` has told it, and more.
    pub fn new(
        application: &Application,
        honest: &Honest,
        memory: &Lent,
        make: fn() -> (Line, Box<dyn Stream>),
    ) -> Self {
        let (honest_qpn, friends_qpn, honest_key) = honest.names();
        let mut qpns = [honest_qpn; KINDS.len() + 1];
        qpns[..KINDS.len()].copy_from_slice(&application.qpns);
        let own = |slot| process(3).qpn(slot as u16 + 1);
        let mut own_qpns = std::array::from_fn(own);
        own_qpns[KINDS.len()] = friends_qpn;
        let [granted, readable, window] = application.keys;
        let at = |offset: usize| memory.address() + offset as u64;
        Self {
            make,
            line: None,
            has_tampered: false,
            qpns,
            own_qpns,
            keys: [granted, readable, window, honest_key],
            srq_number: application.srq_number,
            places: [MemoryMap::GRANTED.0, MemoryMap::READABLE.0, MemoryMap::HONEST.0, 0].map(at),
            lookup: LookupList::default(),
            next: [u64::from(FIRST); KINDS.len() + 1],
            datagrams: 0,
            latest: Vec::new(),
            rest: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// Which process it is.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        process(3)
    }

    /// Comes with a new link, and perhaps with a greeting.
    pub fn link(&mut self, victim: &mut Device, greets: bool) {
        let (line, far) = (self.make)();
        self.line = Some(line);
        self.has_tampered = false;
        self.rest.clear();
        self.heard.clear();
        victim.link_up(self.id(), Epoch(0), far);
        if greets {
            let hello = hello(self.id()).encode();
            self.say_whole(&Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) }, &hello);
            self.say_whole(&Header::new(Opcode::Ready), &[]);
            victim.progress(std::time::Duration::from_secs(1));
            self.listen();
        }
    }

    /// Says any bytes.
    pub fn say(&mut self, bytes: &[u8]) {
        let rest = std::mem::take(&mut self.rest);
        let Some(line) = &mut self.line else { return };
        line.send(&rest);
        line.send(bytes);
    }

    fn say_whole(&mut self, header: &Header, payload: &[u8]) {
        self.say(&[&header.encode()[..], payload].concat());
    }

    /// Repeats its last frames some times.
    pub fn repeat(&mut self, times: u8) {
        self.say(&self.latest.repeat(usize::from(times)));
    }

    /// Says a frame, at once or in two parts.
    pub fn say_frame(&mut self, input: &mut Input<'_>) {
        let (header, payload) = self.frame(input);
        let frame = [&header.encode()[..], &payload].concat();
        let cut = usize::from(input.byte());
        let at = if cut == 0 { frame.len() } else { cut.min(frame.len()) };
        self.say(&frame[..at]);
        self.rest = frame[at..].to_vec();
        self.latest = frame;
    }

    /// A nearly correct frame, with as many bytes as it claims, or others.
    fn frame(&mut self, input: &mut Input<'_>) -> (Header, Vec<u8>) {
        let opcode = input.pick(&OPCODES);
        let slot = input.below(KINDS.len() + 2);
        let modes = input.byte();
        let small = input.byte();
        let mut header = self.addressed(opcode, slot, modes, input);
        header.flags = input.byte();
        header.imm = u32::from(small);
        header.va = match modes >> 6 {
            place @ 0..=2 => self.places[usize::from(place)] + 8 * u64::from(small),
            _ => input.long(),
        };
        header.rkey = match modes >> 4 & 3 {
            key @ 0..=2 => self.real(HandleKind::MemoryKey, self.keys[usize::from(key)]),
            _ if small & 1 == 0 => self.real(HandleKind::MemoryKey, self.keys[3]),
            _ => input.word(),
        };
        let payload = self.payload(&mut header, input);
        header.msn = self.number(&header, slot, modes & 3, small, input);
        (header, payload)
    }

    fn real(&self, kind: HandleKind, known: u32) -> u32 {
        self.lookup.real(kind, known)
    }

    fn addressed(&self, opcode: Opcode, slot: usize, modes: u8, input: &mut Input<'_>) -> Header {
        let known = self.qpns.get(slot).copied();
        let is_datagram = matches!(opcode, Opcode::Datagram | Opcode::DatagramImm);
        let dst_qpn = match known {
            // Datagrams name their receiver as applications do.
            Some(known) if is_datagram => known,
            Some(known) => self.real(HandleKind::QueuePair, known),
            None => input.word(),
        };
        let own = self.own_qpns.get(slot).copied().unwrap_or(0);
        let src_qpn = if modes >> 2 & 3 == 3 { input.word() } else { own };
        Header { dst_qpn, src_qpn, ..Header::new(opcode) }
    }

    /// The message's number: the expected one, one close to it, or any.
    fn number(&mut self, header: &Header, slot: usize, mode: u8, small: u8, input: &mut Input<'_>) -> u64 {
        if matches!(header.opcode, Opcode::Datagram | Opcode::DatagramImm) && mode == 0 {
            self.datagrams += 1;
            return self.datagrams - 1;
        }
        let Some(next) = self.next.get_mut(slot) else { return input.long() };
        match mode {
            0 if header.is_request() => {
                let whole = header.offset.wrapping_add(header.length) == header.total;
                *next += u64::from(whole || header.opcode == Opcode::Read);
                *next - u64::from(whole || header.opcode == Opcode::Read)
            }
            0 | 1 => u64::from(FIRST) + u64::from(small & 15),
            2 => next.wrapping_add(u64::from(small)).wrapping_sub(128),
            _ => input.long(),
        }
    }

    fn payload(&self, header: &mut Header, input: &mut Input<'_>) -> Vec<u8> {
        let payload = match header.opcode {
            Opcode::Hello => hello_of(input).encode().to_vec(),
            Opcode::Export => self.export(input).encode().to_vec(),
            Opcode::Translate => self.translations(input),
            Opcode::CompareSwap | Opcode::FetchAdd => {
                header.total = 16;
                [input.long().to_le_bytes(), input.long().to_le_bytes()].concat()
            }
            Opcode::Datagram | Opcode::DatagramImm => {
                header.rkey = KNOWN_QKEY;
                header.va = u64::from(input.byte() & 3);
                let bytes = self.message(header, input);
                let group: &[u8] = if header.flags & wire::flag::GROUP == 0 { &[] } else { &GROUP };
                header.total = (group.len() + bytes.len()) as u32;
                [group, bytes.as_slice()].concat()
            }
            Opcode::Nak => {
                header.syndrome = Syndrome::from_wire(input.byte() & 7);
                Vec::new()
            }
            Opcode::SelectSrq => {
                header.imm = self.real(HandleKind::SharedReceiveQueue, self.srq_number);
                Vec::new()
            }
            Opcode::Read => {
                header.total = 8 * u32::from(input.byte());
                Vec::new()
            }
            _ if header.is_request() || header.opcode == Opcode::ReadResponse => self.message(header, input),
            _ => Vec::new(),
        };
        header.length = payload.len() as u32;
        payload
    }

    /// Bytes of a message, or of a part of one.
    fn message(&self, header: &mut Header, input: &mut Input<'_>) -> Vec<u8> {
        let length = u32::from(input.byte()) * if input.coin() { 1 } else { 64 };
        (header.offset, header.total) = match input.below(6) {
            0..=2 => (0, length),
            3 => (0, 2 * length),
            4 => (length, 2 * length),
            _ => (input.word(), input.word()),
        };
        // Never the content of unwritten memory.
        vec![input.byte() & 0x7f; length as usize]
    }

    fn export(&self, input: &mut Input<'_>) -> Export {
        Export {
            memory: u64::from(input.byte() & 7),
            offset: u64::from(input.byte()) * if input.coin() { 4096 } else { 1 },
            length: if input.coin() { input.long() } else { 4096 },
            rights: u32::from(input.byte()),
            count: u32::from(input.byte() & 1),
        }
    }

    fn translations(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut payload = Vec::new();
        for _ in 0..input.below(16) {
            let kind = input.pick(&[HandleKind::QueuePair, HandleKind::MemoryKey]);
            let virtual_handle = if input.coin() { self.own_qpns[0] } else { input.word() };
            encode_translations(&[Translation { kind, virtual_handle, real: input.word() }], &mut payload);
        }
        payload.extend(input.bytes());
        payload
    }

    /// Changes the link's memory, or passes some beside it.
    pub fn harm_memory(&mut self, input: &mut Input<'_>) {
        let Some(Line::Ring(hostile)) = &mut self.line else { return };
        if input.coin() {
            self.has_tampered = true;
            return ring::poke(hostile, input);
        }
        let count = input.below(3);
        let memories: Vec<_> = (0..count).map(|_| memory(input)).collect();
        hostile.pass(u64::from(input.byte() & 7), &memories);
    }

    /// Reads incoming frames: they are well-formed, and hold no memory that was not granted.
    pub fn listen(&mut self) {
        let Some(line) = &mut self.line else { return };
        let bytes = line.receive();
        if self.has_tampered {
            return;
        }
        let untouched = bytes.chunk_by(|a, b| a == b).filter(|run| run[0] == UNTOUCHED);
        let longest = untouched.map(<[u8]>::len).max().unwrap_or(0);
        assert!(longest < TELLTALE, "memory that was not granted is told");
        self.heard.extend(bytes);
        while let Some((header, payload)) = take_frame(&mut self.heard) {
            if header.opcode == Opcode::Translate {
                let lines = wire::decode_translations(&payload).expect("whole lines");
                lines.for_each(|line| self.lookup.learn(line.expect("a line")).expect("few lines"));
            }
        }
    }
}

/// A frame with a brief header, and the tag of its chunk, if it can have one.
fn in_brief(frame: &[u8]) -> Option<(u64, Vec<u8>)> {
    let (header, payload) = (Header::decode(frame.first_chunk::<HEADER>()?).ok()?, &frame[HEADER..]);
    let brief = header.brief();
    let again = Header::of_brief(brief, payload.len());
    let is_same = Header::fits_brief(header.msn, header.va) && again == Ok(header);
    is_same.then(|| (brief.tag, [&brief.words.map(u64::to_ne_bytes).concat()[..], payload].concat()))
}

/// The first frame of `heard`, if it is complete.
fn take_frame(heard: &mut Vec<u8>) -> Option<(Header, Vec<u8>)> {
    let header = Header::decode(heard.first_chunk::<HEADER>()?).expect("a device sends valid headers");
    let end = HEADER + header.length as usize;
    let payload = heard.get(HEADER..end)?.to_vec();
    heard.drain(..end);
    Some((header, payload))
}

fn hello_of(input: &mut Input<'_>) -> Hello {
    let process = process(1 + u16::from(input.byte() & 3));
    Hello { epoch: Epoch(u64::from(input.byte())), incarnation: u64::from(input.byte()), ..hello(process) }
}

/// A memory as neighbours pass it, or one that is not as it should be.
fn memory(input: &mut Input<'_>) -> OwnedFd {
    let length = input.pick(&[0, 4096, 65536, 1 << 40, i64::MAX]);
    let seals = input.pick(&[0, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL]);
    // SAFETY: the name is a C string, and the descriptor is fresh.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let memory = libc::memfd_create(c"fuzz".as_ptr(), flags);
        assert!(memory >= 0);
        libc::ftruncate(memory, length);
        libc::fcntl(memory, libc::F_ADD_SEALS, seals);
        OwnedFd::from_raw_fd(memory)
    }
}

/// Parts of scripts.
pub mod script {
    use super::{OPCODES, Opcode};

    fn frame(opcode: Opcode, slot: u8, modes: u8, small: u8, rest: &[u8]) -> Vec<u8> {
        let number = OPCODES.iter().position(|known| *known == opcode).unwrap_or(0) as u8;
        [&[0, number, slot, modes, small, 0], rest, &[0]].concat()
    }

    /// A request to the attacker's connection `slot`, as it should be.
    #[must_use]
    pub fn request(opcode: Opcode, slot: u8) -> Vec<u8> {
        let rest: &[u8] = match opcode {
            Opcode::Read => &[4],
            Opcode::CompareSwap | Opcode::FetchAdd => &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            Opcode::SelectSrq | Opcode::Resync => &[],
            Opcode::Datagram | Opcode::DatagramImm => &[0, 40, 1, 0, 9],
            _ => &[40, 1, 0, 9],
        };
        let key = if opcode == Opcode::SendInvalidate { 2 << 4 } else { 0 };
        frame(opcode, slot, key, 0, rest)
    }

    /// The application posts a request on connection `slot`.
    #[must_use]
    pub fn post(slot: u8, kind: u8) -> Vec<u8> {
        [&[8, slot, 2, 0, 5, 0][..], &[0, 16, 0, 0, 0, 0, 0, 0], &[9, kind]].concat()
    }

    /// An answer on connection `slot`.
    #[must_use]
    pub fn answer(opcode: Opcode, slot: u8) -> Vec<u8> {
        let rest: &[u8] = match opcode {
            Opcode::Nak => &[1],
            Opcode::ReadResponse => &[40, 1, 0, 9],
            Opcode::Export => &[1, 0, 0, 0, 7, 0],
            _ => &[],
        };
        frame(opcode, slot, 1, u8::from(opcode == Opcode::Ack), rest)
    }

    /// A new link.
    #[must_use]
    pub fn relink() -> Vec<u8> {
        vec![9, 1]
    }

    /// A store to a control word of the link.
    #[must_use]
    pub fn poke(word: u8) -> Vec<u8> {
        vec![14, 1, 0, word, 1, 3]
    }

    /// Memory is passed beside the link.
    #[must_use]
    pub fn pass_memory() -> Vec<u8> {
        vec![14, 0, 1, 2, 1, 1]
    }
}

const _: () = assert!(MAX_CONTROL as usize > 16 * 12 + 255 && READABLE_BYTE != UNTOUCHED);
