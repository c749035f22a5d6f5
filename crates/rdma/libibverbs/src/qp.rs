//! Queue pairs.

use std::ptr;

use libc::{c_int, c_void};
use softhca::{Errno, QpAttrMask, QpCaps, QpInit, QpKind};
use verbs_abi::constants::qp_init_attr::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD,
};
use verbs_abi::constants::qp_type::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use verbs_abi::constants::{
    IBV_QP_EX_RC_OPERATIONS, IBV_QP_EX_UC_OPERATIONS, IBV_QP_EX_UD_OPERATIONS, event,
};
use verbs_abi::{
    ibv_async_event, ibv_context, ibv_cq, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_xrcd,
};

use crate::context::{Context, Raised};
use crate::convert::{attr_from_c, attr_to_c, caps_from_c, caps_to_c};
use crate::cq::Cq;
use crate::domain::Pd;
use crate::process::{Held, Process};
use crate::srq::Srq;
use crate::wr::{self, Posting};
use crate::xrc::Xrcd;
use crate::{errno, object};
use waiting::{Acks, PerProcess};

/// The object behind a program's `ibv_qp`, extended or not.
#[repr(C)]
pub(crate) struct Qp {
    base: ibv_qp_ex,
    pub(crate) process: &'static Process,
    pub(crate) handle: softhca::Qp,
    pub(crate) kind: QpKind,
    caps: QpCaps,
    sq_sig_all: bool,
    /// The program may post through `ibv_wr_*`.
    extended: bool,
    pub(crate) posting: PerProcess<Posting>,
    pub(crate) acks: Acks,
}

starts_with!(Qp, ibv_qp);

pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if pd.is_null() {
        return errno::object(|| Err(Errno::INVALID));
    }
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe { create((*pd).context, Place::Pd(pd), &mut *init, false) })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the contract of verbs.
    let wanted = unsafe { wants_extended(&*init).and_then(|extended| Ok((extended, Place::of(&*init)?))) };
    errno::object(|| {
        wanted.and_then(|(extended, place)| {
            // SAFETY: the contract of verbs; the extended attributes start with the plain ones.
            unsafe { create(context, place, &mut *init.cast(), extended) }
        })
    })
}

/// The context and domain of a QP.
#[derive(Clone, Copy)]
enum Place {
    Pd(*mut ibv_pd),
    /// Targets of extended reliable connections only.
    Xrcd(*mut ibv_xrcd),
}

impl Place {
    fn of(init: &ibv_qp_init_attr_ex) -> Result<Self, Errno> {
        let has = |bit: u32| init.comp_mask & bit != 0;
        match init.qp_type {
            IBV_QPT_XRC_RECV if has(IBV_QP_INIT_ATTR_XRCD) && !init.xrcd.is_null() => {
                Ok(Self::Xrcd(init.xrcd))
            }
            IBV_QPT_XRC_RECV => Err(Errno::INVALID),
            _ if has(IBV_QP_INIT_ATTR_PD) && !init.pd.is_null() => Ok(Self::Pd(init.pd)),
            _ => Err(Errno::INVALID),
        }
    }

    fn pd(self) -> *mut ibv_pd {
        match self {
            Self::Pd(pd) => pd,
            Self::Xrcd(_) => ptr::null_mut(),
        }
    }
}

/// Whether an extended QP is requested; `Err` for a feature that the device lacks.
fn wants_extended(init: &ibv_qp_init_attr_ex) -> Result<bool, Errno> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |bit: u32| init.comp_mask & bit != 0;
    if init.comp_mask & !KNOWN != 0 || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let extended = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    let operations = match kind(init.qp_type)? {
        QpKind::Rc | QpKind::XrcSend => IBV_QP_EX_RC_OPERATIONS,
        QpKind::Uc => IBV_QP_EX_UC_OPERATIONS,
        QpKind::Ud => IBV_QP_EX_UD_OPERATIONS,
        QpKind::XrcRecv => 0,
    };
    if extended && init.send_ops_flags & !operations != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(extended)
}

fn kind(qp_type: u32) -> Result<QpKind, Errno> {
    match qp_type {
        IBV_QPT_RC => Ok(QpKind::Rc),
        IBV_QPT_UC => Ok(QpKind::Uc),
        IBV_QPT_UD => Ok(QpKind::Ud),
        IBV_QPT_XRC_SEND => Ok(QpKind::XrcSend),
        IBV_QPT_XRC_RECV => Ok(QpKind::XrcRecv),
        _ => Err(Errno::UNSUPPORTED),
    }
}

