//! A link through shared memory: a ring for each direction, and sockets to wake sleepers.
//!
//! ```text
//!  memfd: │ control of ring 0 │ of ring 1 │ gate 0 │ gate 1 │ … page │ data of ring 0 │ data of ring 1 │
//! ```
//!
//! The memfd is sealed against shrinking, so that a peer cannot make us fault by truncating it. A pair of
//! sockets wakes sleepers rather than an eventfd: both sides would share its open file, and a peer that sets it to blocking mode
//! could block us for ever.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;

use libc::iovec;
use waiting::Uncancelled;

use crate::asymmetric::Among;
use crate::mapping::{self, Source};

use super::gate::{Gate, Keeper, PassedMemory};
use super::ring::{CAPACITY, CONTROL, Front, Place, Reader, Writer};
use super::{Interest, Neighbour, Stream, Waitable};

const PAGE: usize = 4096;
const MEMORY: usize = PAGE + 2 * CAPACITY;
/// Both controls, and each ring's data twice.
const MAPPED: usize = PAGE + 4 * CAPACITY;
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The descriptors for the lower and for the higher end of a shared-memory link.
///
/// # Errors
/// If descriptors or memory run out.
pub fn create_shm_pair() -> io::Result<([OwnedFd; 4], [OwnedFd; 4])> {
    let memory = create_memory()?;
    let ((lower_wakes, wakes_lower), (higher_wakes, wakes_higher)) =
        (UnixStream::pair()?, UnixStream::pair()?);
    let (lower_end, higher_end) = UnixStream::pair()?;
    let lower = [memory.try_clone()?, lower_wakes.into(), wakes_higher.into(), lower_end.into()];
    Ok((lower, [memory, higher_wakes.into(), wakes_lower.into(), higher_end.into()]))
}

/// A stream over a shared-memory ring, from the descriptors of a
/// [`fabric::attach::Transport::SharedMemory`] link. `lower_end`: this is the process with the
/// lower `ProcessId`.
///
/// # Errors
/// If the memory is not as [`create_shm_pair`] makes it, or cannot be mapped.
pub fn shm_stream(descriptors: [OwnedFd; 4], lower_end: bool) -> io::Result<Box<dyn Stream>> {
    let [memory, own_wakes, peer_wakes, liveness] = descriptors;
    check_memory(&memory)?;
    let mapping = Arc::new(Mapping::new(&memory)?);
    let (sends, receives) = if lower_end { (0, 1) } else { (1, 0) };
    let registered = Among::Processes.register();
    Ok(Box::new(Shm {
        writer: Writer::new(mapping.place(sends), registered),
        reader: Reader::new(mapping.place(receives), registered),
        own_gate: gate(&mapping, sends),
        peer_gate: gate(&mapping, receives),
        own_wakes,
        peer_wakes,
        liveness: Some(liveness),
        shares: registered,
        sleeping: false,
        waiting: false,
        _mapping: mapping,
    }))
}

/// A stream that brings a process its own bytes back.
pub(crate) fn loopback() -> io::Result<Box<dyn Stream>> {
    let mapping = Arc::new(Mapping::new(&create_memory()?)?);
    let (own_wakes, peer_wakes) = UnixStream::pair()?;
    let registered = Among::Processes.register();
    Ok(Box::new(Shm {
        writer: Writer::new(mapping.place(0), registered),
        reader: Reader::new(mapping.place(0), registered),
        own_gate: gate(&mapping, 0),
        peer_gate: gate(&mapping, 1),
        own_wakes: own_wakes.into(),
        peer_wakes: peer_wakes.into(),
        liveness: None,
        shares: false,
        sleeping: false,
        waiting: false,
        _mapping: mapping,
    }))
}

