//! Domains of extended reliable connections, and queue pairs that are opened a second time.
//!
//! A domain belongs to one process: two descriptors of one file lead to the same one within it.

use std::ptr;

use libc::c_int;
use softhca::{Errno, QpKind};
use verbs_abi::constants::qp_open_attr::{
    IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
};
use verbs_abi::constants::qp_type::IBV_QPT_XRC_RECV;
use verbs_abi::constants::xrcd_init_attr::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS};
use verbs_abi::{ibv_context, ibv_qp, ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr};

use crate::context::Context;
use crate::process::{Held, State};
use crate::qp::Qp;
use crate::{errno, object};

/// A file: device and inode.
pub(crate) type File = (u64, u64);

/// A domain that was opened.
pub(crate) struct Opened {
    pub(crate) handle: softhca::Xrcd,
    /// How often it was opened, and not closed since.
    times: u32,
}

/// The object behind a program's `ibv_xrcd`.
#[repr(C)]
pub(crate) struct Xrcd {
    base: ibv_xrcd,
    pub(crate) handle: softhca::Xrcd,
    /// `None`: no other process can open it.
    file: Option<File>,
}

starts_with!(Xrcd, ibv_xrcd);

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the contract of verbs.
    let (process, attr) = unsafe { (Context::of(context).process, *attr) };
    if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return errno::object(|| Err(Errno::INVALID));
    }
    let file = if attr.fd == -1 { Ok(None) } else { file_of(attr.fd).map(Some) };
    errno::object(|| {
        file.and_then(|file| {
            process.with(|state| {
                let handle = open(state, file, attr.oflags)?;
                state.objects.xrcds.insert(handle, Held(context));
                Ok(object::give(Xrcd { base: ibv_xrcd { context }, handle, file }))
            })
        })
    })
}

fn file_of(fd: c_int) -> Result<File, Errno> {
    // SAFETY: zeroes are values of these fields.
    let mut found: libc::stat = unsafe { object::zeroed() };
    // SAFETY: the structure can be written.
    if unsafe { libc::fstat(fd, &raw mut found) } == -1 {
        return Err(Errno(libc::EBADF));
    }
    Ok((found.st_dev, found.st_ino))
}

fn open(state: &mut State, file: Option<File>, flags: c_int) -> Result<softhca::Xrcd, Errno> {
    let Some(file) = file else { return state.device.alloc_xrcd() };
    if let Some(opened) = state.objects.xrcd_files.get_mut(&file) {
        if flags & libc::O_EXCL != 0 {
            return Err(Errno::INVALID);
        }
        opened.times += 1;
        return Ok(opened.handle);
    }
    if flags & libc::O_CREAT == 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let handle = state.device.alloc_xrcd()?;
    state.objects.xrcd_files.insert(file, Opened { handle, times: 1 });
    Ok(handle)
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the contract of verbs; a context outlives its objects.
    let (process, object) = unsafe { (Context::of((*xrcd).context).process, Xrcd::of(xrcd)) };
    errno::code(process.with(|state| {
        close(state, object)?;
        // SAFETY: `open_xrcd` gave it, and the program gives it back.
        unsafe { object::take::<Xrcd, _>(xrcd) };
        Ok(())
    }))
}

fn close(state: &mut State, xrcd: &Xrcd) -> Result<(), Errno> {
    let opened = xrcd.file.and_then(|file| state.objects.xrcd_files.get_mut(&file));
    if let Some(opened) = opened.filter(|opened| opened.times > 1) {
        opened.times -= 1;
        return Ok(());
    }
    state.device.dealloc_xrcd(xrcd.handle)?;
    state.objects.xrcds.remove(&xrcd.handle);
    if let Some(file) = xrcd.file {
        state.objects.xrcd_files.remove(&file);
    }
    Ok(())
}

/// Opens an XRC target of this process once more. It ends when it was destroyed as often.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe { open_again(context, &*attr) })
}

/// # Safety
/// `context` and the domain that `attr` names are of this library.
unsafe fn open_again(context: *mut ibv_context, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp, Errno> {
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let is_target = attr.comp_mask & needed == needed && attr.qp_type == IBV_QPT_XRC_RECV;
    if !is_target || attr.comp_mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 || attr.xrcd.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    if unsafe { (*attr.xrcd).context } != context {
        return Err(Errno::INVALID);
    }
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let qp_context = if has_context { attr.qp_context } else { ptr::null_mut() };
    // SAFETY: the caller's promise.
    let (process, xrcd) = unsafe { (Context::of(context).process, Xrcd::of(attr.xrcd).handle) };
    process.with(|state| {
        // SAFETY: objects leave the table before they are freed.
        let all = state.objects.qps.values().map(|Held(qp)| unsafe { Qp::of(*qp) });
        let mut named = all.filter(|qp| qp.kind == QpKind::XrcRecv && qp.number() == attr.qp_num);
        let found = named.find(|qp| {
            let made = state.device.query_qp(qp.handle);
            made.is_ok_and(|(_, init)| init.xrcd == Some(xrcd))
        });
        let found = found.ok_or(Errno(libc::ENOENT))?;
        let (handle, qp) = (found.handle, object::give(found.again(context, qp_context)));
        state.objects.opened_again.entry(handle).or_default().push(Held(qp));
        Ok(qp)
    })
}