/// # Safety
/// `context`, `place` and the objects that `init` names are of this library.
unsafe fn create(
    context: *mut ibv_context,
    place: Place,
    init: &mut ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut ibv_qp, Errno> {
    let kind = kind(init.qp_type)?;
    // SAFETY: the caller's promise.
    if !unsafe { are_of(context, place, init) } {
        return Err(Errno::INVALID);
    }
    // SAFETY: as above.
    let (process, wanted) = unsafe { (Context::of(context).process, device_init(place, init, kind)?) };
    process.with(|state| {
        let (handle, qpn, caps) = state.device.create_qp(&wanted)?;
        init.cap = caps_to_c(&caps);
        let base = base(context, place.pd(), init, handle, qpn);
        let sq_sig_all = wanted.sq_sig_all;
        let qp = object::give(Qp::new(base, process, handle, Made { kind, caps, sq_sig_all, extended }));
        state.objects.qps.insert(handle, Held(qp));
        if let Place::Pd(pd) = place {
            // SAFETY: the caller's promise.
            unsafe { Pd::of(pd) }.enter();
        }
        Ok(qp)
    })
}

/// True if all that a QP is made with is of one context: there the kernel would look for it.
///
/// # Safety
/// As for [`create`].
unsafe fn are_of(context: *mut ibv_context, place: Place, init: &ibv_qp_init_attr) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let place = match place {
            Place::Pd(pd) => (*pd).context,
            Place::Xrcd(xrcd) => (*xrcd).context,
        };
        let queues = [init.send_cq, init.recv_cq].map(|cq| cq.as_ref().map(|cq| cq.context));
        let srq = init.srq.as_ref().map(|srq| srq.context);
        queues.into_iter().chain([srq, Some(place)]).flatten().all(|its| its == context)
    }
}

/// # Safety
/// As for [`create`].
unsafe fn device_init(place: Place, init: &ibv_qp_init_attr, kind: QpKind) -> Result<QpInit, Errno> {
    // SAFETY: the caller's promise.
    let queue = |cq: *mut ibv_cq, used: bool| match (used, cq.is_null()) {
        (true, true) => Err(Errno::INVALID),
        // SAFETY: the caller's promise.
        (true, false) => Ok(unsafe { Cq::of(cq) }.handle),
        (false, _) => Ok(softhca::Cq::NONE),
    };
    // SAFETY: the caller's promise.
    let (pd, xrcd) = unsafe {
        match place {
            Place::Pd(pd) => (Pd::of(pd).handle, None),
            Place::Xrcd(xrcd) => (softhca::Pd::NONE, Some(Xrcd::of(xrcd).handle)),
        }
    };
    let shares = kind.receives() && !init.srq.is_null();
    Ok(QpInit {
        kind,
        pd,
        send_cq: queue(init.send_cq, kind != QpKind::XrcRecv)?,
        recv_cq: queue(init.recv_cq, kind.receives())?,
        // SAFETY: the caller's promise.
        srq: shares.then(|| unsafe { Srq::of(init.srq) }.handle),
        xrcd,
        caps: caps_from_c(&init.cap),
        sq_sig_all: init.sq_sig_all != 0,
    })
}

fn base(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    handle: softhca::Qp,
    qpn: u32,
) -> ibv_qp_ex {
    // SAFETY: null functions, null pointers and zeroes are values of these fields.
    let mut base: ibv_qp_ex = unsafe { object::zeroed() };
    base.qp_base.context = context;
    base.qp_base.qp_context = init.qp_context;
    base.qp_base.pd = pd;
    base.qp_base.send_cq = init.send_cq;
    base.qp_base.recv_cq = init.recv_cq;
    base.qp_base.srq = init.srq;
    base.qp_base.handle = handle.0;
    base.qp_base.qp_num = qpn;
    base.qp_base.qp_type = init.qp_type;
    base.qp_base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.qp_base.cond = libc::PTHREAD_COND_INITIALIZER;
    base
}

