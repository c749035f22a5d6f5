//! The bytes of a connected socket: SENDs of up to a slot's size, each with a word of control beside it.
//!
//! A SEND of data takes a credit, which comes back when the program has read the data; the last few receives are
//! for words without data, which take none. [`Dialogue`] checks the peer's messages. The protection domain is the
//! connection's own, so that no other peer's keys are valid here.

use std::os::fd::RawFd;
use std::ptr;

use cm::socket::{Dialogue, Kind, MAPPING, MAX_CREDITS, Mapping, SLOT, SLOTS, Slot, Violation};
use verbs_abi as abi;
use verbs_abi::constants::access::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use verbs_abi::constants::wc_flags::IBV_WC_WITH_IMM;
use verbs_abi::constants::{send_flags, wr_opcode};

use crate::device::Device;
use crate::errno::{self, Errno, Result, done, made};
use crate::id::Id;
use crate::pages::Pages;
use crate::qp;
use crate::verbs::{Verbs, kind, zeroed};

use super::option::Sizes;

/// Work requests without a slot that may be under way besides.
const WORDS: usize = 64;

/// The sizes of its queues and slots. Unread data fills the slots that it may use.
pub(super) const SIZES: Sizes = Sizes {
    send_requests: 2 * SLOTS + WORDS,
    receive_requests: SLOTS,
    send_bytes: MAX_CREDITS * SLOT,
    receive_bytes: MAX_CREDITS * SLOT,
};

/// `IBV_WC_RECV`: the completion of a SEND. A WRITE with an immediate completes a receive as well, and puts nothing
/// into it.
const RECV: u32 = 1 << 7;

/// `wr_id` of sends has this bit; below is the slot, or [`SLOTS`] for none.
const SEND: u64 = 1 << 32;

/// See the module.
pub(crate) struct Stream {
    verbs: &'static Verbs,
    pd: *mut abi::ibv_pd,
    channel: *mut abi::ibv_comp_channel,
    cq: *mut abi::ibv_cq,
    qp: *mut abi::ibv_qp,
    mr: *mut abi::ibv_mr,
    /// Slots for receives, then slots for sends.
    memory: Pages,
    free: Vec<usize>,
    /// Work requests without a slot under way.
    words: usize,
    /// The state of the dialogue with the peer.
    dialogue: Dialogue,
    /// The peer knows that no more data comes.
    end_said: bool,
    /// Nothing gets through any more.
    pub(crate) broken: bool,
    /// The mappings that the peer may write to, the newest last.
    regions: Vec<Region>,
    /// Revoked mappings that the peer does not know to be revoked yet.
    unmapped: Vec<u64>,
}

/// Memory of the program that the peer may write to.
struct Region {
    mr: *mut abi::ibv_mr,
    at: usize,
    length: usize,
    /// Where the peer finds it.
    offset: u64,
}

