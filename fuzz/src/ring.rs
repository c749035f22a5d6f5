//! A link's rings, in memory that the other side can overwrite.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;

use fabric::seqpacket;
use softhca::stream::{create_shm_pair, shm_stream};
use softhca::wire::{BRIEF, Brief, Header};
use softhca::{Interest, Stream};

use crate::input::Input;
use crate::link::arena::Guarded;

/// The layout of a link's memory, as `crates/rdma/softhca/src/stream/shm.rs` and `ring.rs` have it.
const PAGE: usize = 4096;
const CAPACITY: usize = 512 * 1024;
const MEMORY: usize = PAGE + 2 * CAPACITY;
const STEP: usize = 32;
const WORD: usize = 8;
/// Bits of a chunk's word that are its length; the others are its tag.
const LENGTH_BITS: u32 = 20;
/// Both rings' control words, and both gates'.
const WORDS: [usize; 12] =
    [0, 128, 256, 384, 1024, 1024 + 128, 1024 + 256, 1024 + 384, 2048, 2048 + 128, 2304, 2304 + 128];
const READ: usize = 128;
/// The ring that the lower end writes, and the one that the higher end writes.
const LOWER: usize = PAGE;
const HIGHER: usize = PAGE + CAPACITY;

/// The higher end of a link, which does as it likes. It can also play by the rules.
pub struct Hostile {
    memory: *mut u8,
    descriptors: [OwnedFd; 4],
    written: u64,
    read: u64,
}

// SAFETY: the mapping is good in every thread.
unsafe impl Send for Hostile {}

impl Hostile {
    /// A link's hostile end, and the other one.
    ///
    /// # Panics
    /// If there is no memory for it.
    #[must_use]
    pub fn new() -> (Self, Box<dyn Stream>) {
        let (lower, higher) = create_shm_pair().expect("a link's memory");
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping where the kernel likes.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), MEMORY, rights, libc::MAP_SHARED, higher[0].as_raw_fd(), 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let hostile = Self { memory: memory.cast(), descriptors: higher, written: 0, read: 0 };
        (hostile, shm_stream(lower, true).expect("the memory is as it should be"))
    }

    /// Stores `word` anywhere.
    pub fn poke(&mut self, offset: usize, word: u64) {
        self.store(offset.min(MEMORY - 8), &word.to_le_bytes());
    }

    /// Writes a chunk with `word` before it.
    pub fn send_as(&mut self, bytes: &[u8], word: u64) {
        let at = self.written;
        let next = (at + (WORD + bytes.len()) as u64).next_multiple_of(STEP as u64);
        self.in_ring(next, &[0; WORD]);
        self.in_ring(at + WORD as u64, bytes);
        self.in_ring(at, &word.to_le_bytes());
        self.written = next;
    }

    /// Writes a chunk, if it has room.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.send_tagged(bytes, 0)
    }

    /// The same for one with a tag.
    pub fn send_tagged(&mut self, bytes: &[u8], tag: u64) -> bool {
        let has_room = !bytes.is_empty() && self.room() >= bytes.len() + 4 * STEP + WORD;
        if has_room {
            self.send_as(bytes, bytes.len() as u64 | tag << LENGTH_BITS);
        }
        has_room
    }

    /// Takes all that the other end has written, with whole headers. A brief one that is none ends it.
    pub fn receive(&mut self) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some((length, tag)) = self.next_word() {
            let bytes: Vec<u8> =
                (0..length).map(|at| self.out_of_ring(self.read + WORD as u64 + at)).collect();
            taken.extend(if tag == 0 { bytes } else { in_full(&bytes, tag).unwrap_or_default() });
            self.poke(LOWER + (self.read % CAPACITY as u64) as usize, 0);
            self.read = (self.read + WORD as u64 + length).next_multiple_of(STEP as u64);
        }
        // Lines are given back as a whole.
        self.poke(READ, self.read / (2 * STEP as u64) * (2 * STEP as u64));
        taken
    }

    /// Passes a memory beside the link.
    pub fn pass(&self, id: u64, memories: &[OwnedFd]) {
        let beside: Vec<_> = memories.iter().map(AsFd::as_fd).collect();
        // A full socket takes no more.
        let _ = seqpacket::send(self.descriptors[3].as_fd(), &id.to_le_bytes(), &beside);
    }

    /// Length and tag of the next chunk.
    fn next_word(&self) -> Option<(u64, u64)> {
        let bytes: [u8; WORD] = std::array::from_fn(|at| self.out_of_ring(self.read + at as u64));
        let word = u64::from_le_bytes(bytes);
        let (length, tag) = (word & ((1 << LENGTH_BITS) - 1), word >> LENGTH_BITS);
        // Bytes that we have overwritten ourselves are not a chunk of the other end's.
        (1..CAPACITY as u64).contains(&length).then_some((length, tag))
    }

    fn room(&self) -> usize {
        let mut read = [0; 8];
        // SAFETY: the word lies in the mapping.
        unsafe { ptr::copy_nonoverlapping(self.memory.add(1024 + READ), read.as_mut_ptr(), 8) };
        let used = self.written.saturating_sub(u64::from_le_bytes(read));
        CAPACITY.saturating_sub(used as usize)
    }

    fn in_ring(&mut self, position: u64, bytes: &[u8]) {
        let start = (position % CAPACITY as u64) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(CAPACITY - start));
        self.store(HIGHER + start, first);
        self.store(HIGHER, &rest[..rest.len().min(CAPACITY)]);
    }

    fn out_of_ring(&self, position: u64) -> u8 {
        // SAFETY: it lies in the first ring.
        unsafe { self.memory.add(LOWER + (position % CAPACITY as u64) as usize).read() }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= MEMORY);
        // SAFETY: just checked.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(offset), bytes.len()) };
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.memory.cast(), MEMORY) };
    }
}

