//! The queue pair for messages between managers: datagrams, which this device neither loses nor repeats as long as
//! there is a receive for them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::ptr;

use cm::Peer;
use cm::wire::MAX_MESSAGE;
use verbs_abi as abi;

use crate::device::{Device, PORT};
use crate::errno::{Errno, Result, done, made};
use crate::verbs::{Verbs, kind, mask, state, zeroed};

/// Receives that are posted, and sends that may be under way.
const DEPTH: usize = 512;

/// What lies before a received datagram.
const ROUTE_HEADER: usize = 40;

/// Bytes of a receive.
const RECEIVE: usize = ROUTE_HEADER + MAX_MESSAGE;

/// The most datagrams that wait to be sent: past it they are dropped, and said again by the manager.
const MAX_WAITING: usize = 1 << 16;

/// The key of the managers' queue pairs: "trcm".
const KEY: u32 = 0x7472_636d;

/// `wr_id` of sends has this bit.
const SEND: u64 = 1 << 32;

/// See the module. Used under the manager's lock.
pub(crate) struct Messenger {
    verbs: &'static Verbs,
    pd: *mut abi::ibv_pd,
    channel: *mut abi::ibv_comp_channel,
    cq: *mut abi::ibv_cq,
    qp: *mut abi::ibv_qp,
    /// Slots of [`RECEIVE`] bytes, then slots of [`MAX_MESSAGE`] bytes.
    memory: *mut u8,
    lkey: u32,
    routes: HashMap<u16, *mut abi::ibv_ah>,
    free: Vec<usize>,
    waiting: VecDeque<(Peer, Vec<u8>)>,
}

// SAFETY: its pointers are used by whoever holds the manager's lock; the functions of verbs may be called from any thread.
unsafe impl Send for Messenger {}

