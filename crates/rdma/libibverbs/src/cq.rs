//! Completion queues.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{c_int, c_void};
use softhca::{Errno, Wc};
use verbs_abi::constants::wc_flags::{IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV};
use verbs_abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};

use crate::channel::Channel;
use crate::context::{Context, Raised};
use crate::crowding::NAP;
use crate::held_by_calls::HeldByCalls;
use crate::process::{Held, Process, State};
use crate::{errno, object, thread};
use waiting::{Acks, PerProcess, sleep};

/// The object behind a program's `ibv_cq`, extended or not.
#[repr(C)]
pub(crate) struct Cq {
    /// Its first part is laid out as `ibv_cq`.
    base: ibv_cq_ex,
    pub(crate) process: &'static Process,
    pub(crate) handle: softhca::Cq,
    /// The completion that `start_poll` or `next_poll` stopped at. Used between `start_poll` and `end_poll` only.
    pub(crate) current: UnsafeCell<Wc>,
    /// Held from `start_poll` to `end_poll`.
    pub(crate) polling: PerProcess<HeldByCalls>,
    pub(crate) comp_acks: Acks,
    pub(crate) async_acks: Acks,
}

starts_with!(Cq, ibv_cq);

impl Cq {
    /// Tells the program, through the channel, that the CQ has a completion.
    pub(crate) fn notify(&self) {
        if !self.base.channel.is_null() {
            let cq = ptr::from_ref(self).cast::<ibv_cq>().cast_mut();
            // SAFETY: a channel with users is not destroyed.
            unsafe { Channel::of(self.base.channel) }.events.push(Held(cq));
        }
    }

    /// Passes the next completions to `take`, at most `room`, and returns how many.
    #[inline]
    pub(crate) fn poll(&self, room: usize, take: impl FnMut(&Wc)) -> Result<usize, Errno> {
        let (found, crowded) = match self.process.lock_as_owner() {
            Some(mut state) => self.poll_locked(&mut state, room, take),
            None => self.process.locked_after_yield(|state| self.poll_locked(state, room, take)),
        }?;
        if crowded {
            sleep(NAP);
        }
        Ok(found)
    }

    /// The same under the lock; also returns whether a nap is due.
    #[inline(always)]
    fn poll_locked(
        &self,
        state: &mut State,
        room: usize,
        take: impl FnMut(&Wc),
    ) -> Result<(usize, bool), Errno> {
        let found = state.device.poll_cq(self.handle, room, take);
        self.process.attend(state);
        let found = found?;
        self.process.count_polls(1);
        if found == 0 {
            return Ok((0, state.crowding.in_vain(thread::now, thread::own_time)));
        }
        state.crowding.found();
        Ok((found, false))
    }
}

/// Makes a CQ, which stamps completions if there is a `clock`; `extend` fills in the functions of an extended one.
///
/// # Safety
/// `context` is a context, `channel` NULL or a channel of this library.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    depth: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    clock: Option<fn() -> u64>,
    extend: fn(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: the caller's promise.
    let process = unsafe { object::context(context) }?.process;
    // SAFETY: as above.
    if unsafe { channel.as_ref() }.is_some_and(|channel| channel.context != context) {
        return Err(Errno::INVALID);
    }
    process.with(|state| {
        let (handle, granted) = match clock {
            Some(clock) => state.device.create_stamped_cq(depth, clock)?,
            None => state.device.create_cq(depth)?,
        };
        // SAFETY: null functions, null pointers and zeroes are values of these fields.
        let mut base: ibv_cq_ex = unsafe { object::zeroed() };
        (base.context, base.channel, base.cq_context) = (context, channel, cq_context);
        base.handle = handle.0;
        base.cqe = c_int::try_from(granted).unwrap_or(c_int::MAX);
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        extend(&mut base);
        if !channel.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Channel::of(channel) }.users.fetch_add(1, Ordering::AcqRel);
        }
        let cq = object::give(Cq {
            base,
            process,
            handle,
            current: UnsafeCell::default(),
            polling: PerProcess::default(),
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
        });
        state.objects.cqs.insert(handle, Held(cq));
        Ok(cq)
    })
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    errno::object(|| match u32::try_from(cqe) {
        Ok(depth) if depth > 0 && comp_vector == 0 => {
            // SAFETY: the contract of verbs.
            unsafe { create(context, depth, cq_context, channel, None, |_| ()) }
        }
        _ => Err(Errno::INVALID),
    })
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Cq::of(cq) };
    errno::code(u32::try_from(cqe).map_err(|_| Errno::INVALID).and_then(|depth| {
        let granted = object.process.with(|state| state.device.resize_cq(object.handle, depth))?;
        // SAFETY: the contract of verbs: no other thread uses the CQ's size meanwhile.
        unsafe { (*cq).cqe = c_int::try_from(granted).unwrap_or(c_int::MAX) };
        Ok(())
    }))
}

