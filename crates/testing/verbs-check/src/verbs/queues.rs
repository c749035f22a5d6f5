//! Completion queues with their channel, and the shared receive queue.

use std::ptr::NonNull;

use anyhow::{Context as _, Result};
use libc::c_int;
use verbs_abi as abi;

use super::queue_pair::{Receive, ReceiveList};
use super::{Device, none, not_null, success};
use crate::completion::Completion;

/// Completions taken at a time.
const BATCH: usize = 64;

/// A completion queue, with a channel of its own if asked for.
pub struct CompletionQueue {
    queue: NonNull<abi::ibv_cq>,
    channel: Option<NonNull<abi::ibv_comp_channel>>,
    batch: Box<[abi::ibv_wc; BATCH]>,
    device: Device,
}

impl CompletionQueue {
    /// A queue for `entries` completions.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(device: &Device, entries: usize, with_channel: bool) -> Result<Self> {
        let functions = device.functions();
        // SAFETY: the context is open.
        let open_channel = || unsafe { (functions.ibv_create_comp_channel)(device.context()) };
        let channel =
            with_channel.then(|| not_null(open_channel(), "ibv_create_comp_channel")).transpose()?;
        let raw = channel.map_or_else(none, NonNull::as_ptr);
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the context is open, and the channel outlives the queue.
        let queue = unsafe { (functions.ibv_create_cq)(device.context(), entries, none(), raw, 0) };
        let queue = not_null(queue, &format!("ibv_create_cq for {entries} entries"))?;
        // SAFETY: the structures are plain old data, for which zeroes are valid.
        let batch = Box::new(unsafe { std::mem::zeroed() });
        Ok(Self { queue, channel, batch, device: device.clone() })
    }

    pub(super) fn raw(&self) -> *mut abi::ibv_cq {
        self.queue.as_ptr()
    }

    /// The channel's descriptor.
    #[must_use]
    pub fn descriptor(&self) -> Option<c_int> {
        // SAFETY: the channel lives as long as `self`.
        self.channel.map(|channel| unsafe { (*channel.as_ptr()).fd })
    }

    /// Takes completions, each with its QP number; returns how many.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn poll(&mut self, into: &mut Vec<(u32, Completion)>) -> Result<usize> {
        let poll = self.device.table().poll_cq.context("the context has no poll_cq")?;
        // SAFETY: the queue is live, and the batch has room for that many.
        let count = unsafe { poll(self.queue.as_ptr(), BATCH as c_int, self.batch.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| anyhow::anyhow!("ibv_poll_cq failed: {count}"))?;
        into.extend(self.batch[..count].iter().map(|entry| (entry.qp_num, self.completion(entry))));
        Ok(count)
    }

    fn completion(&self, entry: &abi::ibv_wc) -> Completion {
        let failed = entry.status != 0;
        let failure = failed.then(|| (self.device.status_in_words(entry.status), entry.vendor_err));
        let has_immediate = entry.wc_flags & abi::constants::wc_flags::IBV_WC_WITH_IMM != 0;
        Completion {
            wr_id: entry.wr_id,
            failure,
            opcode: entry.opcode,
            length: entry.byte_len,
            immediate: has_immediate.then(|| u32::from_be(entry.imm_data)),
        }
    }

    /// Asks for an event at the next completion.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn arm(&self) -> Result<()> {
        let arm = self.device.table().req_notify_cq.context("the context has no req_notify_cq")?;
        // SAFETY: the queue is live.
        success(unsafe { arm(self.queue.as_ptr(), 0) }, "ibv_req_notify_cq")
    }

    /// Takes and acknowledges one event, for which the channel's descriptor is readable.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn take_event(&self) -> Result<()> {
        let Some(channel) = self.channel else { return Ok(()) };
        let (mut queue, mut context) = (none(), none());
        // SAFETY: the pointers are valid for the call.
        let code = unsafe {
            (self.device.functions().ibv_get_cq_event)(channel.as_ptr(), &raw mut queue, &raw mut context)
        };
        success(code, "ibv_get_cq_event")?;
        // SAFETY: the event that was just taken is of this queue, the channel's only one.
        unsafe { (self.device.functions().ibv_ack_cq_events)(queue, 1) };
        Ok(())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs are dropped before their queues; the channel goes last.
        unsafe {
            (self.device.functions().ibv_destroy_cq)(self.queue.as_ptr());
            if let Some(channel) = self.channel {
                (self.device.functions().ibv_destroy_comp_channel)(channel.as_ptr());
            }
        }
    }
}

/// A shared receive queue.
pub struct SharedReceives {
    queue: NonNull<abi::ibv_srq>,
    list: ReceiveList,
    device: Device,
}

impl SharedReceives {
    /// A queue for `receives` receives with two scatter/gather entries.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(device: &Device, receives: usize) -> Result<Self> {
        let max_wr = u32::try_from(receives).unwrap_or(u32::MAX);
        let attr = abi::ibv_srq_attr { max_wr, max_sge: 2, srq_limit: 0 };
        let mut wanted = abi::ibv_srq_init_attr { srq_context: none(), attr };
        // SAFETY: the domain is live, and the attributes are valid for the call.
        let queue = unsafe { (device.functions().ibv_create_srq)(device.domain(), &raw mut wanted) };
        let queue = not_null(queue, &format!("ibv_create_srq for {receives} receives"))?;
        Ok(Self { queue, list: ReceiveList::default(), device: device.clone() })
    }

    pub(super) fn raw(&self) -> *mut abi::ibv_srq {
        self.queue.as_ptr()
    }

    /// Posts `receives` in one list.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn post(&mut self, receives: &[Receive]) -> Result<()> {
        let post = self.device.table().post_srq_recv.context("the context has no post_srq_recv")?;
        let first = self.list.build(receives);
        let mut bad = none();
        // SAFETY: the list is well-formed, and its buffers are registered until the queue is gone.
        success(unsafe { post(self.queue.as_ptr(), first, &raw mut bad) }, "ibv_post_srq_recv")
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: queue pairs are dropped before the queue that they share.
        unsafe { (self.device.functions().ibv_destroy_srq)(self.queue.as_ptr()) };
    }
}