fn create_memory() -> io::Result<OwnedFd> {
    const NAME: &CStr = c"transhume-link";
    // SAFETY: the name is a C string.
    let memory =
        owned(unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(memory.as_raw_fd(), MEMORY as libc::off_t) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(memory)
}

/// Refuses memory that its maker could take away from under us.
fn check_memory(memory: &OwnedFd) -> io::Result<()> {
    // SAFETY: a stat of zeros is valid, and the call fills it.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is live and of the right type.
    check(unsafe { libc::fstat(memory.as_raw_fd(), &mut about) })?;
    // SAFETY: no memory is passed.
    let seals = check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) })?;
    if about.st_size != MEMORY as libc::off_t || seals & SEALS != SEALS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "shared memory of a link is not sealed, or of another size",
        ));
    }
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call has just returned the descriptor, so this is its only owner.
    check(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A link's memory, mapped.
struct Mapping(*mut u8);

// SAFETY: the address of a mapping is good in every thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives out addresses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(memory: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a fresh mapping where the kernel likes.
        let base = unsafe {
            mapping::map(ptr::null_mut(), MAPPED, libc::PROT_NONE, libc::MAP_PRIVATE, Source::Anonymous)?
        };
        let mapping = Self(base.cast());
        mapping.show(memory, 0, PAGE, 0)?;
        for ring in 0..2 {
            let in_file = PAGE + ring * CAPACITY;
            let at = PAGE + ring * 2 * CAPACITY;
            mapping.show(memory, at, CAPACITY, in_file)?;
            mapping.show(memory, at + CAPACITY, CAPACITY, in_file)?;
        }
        Ok(mapping)
    }

    /// Maps `length` bytes of `memory` from `in_file` at `at`.
    fn show(&self, memory: &OwnedFd, at: usize, length: usize, in_file: usize) -> io::Result<()> {
        // SAFETY: the range lies in the reservation that `new` made, and replaces a part of it.
        unsafe {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            let source = Source::File(memory.as_fd(), in_file as u64);
            mapping::map(self.0.add(at).cast(), length, rights, flags, source).map(drop)
        }
    }

    fn place(&self, ring: usize) -> Place {
        // SAFETY: `new` mapped control and mirrored data of both rings; each side holds the mapping.
        unsafe { Place::new(self.0.add(ring * CONTROL), self.0.add(PAGE + ring * 2 * CAPACITY)) }
    }
}

fn gate(mapping: &Arc<Mapping>, end: usize) -> Gate {
    // SAFETY: the first page is mapped and has room for two gates behind the controls.
    unsafe { Gate::new(mapping.0.add(2 * CONTROL + end * Gate::SIZE), Arc::clone(mapping) as Keeper) }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and the sides that use it are dropped with it.
        unsafe { mapping::unmap(self.0.cast(), MAPPED) };
    }
}

/// One end of a link through shared memory.
///
/// Beside the operations of every [`Stream`], short messages are made and read in place.
pub struct Shm {
    writer: Writer,
    reader: Reader,
    /// Wakes us.
    own_wakes: OwnedFd,
    /// Wakes the peer.
    peer_wakes: OwnedFd,
    /// Ends with the peer.
    liveness: Option<OwnedFd>,
    /// The peer is another process, which may rely on our fences.
    shares: bool,
    sleeping: bool,
    waiting: bool,
    own_gate: Gate,
    peer_gate: Gate,
    _mapping: Arc<Mapping>,
}

impl Shm {
    /// Where a write of `count` bytes has room now, or `None`. [`Self::commit`] makes it.
    #[inline]
    pub(crate) fn reserve(&mut self, count: usize) -> io::Result<Option<*mut u8>> {
        self.writer.reserve(count)
    }

    /// The bytes that were reserved have been stored. `tag`: 0 if they belong to the stream of bytes.
    #[inline]
    pub(crate) fn commit(&mut self, count: usize, tag: u64) {
        if self.writer.commit(count, tag) {
            self.wake_peer();
        }
    }

    /// The rest of the oldest write. The peer may change it at any time.
    #[inline]
    pub(crate) fn front(&mut self) -> io::Result<Option<Front>> {
        self.reader.front()
    }

    /// True if nothing is left, and nothing more will come.
    #[inline]
    pub(crate) fn has_ended(&mut self) -> io::Result<bool> {
        self.reader.has_ended()
    }

