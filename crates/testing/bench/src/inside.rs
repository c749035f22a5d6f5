//! Queue pairs of one device that exchange messages in one thread, so that only the device is measured.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use fabric::{Epoch, FabricId, ProcessId, Vid};
use softhca::{
    Access, AddressVector, Config, Device, Errno, Limits, Payload, Posted, Qp, QpAttr, QpAttrMask, QpCaps,
    QpInit, QpKind, QpState, SendOp, SendWr, Sge,
};
use verbs::Policy;

/// Messages per measurement: few, so that both sides of a comparison see the same machine.
const MESSAGES: u32 = 20_000;

/// Bytes of a message.
const LENGTH: u32 = 8;

/// A device with pairs of connected queue pairs.
pub struct Exchange {
    device: Device,
    init: QpInit,
    pairs: Vec<Pair>,
    /// Number of pairs that alternate; the last ones.
    in_turn: usize,
    /// The next of these pairs.
    next: usize,
    memory: Box<[u64]>,
    key: u32,
    writes: bool,
}

/// A queue pair that sends, and the one that receives.
struct Pair {
    sender: Qp,
    receiver: Qp,
}

impl Exchange {
    /// One pair with handles of this policy; messages are SENDs, or WRITEs with immediate data.
    ///
    /// # Errors
    /// If the device refuses something.
    pub fn new(policy: Policy, writes: bool) -> Result<Self> {
        Self::make(policy, writes).map_err(refused)
    }

    fn make(policy: Policy, writes: bool) -> Result<Self, Errno> {
        let vid = instance()?;
        let mut device = Device::new(Config {
            process: ProcessId { vid, index: 1 },
            fabric: FabricId(1),
            epoch: Epoch(0),
            incarnation: 1,
            handles: policy.source(7),
            limits: Limits::default(),
        });
        let pd = device.alloc_pd()?;
        let ((send_cq, _), (recv_cq, _)) = (device.create_cq(64)?, device.create_cq(64)?);
        let caps =
            QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (kind, sq_sig_all) = (QpKind::Rc, true);
        let init = QpInit { kind, pd, send_cq, recv_cq, srq: None, xrcd: None, caps, sq_sig_all };
        let memory = vec![0; 2].into_boxed_slice();
        let key = register(&mut device, &init, &memory)?;
        let mut exchange = Self { device, init, pairs: Vec::new(), in_turn: 1, next: 0, memory, key, writes };
        exchange.add_pair()?;
        Ok(exchange)
    }

    fn add_pair(&mut self) -> Result<(), Errno> {
        let (sender, sender_number, _) = self.device.create_qp(&self.init)?;
        let (receiver, receiver_number, _) = self.device.create_qp(&self.init)?;
        connect(&mut self.device, sender, receiver_number)?;
        connect(&mut self.device, receiver, sender_number)?;
        self.pairs.push(Pair { sender, receiver });
        Ok(())
    }

    /// Connects so many pairs more.
    ///
    /// # Errors
    /// If the device refuses one.
    pub fn with_more_pairs(&mut self, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.add_pair()).map_err(refused)
    }

    /// Has the last `count` pairs take turns.
    pub fn take_turns(&mut self, count: usize) {
        (self.in_turn, self.next) = (count.clamp(1, self.pairs.len()), 0);
    }

    /// Registers the memory so many times more.
    ///
    /// # Errors
    /// If the device refuses that.
    pub fn with_more_regions(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.key = register(&mut self.device, &self.init, &self.memory).map_err(refused)?;
        }
        Ok(())
    }

    /// Nanoseconds of a message: of its posts and the polls that find it done.
    ///
    /// # Errors
    /// If the device refuses something.
    pub fn time(&mut self) -> Result<f64> {
        self.run(MESSAGES / 10)?;
        let start = Instant::now();
        self.run(MESSAGES)?;
        Ok(start.elapsed().as_nanos() as f64 / f64::from(MESSAGES))
    }

    /// Sends `messages`, one after the other.
    fn run(&mut self, messages: u32) -> Result<()> {
        (0..messages).try_for_each(|_| self.once()).map_err(refused)
    }

    fn once(&mut self) -> Result<(), Errno> {
        let Pair { sender, receiver } = self.pairs[self.pairs.len() - 1 - self.next];
        self.next = (self.next + 1) % self.in_turn;
        let at = address(&self.memory);
        let piece = Sge { addr: at, length: LENGTH, lkey: self.key };
        let va = at + u64::from(LENGTH);
        let op = if self.writes { SendOp::WriteImm { va, rkey: self.key, imm: 1 } } else { SendOp::Send };
        let payload = Payload::Sges(&[piece]);
        let wr =
            SendWr { wr_id: 1, op, signaled: true, fence: false, solicited: false, srq_number: 0, payload };
        self.device.post_recv(receiver, 2, &[Sge { addr: va, ..piece }])?;
        // SAFETY: nothing is inline.
        if unsafe { self.device.post_send(sender, &wr) }? == Posted::Queued {
            self.device.flush_doorbell(sender);
        }
        for cq in [self.init.recv_cq, self.init.send_cq] {
            while self.device.poll_cq(cq, 1, |_| ())? == 0 {
                self.device.progress(Duration::ZERO);
            }
        }
        Ok(())
    }
}

/// The process' own one.
fn instance() -> Result<Vid, Errno> {
    Vid::new(1).ok_or(Errno::INVALID)
}

fn refused(errno: Errno) -> anyhow::Error {
    anyhow!("the device says {errno:?}")
}

/// Registers the memory, which outlives the device, and returns its key for both sides.
fn register(device: &mut Device, init: &QpInit, memory: &[u64]) -> Result<u32, Errno> {
    let (at, access) = (address(memory), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    // SAFETY: the memory lives as long as the device.
    let (_, keys) = unsafe { device.reg_mr(init.pd, at, size_of_val(memory) as u64, at, access) }?;
    Ok(keys.rkey)
}

fn address(memory: &[u64]) -> u64 {
    memory.as_ptr().expose_provenance() as u64
}

/// Connects `qp` to the queue pair `number` of the process' own instance.
fn connect(device: &mut Device, qp: Qp, number: u32) -> Result<(), Errno> {
    use QpAttrMask as M;
    let attr = QpAttr {
        port: 1,
        path_mtu: 5,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        remote_qpn: number,
        address: AddressVector { dlid: instance()?.lid(), port: 1, ..AddressVector::default() },
        retry_count: 7,
        rnr_retry: 7,
        timeout: 14,
        ..QpAttr::default()
    };
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        ),
        (QpState::Rts, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC | M::SQ_PSN),
    ];
    for (state, mask) in steps {
        device.modify_qp(qp, &QpAttr { state, ..attr }, mask | M::STATE)?;
    }
    Ok(())
}
