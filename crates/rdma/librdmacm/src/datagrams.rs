//! A datagram queue pair, which this device neither loses nor repeats as long as there is a receive for them.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::ptr;

use cm::Peer;
use verbs_abi as abi;

use crate::device::{Device, PORT};
use crate::errno::{Errno, Result, done, made};
use crate::pages::Pages;
use crate::verbs::{Verbs, kind, mask, state, zeroed};

/// The global route header before a received datagram.
const ROUTE_HEADER: usize = 40;

/// `wr_id` of sends has this bit.
const SEND: u64 = 1 << 32;

/// The parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Receives that are posted, and sends that may be under way.
    pub(crate) depth: usize,
    /// Bytes of the largest datagram.
    pub(crate) size: usize,
    /// The Q_Key that all communicating queue pairs share.
    pub(crate) key: u32,
}

impl Shape {
    fn receive(self) -> usize {
        ROUTE_HEADER + self.size
    }

    /// The first place of a send, behind the places of all receives.
    fn send_at(self, slot: usize) -> usize {
        self.depth * self.receive() + slot * self.size
    }
}

/// See the module. It is used by one thread at a time.
pub(crate) struct Datagrams {
    verbs: &'static Verbs,
    shape: Shape,
    pd: *mut abi::ibv_pd,
    channel: *mut abi::ibv_comp_channel,
    cq: *mut abi::ibv_cq,
    qp: *mut abi::ibv_qp,
    mr: *mut abi::ibv_mr,
    /// Places for receives, then for sends.
    memory: Pages,
    routes: HashMap<u16, *mut abi::ibv_ah>,
    free: Vec<usize>,
}

// SAFETY: its pointers are used by its holder only; the functions of verbs may be called from any thread.
unsafe impl Send for Datagrams {}

impl Datagrams {
    /// Makes the queue pair, and posts its receives.
    ///
    /// # Errors
    /// The errors of verbs.
    pub(crate) fn new(device: &Device, shape: Shape) -> Result<Self> {
        let mut datagrams = Self {
            verbs: device.verbs,
            shape,
            pd: device.pd,
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            mr: ptr::null_mut(),
            memory: Pages::new(shape.send_at(shape.depth))?,
            routes: HashMap::new(),
            free: (0..shape.depth).collect(),
        };
        datagrams.create(device)?;
        datagrams.ready()?;
        for slot in 0..shape.depth {
            datagrams.post_receive(slot)?;
        }
        datagrams.arm();
        Ok(datagrams)
    }

    fn create(&mut self, device: &Device) -> Result<()> {
        let (at, bytes) = (self.memory.as_mut_ptr(), self.memory.len());
        let local_write = abi::constants::access::IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let entries = i32::try_from(2 * self.shape.depth).unwrap_or(i32::MAX);
        // SAFETY: the memory lives as long as the region; all other arguments are live objects.
        unsafe {
            self.mr = made((self.verbs.ibv_reg_mr)(device.pd, at.cast(), bytes, local_write))?;
            self.channel = made((self.verbs.ibv_create_comp_channel)(device.context))?;
            waiting::set_nonblocking((*self.channel).fd)?;
            let cq = (self.verbs.ibv_create_cq)(device.context, entries, ptr::null_mut(), self.channel, 0);
            self.cq = made(cq)?;
        }
        // SAFETY: all-zero bytes are a value of the structure.
        let mut attr: abi::ibv_qp_init_attr = unsafe { zeroed() };
        attr.send_cq = self.cq;
        attr.recv_cq = self.cq;
        attr.qp_type = kind::UD;
        attr.cap.max_send_wr = self.shape.depth as u32;
        attr.cap.max_recv_wr = self.shape.depth as u32;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        // SAFETY: the protection domain and the queue are live, and the attributes can be written.
        self.qp = made(unsafe { (self.verbs.ibv_create_qp)(device.pd, &raw mut attr) })?;
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        // SAFETY: all-zero bytes are a value of the structure.
        let mut attr: abi::ibv_qp_attr = unsafe { zeroed() };
        attr.port_num = PORT;
        attr.qkey = self.shape.key;
        for (to, mask) in [
            (state::INIT, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY),
            (state::RTR, mask::STATE),
            (state::RTS, mask::STATE | mask::SQ_PSN),
        ] {
            attr.qp_state = to;
            // SAFETY: the queue pair is live, and the attributes can be read.
            done(unsafe { (self.verbs.ibv_modify_qp)(self.qp, &raw mut attr, mask) })?;
        }
        Ok(())
    }