    /// Done with `count` bytes of the front, which stay until [`Self::release`].
    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }

    /// Gives processed bytes back to the peer.
    #[inline]
    pub(crate) fn release(&self) {
        if self.reader.release() {
            self.wake_peer();
        }
    }

    fn wake_peer(&self) {
        let _whole = Uncancelled::new();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a live byte. A socket that is full wakes as well.
        unsafe { libc::send(self.peer_wakes.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
    }
}

// SAFETY: the rings copy the bytes that the vectors name and keep nothing.
unsafe impl Stream for Shm {
    #[inline]
    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize> {
        // SAFETY: the caller's promise is passed on.
        let (count, wake) = unsafe { self.writer.write(from)? };
        if wake {
            self.wake_peer();
        }
        Ok(count)
    }

    // SAFETY: the trait's contract, as for `write`.
    #[inline]
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
        // SAFETY: the caller's promise is passed on.
        let (count, wake) = unsafe { self.reader.read(into)? };
        if wake {
            self.wake_peer();
        }
        Ok(count)
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        self.reader.is_quiet()
    }

    fn is_alive(&self, interest: Interest) -> bool {
        let Some(liveness) = &self.liveness else { return true };
        // Not by reading: memory that the peer has passed may stand before the end.
        let mut state = libc::pollfd { fd: liveness.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one live entry is passed.
        unsafe { libc::poll(&raw mut state, 1, 0) };
        let has_ended = state.revents & (libc::POLLHUP | libc::POLLRDHUP) != 0;
        !has_ended || interest.reads && !self.reader.is_quiet()
    }

    fn waitables(&self, _interest: Interest, add: &mut dyn FnMut(Waitable)) {
        add(Waitable { fd: self.own_wakes.as_raw_fd(), readable: true, writable: false });
        if let Some(liveness) = &self.liveness {
            // The bytes that the peer puts there do not wake.
            add(Waitable { fd: liveness.as_raw_fd(), readable: false, writable: false });
        }
    }

    fn descriptors(&self, add: &mut dyn FnMut(RawFd)) {
        let all = [&self.own_wakes, &self.peer_wakes].into_iter().chain(&self.liveness);
        all.map(AsRawFd::as_raw_fd).for_each(add);
    }

    fn prepare_to_sleep(&mut self, interest: Interest) -> bool {
        self.sleeping = interest.reads;
        self.waiting = interest.writes;
        (!interest.reads || self.reader.sleep()) && (!interest.writes || self.writer.wait())
    }

    fn neighbour(&self) -> Option<&dyn Neighbour> {
        self.shares.then_some(self)
    }

    fn awake(&mut self) {
        let was_woken = std::mem::take(&mut self.sleeping) && !self.reader.stop_sleeping();
        let has_room = std::mem::take(&mut self.waiting) && !self.writer.stop_waiting();
        if was_woken || has_room {
            self.drain_wakes();
        }
    }

    fn drain_wakes(&mut self) {
        let _whole = Uncancelled::new();
        let mut wakes = [0u8; 256];
        // SAFETY: so many live bytes. Nothing there is fine.
        unsafe {
            libc::recv(self.own_wakes.as_raw_fd(), wakes.as_mut_ptr().cast(), wakes.len(), libc::MSG_DONTWAIT)
        };
    }
}

impl Neighbour for Shm {
    fn send_memory(&self, id: u64, memory: BorrowedFd<'_>) -> io::Result<()> {
        let liveness = self.liveness.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        PassedMemory::send(liveness.as_fd(), id, memory)
    }

    fn receive_memory(&self) -> io::Result<(u64, OwnedFd)> {
        let liveness = self.liveness.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        PassedMemory::receive(liveness.as_fd())
    }

    fn gate(&self) -> u32 {
        self.own_gate.count()
    }

    fn close_gate(&self) -> bool {
        self.own_gate.close()
    }

    fn peer_gate(&self) -> Gate {
        self.peer_gate.clone()
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.writer.close();
        self.wake_peer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn no_old_byte_is_taken_for_a_length_however_often_the_ring_goes_round() {
        let (lower, higher) = create_shm_pair().unwrap();
        let (mut writer, mut reader) = (shm_stream(lower, true).unwrap(), shm_stream(higher, false).unwrap());
        let (mut sent, mut taken) = (vec![1u8; 200], vec![0u8; 400]);
        let mut passed = 0;
        for turn in 0.. {
            let length = 1 + turn * 37 % sent.len();
            // SAFETY: the vectors name live vectors.
            unsafe {
                assert_eq!(writer.write(&[vector(&mut sent[..length])]).unwrap(), length);
                assert_eq!(reader.read(&[vector(&mut taken)]).unwrap(), length);
                let nothing = reader.read(&[vector(&mut taken)]).unwrap_err();
                assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
            }
            assert!(reader.is_quiet());
            passed += length;
            if passed > 8 * CAPACITY {
                break;
            }
        }
    }
}
