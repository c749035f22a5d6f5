//! Opened devices: `ibv_context` with its table of functions, and its asynchronous events.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use libc::c_int;
use softhca::Errno;
use verbs_abi::constants::event;
use verbs_abi::{
    VERBS_ABI_IS_EXTENDED, ibv_async_event, ibv_context, ibv_context_ops, ibv_device, verbs_context,
};

use crate::cq::Cq;
use crate::directory::Directory;
use crate::process::{Held, Process, State};
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{
    channel, cq, cq_ex, device_memory, devices, domain, errno, memory_change, memory_window, multicast,
    object, post, qp, query, srq, xrc,
};
use waiting::{Acks, EventQueue, Uncancelled};

/// The object behind a program's `ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    pub(crate) process: &'static Process,
    /// Its descriptor is `async_fd`.
    pub(crate) asynchronous: Arc<EventQueue<Raised>>,
    /// `cmd_fd`. A program that duplicates it to share the device learns from [`import`](crate::import) that it cannot be shared.
    _command: OwnedFd,
}

/// An asynchronous event, which any thread may take.
pub(crate) struct Raised(pub(crate) ibv_async_event);

// SAFETY: the object that it points at is the program's, which may use it in any thread.
unsafe impl Send for Raised {}

/// The file that is open as the device: no command goes through it.
const FILE: &str = "/dev/null";

impl Context {
    /// The object around a program's context.
    ///
    /// # Safety
    /// `context` came from [`ibv_open_device`] and is not closed meanwhile.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        let offset = offset_of!(Self, verbs) + offset_of!(verbs_context, context);
        // SAFETY: the caller's promise: the context lies at this offset in a live `Self`.
        unsafe { &*context.byte_sub(offset).cast::<Self>() }
    }

    fn open(process: &'static Process, device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
        let errno = |error: io::Error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE));
        let command = OwnedFd::from(File::open(FILE).map_err(errno)?);
        let asynchronous = Arc::new(EventQueue::new().map_err(errno)?);
        let verbs = verbs(device, &command, asynchronous.fd());
        let opened = Box::into_raw(Box::new(Self { verbs, process, asynchronous, _command: command }));
        // SAFETY: `opened` is live; only an address is computed.
        Ok(unsafe { &raw mut (*opened).verbs.context })
    }
}

fn verbs(device: *mut ibv_device, command: &OwnedFd, async_fd: c_int) -> verbs_context {
    // SAFETY: null functions, null pointers and zeroes are values of these fields.
    let mut verbs: verbs_context = unsafe { object::zeroed() };
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.open_qp = Some(xrc::open_qp);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd = Some(xrc::close_xrcd);
    verbs.query_rt_values = Some(cq_ex::query_rt_values);
    verbs.advise_mr = Some(memory_change::advise_mr);
    verbs.alloc_null_mr = Some(memory_change::alloc_null_mr);
    verbs.reg_dm_mr = Some(device_memory::reg_dm_mr);
    verbs.alloc_dm = Some(device_memory::alloc_dm);
    verbs.free_dm = Some(device_memory::free_dm);
    verbs.alloc_parent_domain = Some(domain::alloc_parent_domain);
    verbs.alloc_td = Some(domain::alloc_td);
    verbs.dealloc_td = Some(domain::dealloc_td);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.sz = size_of::<verbs_context>();
    verbs.context.device = device;
    verbs.context.cmd_fd = command.as_raw_fd();
    verbs.context.async_fd = async_fd;
    verbs.context.num_comp_vectors = 1;
    verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    set_ops(&mut verbs.context.ops);
    verbs
}