/// A message with a brief header, with the whole one.
fn in_full(bytes: &[u8], tag: u64) -> Option<Vec<u8>> {
    let (words, payload) = bytes.split_at_checked(BRIEF)?;
    let (words, _) = words.as_chunks();
    let brief = Brief { tag, words: [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])] };
    let header = Header::of_brief(brief, payload.len()).ok()?;
    Some([&header.encode()[..], payload].concat())
}

/// A word where it may do harm: a control word, a chunk's length, anywhere.
pub fn poke(hostile: &mut Hostile, input: &mut Input<'_>) {
    let offset = match input.below(3) {
        0 => input.pick(&WORDS),
        1 => HIGHER + STEP * usize::from(input.byte()),
        _ => input.word() as usize % MEMORY,
    };
    let small = u64::from(input.byte());
    let word = match input.below(5) {
        0 => small,
        1 => small * STEP as u64,
        2 => CAPACITY as u64 - small,
        3 => u64::MAX - small,
        _ => input.long(),
    };
    hostile.poke(offset, word);
}

/// An honest reader's state against a hostile writer.
struct World {
    hostile: Hostile,
    stream: Box<dyn Stream>,
    /// The bytes that were validly written and not read yet; `None` after a violation.
    sent: Option<Vec<u8>>,
}

/// Reads and writes rings as the script says.
///
/// # Panics
/// If other bytes are read than were validly written.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (hostile, stream) = Hostile::new();
    let mut world = World { hostile, stream, sent: Some(Vec::new()) };
    while !input.is_empty() {
        world.act(&mut input);
    }
    world.read(1 << 16);
}

impl World {
    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0 => self.write_by_the_rules(input),
            1 => {
                self.sent = None;
                let claimed = if input.coin() { u64::from(input.byte()) } else { input.long() };
                self.hostile.send_as(input.bytes(), claimed);
            }
            2 => {
                self.sent = None;
                poke(&mut self.hostile, input);
            }
            3 | 4 => self.read(usize::from(input.byte()) * input.below(64)),
            5 => self.write(usize::from(input.byte()) * 64),
            6 => drop(self.hostile.receive()),
            _ => self.doze(input.coin()),
        }
    }

    fn write_by_the_rules(&mut self, input: &mut Input<'_>) {
        let bytes = input.bytes().repeat(1 + input.below(64));
        if self.hostile.send(&bytes)
            && let Some(sent) = &mut self.sent
        {
            sent.extend(bytes);
        }
    }

    fn read(&mut self, most: usize) {
        let mut into = Guarded::take();
        let half = most / 2;
        let vectors = [into.vector(0, half), into.vector(half, most - half)];
        // SAFETY: both vectors lie in memory that is the buffer's.
        let Ok(read) = (unsafe { self.stream.read(&vectors) }) else { return };
        assert!(read <= most);
        assert!(into.is_clean_from(most), "nothing is stored beyond the requested bytes");
        if let Some(sent) = &mut self.sent {
            let expected: Vec<u8> = sent.drain(..read.min(sent.len())).collect();
            assert_eq!(into.bytes(read), expected);
        }
        into.clean(most);
    }

    fn write(&mut self, most: usize) {
        let from = Guarded::take();
        // SAFETY: the vector lies in memory that is the buffer's.
        if let Ok(written) = unsafe { self.stream.write(&[from.vector(0, most)]) } {
            assert!(written <= most);
        }
    }

    fn doze(&mut self, wants_to_write: bool) {
        let interest = Interest { reads: true, writes: wants_to_write };
        self.stream.prepare_to_sleep(interest);
        let _ = (self.stream.is_quiet(), self.stream.is_alive(interest));
        self.stream.awake();
        if let Some(neighbour) = self.stream.neighbour() {
            let _ = (neighbour.receive_memory(), neighbour.gate(), neighbour.peer_gate());
        }
    }
}

/// Some of each.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let honest =
        [&[0, 5, 1, 2, 3, 4, 5, 0, 3, 200, 63][..], &[0, 200], &[7; 200], &[63, 3, 255, 63, 5, 255, 6]];
    let lies = [&[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 4, 1, 2, 3, 4, 3, 9, 9][..]];
    let words = (0..WORDS.len() as u8).map(|word| vec![2, 0, word, 1, 3, 3, 9, 9, 5, 255, 7, 1]);
    let full: Vec<u8> = [5, 255].repeat(40);
    [honest.concat(), lies.concat(), full].into_iter().chain(words).collect()
}
