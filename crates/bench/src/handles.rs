//! What virtual handles cost: posting and polling where every handle has another real one, against the same where
//! each is its own.
//!
//! Two queue pairs of one device exchange messages in one thread, so that nothing else is measured.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use fabric::{Epoch, FabricId, ProcessId, Vid};
use softhca::{
    Access, AddressVector, Config, Cq, Device, Limits, Payload, Posted, Qp, QpAttr, QpAttrMask, QpCaps,
    QpInit, QpKind, QpState, SendOp, SendWr, Sge,
};
use verbs::Policy;

use crate::report::Row;

/// Messages that are timed at once: few, so that both sides of a pair meet the same machine.
const MESSAGES: u32 = 20_000;

/// Pairs of times in one run.
const PAIRS: u16 = 10;

/// Bytes of a message.
const LENGTH: u32 = 8;

/// The messages that are compared.
const KINDS: [(&str, bool); 2] = [("SEND", false), ("WRITE with immediate data", true)];

/// For each kind of message the time of a post and its polls with virtual handles, against without; and the difference
/// within the pairs.
///
/// # Errors
/// If the device refuses something.
pub fn rows(runs: u16) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, writes) in KINDS {
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for _ in 0..runs * PAIRS {
            on.push(time(Policy::Random, writes)?);
            off.push(time(Policy::Stable, writes)?);
        }
        let costs: Vec<f64> = on.iter().zip(&off).map(|(on, off)| on - off).collect();
        rows.push(Row::compared(
            format!("post + poll, {name}"),
            &on,
            ("without virtual handles", &off),
            "ns",
        ));
        rows.push(Row::alone(format!("cost of virtual handles, {name}"), &costs, "ns"));
    }
    Ok(rows)
}

/// Nanoseconds of one message.
fn time(policy: Policy, writes: bool) -> Result<f64> {
    let mut exchange = Exchange::new(policy, writes).map_err(|errno| anyhow!("the device says {errno:?}"))?;
    exchange.run(MESSAGES / 10)?;
    let start = Instant::now();
    exchange.run(MESSAGES)?;
    Ok(start.elapsed().as_nanos() as f64 / f64::from(MESSAGES))
}

/// A device whose two queue pairs are connected to each other.
struct Exchange {
    device: Device,
    sender: Qp,
    receiver: Qp,
    sent: Cq,
    received: Cq,
    memory: Box<[u64]>,
    key: u32,
    writes: bool,
}

impl Exchange {
    fn new(policy: Policy, writes: bool) -> Result<Self, softhca::Errno> {
        let vid = Vid::new(1).ok_or(softhca::Errno::INVALID)?;
        let mut device = Device::new(Config {
            process: ProcessId { vid, index: 1 },
            fabric: FabricId(1),
            epoch: Epoch(0),
            life: 1,
            handles: policy.source(7),
            limits: Limits::default(),
        });
        let pd = device.alloc_pd()?;
        let ((sent, _), (received, _)) = (device.create_cq(64)?, device.create_cq(64)?);
        let caps =
            QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit {
            kind: QpKind::Rc,
            pd,
            send_cq: sent,
            recv_cq: received,
            srq: None,
            xrcd: None,
            caps,
            sq_sig_all: true,
        };
        let (sender, sender_number, _) = device.create_qp(&init)?;
        let (receiver, receiver_number, _) = device.create_qp(&init)?;
        connect(&mut device, sender, receiver_number, vid)?;
        connect(&mut device, receiver, sender_number, vid)?;
        let memory = vec![0; 2].into_boxed_slice();
        let (at, access) = (address(&memory), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        // SAFETY: the memory lives as long as the device.
        let (_, keys) = unsafe { device.reg_mr(pd, at, size_of_val(&*memory) as u64, at, access) }?;
        Ok(Self { device, sender, receiver, sent, received, memory, key: keys.rkey, writes })
    }

    /// Sends `messages`, one after the other.
    fn run(&mut self, messages: u32) -> Result<()> {
        for _ in 0..messages {
            self.once().map_err(|errno| anyhow!("the device says {errno:?}"))?;
        }
        Ok(())
    }

    fn once(&mut self) -> Result<(), softhca::Errno> {
        let at = address(&self.memory);
        let piece = Sge { addr: at, length: LENGTH, lkey: self.key };
        let va = at + u64::from(LENGTH);
        let op = if self.writes { SendOp::WriteImm { va, rkey: self.key, imm: 1 } } else { SendOp::Send };
        let payload = Payload::Sges(&[piece]);
        let wr =
            SendWr { wr_id: 1, op, signaled: true, fence: false, solicited: false, srq_number: 0, payload };
        self.device.post_recv(self.receiver, 2, &[Sge { addr: va, ..piece }])?;
        // SAFETY: nothing is inline.
        if unsafe { self.device.post_send(self.sender, &wr) }? == Posted::Queued {
            self.device.flush_doorbell(self.sender);
        }
        for cq in [self.received, self.sent] {
            while self.device.poll_cq(cq, 1, |_| ())? == 0 {
                self.device.progress(Duration::ZERO);
            }
        }
        Ok(())
    }
}

fn address(memory: &[u64]) -> u64 {
    memory.as_ptr().expose_provenance() as u64
}

/// Connects `qp` to the queue pair `number` of the process' own instance.
fn connect(device: &mut Device, qp: Qp, number: u32, vid: Vid) -> Result<(), softhca::Errno> {
    use QpAttrMask as M;
    let attr = QpAttr {
        port: 1,
        path_mtu: 5,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        remote_qpn: number,
        address: AddressVector { dlid: vid.lid(), port: 1, ..AddressVector::default() },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_pass_with_all_handles() {
        for (_, writes) in KINDS {
            for policy in [Policy::Random, Policy::Stable] {
                Exchange::new(policy, writes).unwrap().run(100).unwrap();
            }
        }
    }
}