    /// Where others reach it.
    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    /// Readable when something may have come.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.channel).fd }
    }

    /// Whether [`Self::send`] has room.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_flushed(&self) -> bool {
        self.free.len() == self.shape.depth
    }

    /// Sends the parts as one datagram, which is cut if it is too long. Without room, or without a way, it is lost.
    pub(crate) fn send(&mut self, to: Peer, parts: &[&[u8]]) {
        let Some(slot) = self.free.pop() else { return };
        let place = self.shape.send_at(slot);
        let mut length = 0;
        for part in parts {
            let count = part.len().min(self.shape.size - length);
            self.memory[place + length..place + length + count].copy_from_slice(&part[..count]);
            length += count;
        }
        if self.post_send(slot, to, length).is_err() {
            self.free.push(slot);
        }
    }

    fn post_send(&mut self, slot: usize, to: Peer, length: usize) -> Result<()> {
        let ah = self.route(to.lid)?;
        let mut sge = self.sge(self.shape.send_at(slot), length);
        // SAFETY: all-zero bytes are a value of the structure.
        let mut request: abi::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = SEND | slot as u64;
        request.sg_list = &raw mut sge;
        request.num_sge = 1;
        request.opcode = abi::constants::wr_opcode::IBV_WR_SEND;
        request.send_flags = abi::constants::send_flags::IBV_SEND_SIGNALED;
        request.wr.ud = abi::ibv_wr_ud { ah, remote_qpn: to.qpn, remote_qkey: self.shape.key };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request is read before the call returns.
        unsafe {
            let post = (*(*self.qp).context).ops.post_send.ok_or(Errno(libc::ENOSYS))?;
            done(post(self.qp, &raw mut request, &raw mut bad))
        }
    }

    /// The address handle of an instance. There are as many as instances that were spoken with.
    fn route(&mut self, lid: u16) -> Result<*mut abi::ibv_ah> {
        if let Some(ah) = self.routes.get(&lid) {
            return Ok(*ah);
        }
        let mut attr = route_to(lid);
        // SAFETY: the protection domain is live, and the attributes can be read.
        let ah = made(unsafe { (self.verbs.ibv_create_ah)(self.pd, &raw mut attr) })?;
        self.routes.insert(lid, ah);
        Ok(ah)
    }

    fn post_receive(&mut self, slot: usize) -> Result<()> {
        let mut sge = self.sge(slot * self.shape.receive(), self.shape.receive());
        let mut request =
            abi::ibv_recv_wr { wr_id: slot as u64, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request is read before the call returns.
        unsafe {
            let post = (*(*self.qp).context).ops.post_recv.ok_or(Errno(libc::ENOSYS))?;
            done(post(self.qp, &raw mut request, &raw mut bad))
        }
    }

    fn sge(&mut self, at: usize, length: usize) -> abi::ibv_sge {
        // SAFETY: the region is live.
        let lkey = unsafe { (*self.mr).lkey };
        let addr = self.memory[at..].as_mut_ptr().expose_provenance() as u64;
        abi::ibv_sge { addr, length: u32::try_from(length).unwrap_or(0), lkey }
    }

    /// How many datagrams more can be sent.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes arrived datagrams, at most `most`, so that a sender without pauses cannot occupy the thread. Returns
    /// whether there may be more, without a wake-up; later arrivals wake the descriptor.
    pub(crate) fn receive(&mut self, most: usize, mut take: impl FnMut(Peer, &[u8])) -> bool {
        self.take_signs();
        self.arm();
        let mut taken = 0;
        while taken < most {
            let Some(completion) = self.poll() else { return false };
            taken += self.complete(&completion, &mut take);
        }
        true
    }

    /// Returns how many datagrams that were.
    fn complete(&mut self, completion: &abi::ibv_wc, take: &mut impl FnMut(Peer, &[u8])) -> usize {
        let slot = (completion.wr_id & !SEND) as usize;
        if completion.wr_id & SEND != 0 {
            self.free.push(slot);
            return 0;
        }
        if let (0, Some(length)) = (completion.status, completion.byte_len.checked_sub(ROUTE_HEADER as u32)) {
            let at = slot * self.shape.receive() + ROUTE_HEADER;
            let length = (length as usize).min(self.shape.size);
            let from = Peer { lid: completion.slid, qpn: completion.src_qp };
            take(from, &self.memory[at..at + length]);
            // Without room there is one receive less; so there is when the queue pair has failed.
            let _ = self.post_receive(slot);
        }
        1
    }

    fn poll(&self) -> Option<abi::ibv_wc> {
        // SAFETY: all-zero bytes are a value of the structure.
        let mut completion: abi::ibv_wc = unsafe { zeroed() };
        // SAFETY: the queue is live, and one completion can be written.
        let got = unsafe {
            let poll = (*(*self.cq).context).ops.poll_cq?;
            poll(self.cq, 1, &raw mut completion)
        };
        (got == 1).then_some(completion)
    }

    fn arm(&self) {
        // SAFETY: the queue is live.
        unsafe {
            if let Some(arm) = (*(*self.cq).context).ops.req_notify_cq {
                arm(self.cq, 0);
            }
        }
    }

    fn take_signs(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: channel and queue are live, and both pointers can be written.
        unsafe {
            while (self.verbs.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (self.verbs.ibv_ack_cq_events)(self.cq, 1);
            }
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        // SAFETY: no thread uses the objects any more, and each is destroyed before the objects that it uses; the
        // memory is freed after its region.
        unsafe {
            if !self.qp.is_null() {
                (self.verbs.ibv_destroy_qp)(self.qp);
            }
            for ah in self.routes.values() {
                (self.verbs.ibv_destroy_ah)(*ah);
            }
            if !self.cq.is_null() {
                (self.verbs.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.verbs.ibv_destroy_comp_channel)(self.channel);
            }
            if !self.mr.is_null() {
                (self.verbs.ibv_dereg_mr)(self.mr);
            }
        }
    }
}

/// The way to an instance.
pub(crate) fn route_to(lid: u16) -> abi::ibv_ah_attr {
    // SAFETY: all-zero bytes are a value of the structure.
    let mut attr: abi::ibv_ah_attr = unsafe { zeroed() };
    attr.dlid = lid;
    attr.port_num = PORT;
    attr
}