fn set_ops(ops: &mut ibv_context_ops) {
    ops._compat_query_device = Some(query::ibv_query_device);
    ops.alloc_mw = Some(memory_window::alloc_mw);
    ops.bind_mw = Some(memory_window::bind_mw);
    ops.dealloc_mw = Some(memory_window::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

/// Opens the device.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _whole = Uncancelled::new();
    let process = devices::attached().filter(|_| !device.is_null());
    errno::object(|| process.ok_or(Errno(libc::ENODEV)).and_then(|process| Context::open(process, device)))
}

/// Closes the device; releases the objects that the program left behind, as the kernel would.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the contract of verbs.
    let opened = unsafe { Context::of(context) };
    let _whole = Uncancelled::new();
    let released = opened.process.with(|state| {
        release(state, &opened.process.directory, context);
        Ok(())
    });
    // SAFETY: `open` made it with `Box`, and nothing refers to it any more.
    drop(unsafe { Box::from_raw(ptr::from_ref(opened).cast_mut()) });
    match released {
        Err(errno) if errno.0 != libc::EIO => errno.0,
        _ => 0,
    }
}

/// Destroys the device's objects of `context`; dependants first.
fn release(state: &mut State, directory: &Directory, context: *mut ibv_context) {
    let State { device, objects, .. } = state;
    objects.qps.retain(|qp, Held(it)| {
        // SAFETY: objects leave the tables before they are freed, so these are live.
        let stays = unsafe { (**it).context != context };
        if !stays {
            multicast::detach_all(device, directory, *qp);
        }
        stays || device.destroy_qp(*qp).is_err()
    });
    let qps = &objects.qps;
    objects.opened_again.retain(|qp, _| qps.contains_key(qp));
    // SAFETY: as above.
    objects
        .srqs
        .retain(|srq, Held(it)| unsafe { (**it).context != context } || device.destroy_srq(*srq).is_err());
    // SAFETY: as above.
    objects
        .cqs
        .retain(|cq, Held(it)| unsafe { (**it).context != context } || device.destroy_cq(*cq).is_err());
    objects.xrcds.retain(|xrcd, Held(of)| *of != context || device.dealloc_xrcd(*xrcd).is_err());
    let xrcds = &objects.xrcds;
    objects.xrcd_files.retain(|_, opened| xrcds.contains_key(&opened.handle));
    objects.mws.retain(|mw, Held(of)| *of != context || device.dealloc_mw(*mw).is_err());
    objects.ahs.retain(|ah, Held(of)| *of != context || device.destroy_ah(*ah).is_err());
    objects.mrs.retain(|mr, Held(of)| *of != context || device.dereg_mr(*mr).is_err());
    objects.pds.retain(|pd, Held(of)| *of != context || device.dealloc_pd(*pd).is_err());
}

/// The next asynchronous event; waits unless `async_fd` is non-blocking.
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the contract of verbs.
    let opened = unsafe { Context::of(context) };
    let taken = channel::next(opened.process, &opened.asynchronous, |Raised(event)| {
        if let Some(acks) = acks(event) {
            acks.taken()
        }
    });
    // SAFETY: the contract of verbs: `event` can be written.
    errno::minus_one(taken.map(|Raised(taken)| unsafe { event.write(taken) }))
}

/// Acknowledges an event from [`ibv_get_async_event`].
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the contract of verbs.
    if let Some(acks) = acks(unsafe { &*event }) {
        acks.acknowledge(1);
    }
}

/// The counter of the object that an event is about. Events of this library alone are passed, and
/// their objects wait for the acknowledgement before they go.
fn acks(of: &ibv_async_event) -> Option<&Acks> {
    // SAFETY: the type of the event says which member is set, and the object is live, see above.
    unsafe {
        Some(match of.event_type {
            event::IBV_EVENT_CQ_ERR => &Cq::of(of.element.cq).async_acks,
            event::IBV_EVENT_SRQ_LIMIT_REACHED | event::IBV_EVENT_SRQ_ERR => &Srq::of(of.element.srq).acks,
            event::IBV_EVENT_QP_FATAL
            | event::IBV_EVENT_QP_REQ_ERR
            | event::IBV_EVENT_QP_ACCESS_ERR
            | event::IBV_EVENT_COMM_EST
            | event::IBV_EVENT_SQ_DRAINED
            | event::IBV_EVENT_QP_LAST_WQE_REACHED => &Qp::of(of.element.qp).acks,
            _ => return None,
        })
    }
}