impl Messenger {
    /// Makes the queue pair, and posts its receives.
    ///
    /// # Errors
    /// Those of verbs.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let verbs = device.verbs;
        let bytes = DEPTH * (RECEIVE + MAX_MESSAGE);
        let memory: &'static mut [u8] = Box::leak(vec![0; bytes].into_boxed_slice());
        let memory = memory.as_mut_ptr();
        let local_write = abi::constants::access::IBV_ACCESS_LOCAL_WRITE.cast_signed();
        // SAFETY: the memory is never freed; all other arguments are live objects.
        let (mr, channel, cq) = unsafe {
            let mr = made((verbs.ibv_reg_mr)(device.pd, memory.cast(), bytes, local_write))?;
            let channel = made((verbs.ibv_create_comp_channel)(device.context))?;
            let entries = i32::try_from(2 * DEPTH).unwrap_or(i32::MAX);
            let cq = (verbs.ibv_create_cq)(device.context, entries, ptr::null_mut(), channel, 0);
            (mr, channel, made(cq)?)
        };
        // SAFETY: the channel is live.
        waiting::set_nonblocking(unsafe { (*channel).fd })?;
        let mut messenger = Self {
            verbs,
            pd: device.pd,
            channel,
            cq,
            qp: create_qp(device, cq)?,
            memory,
            // SAFETY: the region is live.
            lkey: unsafe { (*mr).lkey },
            routes: HashMap::new(),
            free: (0..DEPTH).collect(),
            waiting: VecDeque::new(),
        };
        messenger.ready()?;
        for slot in 0..DEPTH {
            messenger.post_receive(slot)?;
        }
        messenger.arm();
        Ok(messenger)
    }

    /// Where others reach this manager.
    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    /// Readable when something may have come.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.channel).fd }
    }

    fn ready(&mut self) -> Result<()> {
        // SAFETY: all-zero bytes are a value of the structure.
        let mut attr: abi::ibv_qp_attr = unsafe { zeroed() };
        attr.port_num = PORT;
        attr.qkey = KEY;
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

    /// Sends a datagram, now or when there is room.
    pub(crate) fn send(&mut self, to: Peer, datagram: Vec<u8>) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((to, datagram));
        }
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        while !self.free.is_empty()
            && let Some((to, datagram)) = self.waiting.pop_front()
            && let Some(slot) = self.free.pop()
        {
            if self.post_send(slot, to, &datagram).is_err() {
                // As if it were lost.
                self.free.push(slot);
            }
        }
    }

    fn post_send(&mut self, slot: usize, to: Peer, datagram: &[u8]) -> Result<()> {
        let ah = self.route(to.lid)?;
        let length = datagram.len().min(MAX_MESSAGE);
        // SAFETY: the slot lies in the memory, and no send of it is under way.
        let at = unsafe { self.memory.add(DEPTH * RECEIVE + slot * MAX_MESSAGE) };
        // SAFETY: as above; the slot has room for the largest message.
        unsafe { ptr::copy_nonoverlapping(datagram.as_ptr(), at, length) };
        let mut sge = self.sge(at, length);
        // SAFETY: all-zero bytes are a value of the structure.
        let mut request: abi::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = SEND | slot as u64;
        request.sg_list = &raw mut sge;
        request.num_sge = 1;
        request.opcode = abi::constants::wr_opcode::IBV_WR_SEND;
        request.send_flags = abi::constants::send_flags::IBV_SEND_SIGNALED;
        request.wr.ud = abi::ibv_wr_ud { ah, remote_qpn: to.qpn, remote_qkey: KEY };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request is read before the call returns.
        unsafe {
            let post = (*(*self.qp).context).ops.post_send.ok_or(Errno(libc::ENOSYS))?;
            done(post(self.qp, &raw mut request, &raw mut bad))
        }
    }

    /// The address handle of an instance. There are as many as instances that this process has spoken with.
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
        // SAFETY: the slot lies in the memory.
        let mut sge = self.sge(unsafe { self.memory.add(slot * RECEIVE) }, RECEIVE);
        let mut request =
            abi::ibv_recv_wr { wr_id: slot as u64, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request is read before the call returns.
        unsafe {
            let post = (*(*self.qp).context).ops.post_recv.ok_or(Errno(libc::ENOSYS))?;
            done(post(self.qp, &raw mut request, &raw mut bad))
        }
    }

    fn sge(&self, at: *mut u8, length: usize) -> abi::ibv_sge {
        abi::ibv_sge { addr: at as u64, length: u32::try_from(length).unwrap_or(0), lkey: self.lkey }
    }

    /// Takes what has come, until nothing more comes without a sign at the descriptor.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(Peer, &[u8])) {
        self.take_signs();
        while let Some(completion) = self.poll() {
            self.complete(&completion, &mut take);
        }
        self.arm();
        // What came before it was armed gives no sign.
        while let Some(completion) = self.poll() {
            self.complete(&completion, &mut take);
        }
        self.send_waiting();
    }

    fn complete(&mut self, completion: &abi::ibv_wc, take: &mut impl FnMut(Peer, &[u8])) {
        let slot = (completion.wr_id & !SEND) as usize;
        if completion.wr_id & SEND != 0 {
            self.free.push(slot);
            return;
        }
        if let (0, Some(length)) = (completion.status, completion.byte_len.checked_sub(ROUTE_HEADER as u32)) {
            let length = (length as usize).min(MAX_MESSAGE);
            // SAFETY: the slot's receive has completed, and it is not posted again before the datagram is taken.
            let datagram =
                unsafe { std::slice::from_raw_parts(self.memory.add(slot * RECEIVE + ROUTE_HEADER), length) };
            take(Peer { lid: completion.slid, qpn: completion.src_qp }, datagram);
        }
        // Without room there is one receive less.
        let _ = self.post_receive(slot);
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

fn create_qp(device: &Device, cq: *mut abi::ibv_cq) -> Result<*mut abi::ibv_qp> {
    // SAFETY: all-zero bytes are a value of the structure.
    let mut attr: abi::ibv_qp_init_attr = unsafe { zeroed() };
    attr.send_cq = cq;
    attr.recv_cq = cq;
    attr.qp_type = kind::UD;
    attr.cap.max_send_wr = DEPTH as u32;
    attr.cap.max_recv_wr = DEPTH as u32;
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 1;
    // SAFETY: the protection domain and the queue are live, and the attributes can be written.
    made(unsafe { (device.verbs.ibv_create_qp)(device.pd, &raw mut attr) })
}

/// The way to an instance.
pub(crate) fn route_to(lid: u16) -> abi::ibv_ah_attr {
    // SAFETY: all-zero bytes are a value of the structure.
    let mut attr: abi::ibv_ah_attr = unsafe { zeroed() };
    attr.dlid = lid;
    attr.port_num = PORT;
    attr
}