// SAFETY: its pointers are used under the socket's lock; the functions of verbs may be called from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream over a new queue pair of `id`, with its receives posted.
    pub(crate) fn new(device: &Device, id: &mut Id) -> Result<Self> {
        let verbs = device.verbs;
        errno::memory()?;
        let memory = Pages::new(2 * SLOTS * SLOT)?;
        // SAFETY: the device is open.
        let pd = made(unsafe { (verbs.ibv_alloc_pd)(device.context) })?;
        let mut stream = Self {
            verbs,
            pd,
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            mr: ptr::null_mut(),
            memory,
            free: (0..SLOTS).collect(),
            words: 0,
            dialogue: Dialogue::default(),
            end_said: false,
            broken: false,
            regions: Vec::new(),
            unmapped: Vec::new(),
        };
        match stream.create(device, id) {
            Ok(()) => Ok(stream),
            Err(errno) => {
                // The queue pair uses the stream's objects.
                qp::destroy(id);
                Err(errno)
            }
        }
    }

    fn create(&mut self, device: &Device, id: &mut Id) -> Result<()> {
        let (at, bytes) = (self.memory.as_mut_ptr(), self.memory.len());
        let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        // SAFETY: the memory lives as long as the region.
        self.mr = made(unsafe { (self.verbs.ibv_reg_mr)(self.pd, at.cast(), bytes, access) })?;
        // SAFETY: the device is open; null pointers and zeroes are values of the structure.
        let mut attr: abi::ibv_qp_init_attr = unsafe {
            self.channel = made((self.verbs.ibv_create_comp_channel)(device.context))?;
            waiting::set_nonblocking((*self.channel).fd)?;
            let entries = (3 * SLOTS + WORDS) as i32;
            let cq = (self.verbs.ibv_create_cq)(device.context, entries, ptr::null_mut(), self.channel, 0);
            self.cq = made(cq)?;
            zeroed()
        };
        attr.send_cq = self.cq;
        attr.recv_cq = self.cq;
        attr.qp_type = kind::RC;
        attr.cap.max_send_wr = SIZES.send_requests as u32;
        attr.cap.max_recv_wr = SIZES.receive_requests as u32;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        qp::create_classic(id, self.pd, &mut attr)?;
        self.qp = id.c.qp;
        (0..SLOTS).try_for_each(|slot| self.post_receive(slot))
    }

    /// Readable, once armed, when something may have come.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.channel).fd }
    }

    /// Whether [`Self::read`] would find data.
    pub(crate) fn has_data(&self) -> bool {
        self.dialogue.has_data()
    }

    /// True if the peer sends no more data.
    pub(crate) fn has_ended(&self) -> bool {
        self.dialogue.has_ended()
    }

    /// Whether the peer has violated the protocol of sockets.
    pub(crate) fn is_violated(&self) -> bool {
        self.dialogue.is_violated()
    }

    /// Whether [`Self::write`] would take data.
    pub(crate) fn has_room(&self) -> bool {
        self.dialogue.may_send() && !self.free.is_empty()
    }

    /// Whether all that was written has arrived, or never will.
    pub(crate) fn is_flushed(&self) -> bool {
        self.broken || self.free.len() == SLOTS && self.words == 0
    }

    /// Takes available data, at most as much as fits; leaves it there if it `peeks`.
    pub(crate) fn read(&mut self, into: &mut [u8], peeks: bool) -> usize {
        let mut freed = Vec::new();
        let done = self.dialogue.read(&self.memory, into, peeks, &mut freed);
        freed.into_iter().for_each(|slot| self.give_back(slot));
        done
    }

    fn give_back(&mut self, slot: usize) {
        if self.post_receive(slot).is_err() {
            self.broken = true;
        }
        if self.dialogue.owe() && self.words < WORDS {
            self.say(Kind::Credits, SLOTS, 0);
        }
    }

    /// Sends as much as there is room for. Data that a broken stream refuses is not counted.
    pub(crate) fn write(&mut self, from: &[u8]) -> usize {
        let mut done = 0;
        while done < from.len() && self.has_room() && !self.broken {
            let part = &from[done..(done + SLOT).min(from.len())];
            let Some(slot) = self.fill(part) else { break };
            if self.say(Kind::Data, slot, part.len()) {
                done += part.len();
            }
        }
        done
    }

    /// Copies into a free slot.
    fn fill(&mut self, part: &[u8]) -> Option<usize> {
        let slot = self.free.pop()?;
        let start = (SLOTS + slot) * SLOT;
        self.memory[start..start + part.len()].copy_from_slice(part);
        Some(slot)
    }

    /// Sends once that no more data comes; `false` if that has to wait.
    pub(crate) fn end(&mut self) -> bool {
        if !self.end_said && self.words < WORDS {
            self.end_said = true;
            self.say(Kind::End, SLOTS, 0);
        }
        self.end_said
    }

    /// Posts a SEND with a word, and with the data in `slot` if that is one; `false` if this breaks the stream.
    fn say(&mut self, kind: Kind, slot: usize, length: usize) -> bool {
        let word = self.dialogue.word(kind);
        self.words += usize::from(slot == SLOTS);
        self.send(wr_opcode::IBV_WR_SEND_WITH_IMM, word, slot, length, (0, 0))
    }

    /// As [`Self::post_send`]; a failure to post breaks the stream.
    fn send(&mut self, opcode: u32, word: u32, slot: usize, length: usize, place: (u64, u32)) -> bool {
        let posted = self.post_send(opcode, word, slot, length, place).is_ok();
        self.broken |= !posted;
        posted
    }

    fn post_send(
        &mut self,
        opcode: u32,
        word: u32,
        slot: usize,
        length: usize,
        (address, rkey): (u64, u32),
    ) -> Result<()> {
        // SAFETY: null pointers and zeroes are values of the structure; the slot, if it is one, lies in the memory.
        let (mut request, at): (abi::ibv_send_wr, _) = unsafe {
            let at = if slot < SLOTS { (SLOTS + slot) * SLOT } else { 0 };
            (zeroed(), self.memory.as_ptr().add(at))
        };
        let mut sge = self.sge(at, length);
        request.wr_id = SEND | slot as u64;
        request.sg_list = &raw mut sge;
        request.num_sge = i32::from(slot < SLOTS);
        request.opcode = opcode;
        request.send_flags = send_flags::IBV_SEND_SIGNALED;
        request.imm_data = word.to_be();
        request.wr.rdma = abi::ibv_wr_rdma { remote_addr: address, rkey };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request is read before the call returns.
        unsafe {
            let post = (*(*self.qp).context).ops.post_send.ok_or(Errno(libc::ENOSYS))?;
            done(post(self.qp, &raw mut request, &raw mut bad))
        }
    }

    fn post_receive(&mut self, slot: usize) -> Result<()> {
        // SAFETY: the slot lies in the memory.
        let at = unsafe { self.memory.as_mut_ptr().add(slot * SLOT) };
        let mut sge = self.sge(at, SLOT);
        let mut request =
            abi::ibv_recv_wr { wr_id: slot as u64, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request is read before the call returns.
        unsafe {
            let post = (*(*self.qp).context).ops.post_recv.ok_or(Errno(libc::ENOSYS))?;
            done(post(self.qp, &raw mut request, &raw mut bad))
        }
    }

    fn sge(&self, at: *const u8, length: usize) -> abi::ibv_sge {
        // SAFETY: the region is live.
        let lkey = unsafe { (*self.mr).lkey };
        abi::ibv_sge { addr: at as u64, length: u32::try_from(length).unwrap_or(0), lkey }
    }

    /// Takes completions; false if there are none.
    pub(crate) fn progress(&mut self) -> bool {
        const BATCH: usize = 16;
        let mut took = false;
        loop {
            // SAFETY: all-zero bytes are a value of the structure.
            let mut completions: [abi::ibv_wc; BATCH] = unsafe { zeroed() };
            // SAFETY: the queue is live, and as many completions can be written.
            let got = unsafe {
                let Some(poll) = (*(*self.cq).context).ops.poll_cq else { return took };
                poll(self.cq, BATCH as i32, completions.as_mut_ptr())
            };
            let got = usize::try_from(got).unwrap_or(0).min(BATCH);
            completions[..got].iter().for_each(|completion| self.complete(completion));
            took |= got > 0;
            if got < BATCH {
                return took;
            }
        }
    }

    /// Makes the descriptor readable at the next completion, and takes earlier ones; false if there are none.
    pub(crate) fn arm(&mut self) -> bool {
        let (mut cq, mut context, mut took) = (ptr::null_mut(), ptr::null_mut(), false);
        // SAFETY: channel and queue are live, and both pointers can be written.
        unsafe {
            while (self.verbs.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (self.verbs.ibv_ack_cq_events)(self.cq, 1);
                took = true;
            }
            if let Some(arm) = (*(*self.cq).context).ops.req_notify_cq {
                arm(self.cq, 0);
            }
        }
        self.progress() || took
    }

    fn complete(&mut self, completion: &abi::ibv_wc) {
        let slot = (completion.wr_id & !SEND) as usize;
        self.broken |= completion.status != 0;
        match (completion.wr_id & SEND != 0, slot < SLOTS) {
            (true, true) => {
                self.free.push(slot);
                self.tell_unmapped();
            }
            (true, false) => self.words = self.words.saturating_sub(1),
            (false, _) if completion.status == 0 => self.received(slot, completion),
            (false, _) => {}
        }
    }

    fn received(&mut self, slot: usize, completion: &abi::ibv_wc) {
        let is_word = completion.opcode == RECV && completion.wc_flags & IBV_WC_WITH_IMM != 0;
        let word = is_word.then(|| u32::from_be(completion.imm_data));
        let bytes = &self.memory[slot * SLOT..(slot + 1) * SLOT];
        match self.dialogue.received(slot, completion.byte_len as usize, word, bytes) {
            Ok(Slot::Kept) => {}
            Ok(Slot::Done) => self.broken |= self.post_receive(slot).is_err(),
            Err(Violation) => self.broken = true,
        }
    }

    /// Lets the peer write to memory of the program from now on, at `offset`.
    pub(crate) fn map(&mut self, at: *mut u8, length: usize, offset: u64, writable: bool) -> Result<()> {
        let access =
            if writable { IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE } else { IBV_ACCESS_LOCAL_WRITE };
        let slot = self.free.pop().ok_or(Errno(libc::EAGAIN))?;
        // SAFETY: the contract of `riomap`: the memory stays until it is unmapped.
        let mr = made(unsafe { (self.verbs.ibv_reg_mr)(self.pd, at.cast(), length, access.cast_signed()) });
        let mr = match mr {
            Ok(mr) => mr,
            Err(errno) => {
                self.free.push(slot);
                return Err(errno);
            }
        };
        self.regions.push(Region { mr, at: at.addr(), length, offset });
        self.unmapped.retain(|unmapped| *unmapped != offset);
        // SAFETY: the region is live.
        let key = unsafe { (*mr).rkey };
        let length = if writable { length as u64 } else { 0 };
        self.announce(slot, Mapping { offset, length, address: at.addr() as u64, key })
    }

    fn announce(&mut self, slot: usize, mapping: Mapping) -> Result<()> {
        let start = (SLOTS + slot) * SLOT;
        self.memory[start..start + MAPPING].copy_from_slice(&mapping.to_bytes());
        self.say(Kind::Mapping, slot, MAPPING).then_some(()).ok_or(Errno(libc::ECONNRESET))
    }

    /// Revokes a mapping; tells the peer when there is room for the message.
    ///
    /// # Errors
    /// `EINVAL` if there is no mapping.
    pub(crate) fn unmap(&mut self, at: usize, length: usize) -> Result<()> {
        let found = self.regions.iter().position(|region| (region.at, region.length) == (at, length));
        let found = found.ok_or(Errno(libc::EINVAL))?;
        let Region { mr, offset, .. } = self.regions.remove(found);
        // Later mappings there stay.
        if self.regions[found..].iter().all(|region| region.offset != offset) {
            self.unmapped.push(offset);
            self.tell_unmapped();
        }
        // SAFETY: the region is live, and not used again.
        done(unsafe { (self.verbs.ibv_dereg_mr)(mr) })
    }

    fn tell_unmapped(&mut self) {
        while !self.broken
            && !self.free.is_empty()
            && let Some(offset) = self.unmapped.pop()
            && let Some(slot) = self.free.pop()
        {
            // If that fails the stream is broken.
            let _ = self.announce(slot, Mapping { offset, length: 0, address: 0, key: 0 });
        }
    }

    /// Writes to the memory that the peer has mapped at `offset`, as much as there is room for.
    ///
    /// # Errors
    /// `EINVAL` if it has mapped nothing there.
    pub(crate) fn write_to(&mut self, offset: u64, from: &[u8]) -> Result<usize> {
        let mut written = 0;
        while written < from.len() && !self.free.is_empty() && !self.broken {
            let at = offset.checked_add(written as u64).ok_or(Errno(libc::EINVAL))?;
            let Some((address, left, key)) = self.dialogue.place(at) else {
                return if written > 0 { Ok(written) } else { Err(Errno(libc::EINVAL)) };
            };
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let part = &from[written..(written + SLOT.min(left)).min(from.len())];
            let Some(slot) = self.fill(part) else { break };
            if self.send(wr_opcode::IBV_WR_RDMA_WRITE, 0, slot, part.len(), (address, key)) {
                written += part.len();
            }
        }
        Ok(written)
    }

    /// Whether [`Self::write_to`] would take data.
    pub(crate) fn can_write_to(&self) -> bool {
        !self.free.is_empty()
    }
}

impl Drop for Stream {
    /// The queue pair has been destroyed with its identifier.
    fn drop(&mut self) {
        // SAFETY: no thread uses the objects any more; the memory is freed after its region.
        unsafe {
            if !self.cq.is_null() {
                (self.verbs.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.verbs.ibv_destroy_comp_channel)(self.channel);
            }
            let own = (!self.mr.is_null()).then_some(self.mr);
            for mr in self.regions.drain(..).map(|region| region.mr).chain(own) {
                (self.verbs.ibv_dereg_mr)(mr);
            }
            (self.verbs.ibv_dealloc_pd)(self.pd);
        }
    }
}