/// The extended form of a QP that was created with send operations; else NULL.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the contract of verbs.
    if unsafe { Qp::of(qp) }.extended { qp.cast() } else { ptr::null_mut() }
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the contract of verbs.
    let (object, attr) = unsafe { (Qp::of(qp), &*attr) };
    let Some(mask) = QpAttrMask::from_bits(mask.cast_unsigned()) else { return libc::EINVAL };
    errno::code(attr_from_c(attr, mask).and_then(|wanted| {
        object.process.with(|state| state.device.modify_qp(object.handle, &wanted, mask))?;
        if mask.contains(QpAttrMask::STATE) {
            // SAFETY: the contract of verbs: the QP is live.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(())
    }))
}

/// All attributes, regardless of `mask`.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Qp::of(qp) };
    errno::code(object.process.with(|state| state.device.query_qp(object.handle)).map(|(found, made)| {
        // SAFETY: the contract of verbs: `attr` and `init` can be written.
        unsafe {
            attr.write(attr_to_c(&found, &made.caps));
            init.write(object.init_attr());
            (*qp).state = found.state as u32;
        }
    }))
}

/// How a QP was made.
#[derive(Clone, Copy)]
struct Made {
    kind: QpKind,
    caps: QpCaps,
    sq_sig_all: bool,
    extended: bool,
}

impl Qp {
    fn new(base: ibv_qp_ex, process: &'static Process, handle: softhca::Qp, made: Made) -> Self {
        let Made { kind, caps, sq_sig_all, extended } = made;
        Self {
            base: if extended { wr::extended(base, kind) } else { base },
            process,
            handle,
            kind,
            caps,
            sq_sig_all,
            extended,
            posting: PerProcess::default(),
            acks: Acks::default(),
        }
    }

    /// The same QP for another opener.
    pub(crate) fn again(&self, context: *mut ibv_context, qp_context: *mut c_void) -> Self {
        let init = ibv_qp_init_attr { qp_context, ..self.init_attr() };
        let base = base(context, ptr::null_mut(), &init, self.handle, self.number());
        let Self { kind, caps, sq_sig_all, .. } = *self;
        Self::new(base, self.process, self.handle, Made { kind, caps, sq_sig_all, extended: false })
    }

    /// Its number, as programs know it.
    pub(crate) fn number(&self) -> u32 {
        self.base.qp_base.qp_num
    }

    fn init_attr(&self) -> ibv_qp_init_attr {
        let base = &self.base.qp_base;
        ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: caps_to_c(&self.caps),
            qp_type: base.qp_type,
            sq_sig_all: self.sq_sig_all.into(),
        }
    }
}

/// Waits until the program has acknowledged the QP's events.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Qp::of(qp) };
    let destroyed = object.process.with(|state| {
        if state.objects.forget_opening(object.handle, qp) {
            return Ok(());
        }
        state.device.destroy_qp(object.handle)?;
        state.objects.qps.remove(&object.handle);
        let pd = object.base.qp_base.pd;
        if !pd.is_null() {
            // SAFETY: a PD outlives its objects.
            unsafe { Pd::of(pd) }.leave();
        }
        Ok(())
    });
    if let Err(errno) = destroyed {
        return errno.0;
    }
    // SAFETY: a context outlives its objects.
    unsafe { Context::of(object.base.qp_base.context) }
        .asynchronous
        .withdraw(|Raised(event)| is_of(event, qp));
    object.acks.wait();
    // SAFETY: `create` gave it, and the program gives it back.
    unsafe { object::take::<Qp, _>(qp) };
    0
}

fn is_of(event: &ibv_async_event, qp: *mut ibv_qp) -> bool {
    let of_a_qp = !matches!(
        event.event_type,
        event::IBV_EVENT_CQ_ERR | event::IBV_EVENT_SRQ_LIMIT_REACHED | event::IBV_EVENT_DEVICE_FATAL
    );
    // SAFETY: the type says that this member is set.
    of_a_qp && unsafe { event.element.qp } == qp
}

/// Enhanced connection establishment: this device has no options to agree upon.
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the contract of verbs: `ece` can be written.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

/// Agrees upon none of the proposals.
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the contract of verbs: `ece` can be read and written.
    unsafe {
        if (*ece).comp_mask != 0 {
            return libc::EINVAL;
        }
        (*ece).options = 0;
    }
    0
}

/// No promise of the order in which the bytes of a message arrive.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}