/// Waits until the program has acknowledged the CQ's events.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Cq::of(cq) };
    let destroyed = object.process.with(|state| {
        state.device.destroy_cq(object.handle)?;
        state.objects.cqs.remove(&object.handle);
        Ok(())
    });
    if let Err(errno) = destroyed {
        return errno.0;
    }
    // SAFETY: a context outlives its objects.
    let context = unsafe { Context::of(object.base.context) };
    context.asynchronous.withdraw(|Raised(event)| {
        // SAFETY: every member of the union is a pointer, or an integer in a union of that size.
        event.event_type == verbs_abi::constants::event::IBV_EVENT_CQ_ERR && unsafe { event.element.cq } == cq
    });
    if !object.base.channel.is_null() {
        // SAFETY: this CQ is still among the channel's users.
        let channel = unsafe { Channel::of(object.base.channel) };
        channel.events.withdraw(|event| event.0 == cq);
        channel.users.fetch_sub(1, Ordering::AcqRel);
    }
    object.comp_acks.wait();
    object.async_acks.wait();
    // SAFETY: `create` gave it, and the program gives it back.
    unsafe { object::take::<Cq, _>(cq) };
    0
}

/// `ibv_poll_cq`: the number of completions, or less than 0.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Cq::of(cq) };
    let room = usize::try_from(room).unwrap_or(0);
    let mut next = to;
    let polled = object.poll(room, |wc| {
        // SAFETY: the contract of verbs: `to` has `room` entries, and so many are taken at most.
        unsafe {
            next.write(completion(wc));
            next = next.add(1);
        }
    });
    match polled {
        Ok(found) => c_int::try_from(found).unwrap_or(c_int::MAX),
        Err(errno) => -errno.0,
    }
}

fn completion(wc: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_error,
        byte_len: wc.byte_len,
        imm_data: data(wc),
        qp_num: wc.qpn,
        src_qp: wc.src_qp,
        wc_flags: flags(wc),
        pkey_index: 0,
        slid: wc.slid,
        sl: wc.sl,
        dlid_path_bits: 0,
    }
}

/// Immediate data, or the key that was invalidated.
pub(crate) fn data(wc: &Wc) -> u32 {
    wc.imm.or(wc.invalidated).unwrap_or(0)
}

/// `wc_flags`.
pub(crate) fn flags(wc: &Wc) -> u32 {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    flag(wc.imm.is_some(), IBV_WC_WITH_IMM)
        | flag(wc.invalidated.is_some(), IBV_WC_WITH_INV)
        | flag(wc.has_route, IBV_WC_GRH)
}

/// `ibv_req_notify_cq`. A program that asks for events is about to wait for them.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Cq::of(cq) };
    errno::code(object.process.with(|state| {
        thread::arm(object.process, state);
        state.device.arm_cq(object.handle, solicited_only != 0)
    }))
}
