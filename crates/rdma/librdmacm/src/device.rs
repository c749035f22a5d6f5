//! The one device of a process: opened when it is first needed, and kept open unless a later step of its set-up fails.

use std::ptr;
use std::sync::Mutex;

use libc::c_int;
use verbs_abi as abi;
use verbs_abi::constants::xrcd_init_attr::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS};

use crate::errno::{self, Errno, NO_DEVICE, Result, done, made};
use crate::verbs::{Verbs, verbs, zeroed};
use waiting::lock;

/// The port that the device has.
pub(crate) const PORT: u8 = 1;

/// The device, and its constant properties: not even a move changes its LID.
pub(crate) struct Device {
    pub(crate) verbs: &'static Verbs,
    pub(crate) context: *mut abi::ibv_context,
    /// For queue pairs of programs that bring none of their own.
    pub(crate) pd: *mut abi::ibv_pd,
    /// As `pd`, for extended reliable connections; null until it is needed.
    xrcd: Mutex<*mut abi::ibv_xrcd>,
    pub(crate) lid: u16,
    pub(crate) gid: abi::ibv_gid,
    /// READs and atomics at a time, each way.
    pub(crate) max_responder_resources: u8,
    pub(crate) max_initiator_depth: u8,
}

// SAFETY: the functions of verbs may be called on both objects from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    /// `ENODEV` if there is no device; the errno of a missing resource if the program lacks one that the
    /// device needs.
    pub(crate) fn open() -> Result<Self> {
        let verbs = verbs()?;
        let mut device = Self {
            verbs,
            context: open_first(verbs)?,
            pd: ptr::null_mut(),
            xrcd: Mutex::new(ptr::null_mut()),
            lid: 0,
            // SAFETY: all-zero bytes are a value of the structure.
            gid: unsafe { zeroed() },
            max_responder_resources: 0,
            max_initiator_depth: 0,
        };
        device.learn()?;
        Ok(device)
    }

    fn learn(&mut self) -> Result<()> {
        let verbs = self.verbs;
        // SAFETY: the context is open.
        self.pd = made(unsafe { (verbs.ibv_alloc_pd)(self.context) })?;
        // SAFETY: all-zero bytes are a value of the structure.
        let mut attr: abi::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the context is open, and the structures can be written.
        unsafe {
            done((verbs.ibv_query_device)(self.context, &raw mut attr))?;
            done((verbs.ibv_query_gid)(self.context, PORT, 0, &raw mut self.gid))?;
        }
        let count = |most: c_int| u8::try_from(most).unwrap_or(u8::MAX);
        self.max_responder_resources = count(attr.max_qp_rd_atom);
        self.max_initiator_depth = count(attr.max_qp_init_rd_atom);
        self.lid = lid(self.context)?;
        Ok(())
    }

    /// The domain of extended reliable connections for programs that bring none of their own.
    ///
    /// # Errors
    /// The errors of verbs.
    pub(crate) fn xrcd(&self) -> Result<*mut abi::ibv_xrcd> {
        let mut xrcd = lock(&self.xrcd);
        if xrcd.is_null() {
            let mut attr = abi::ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: the device is open; its table lies before its context.
            let open = unsafe { (*extended(self.context)).open_xrcd }.ok_or(Errno(libc::ENOSYS))?;
            // SAFETY: as above; the attributes can be read.
            *xrcd = made(unsafe { open(self.context, &raw mut attr) })?;
        }
        Ok(*xrcd)
    }

    /// The GID of another instance of the fabric: it differs in the part that is the LID.
    pub(crate) fn gid_of(&self, lid: u16) -> abi::ibv_gid {
        let mut gid = self.gid;
        gid.raw[14..].copy_from_slice(&lid.to_be_bytes());
        gid
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: no thread uses the objects any more. There is no XRC domain yet: only a manager that stays makes it.
        unsafe {
            if !self.pd.is_null() {
                (self.verbs.ibv_dealloc_pd)(self.pd);
            }
            (self.verbs.ibv_close_device)(self.context);
        }
    }
}

fn open_first(verbs: &Verbs) -> Result<*mut abi::ibv_context> {
    // An empty list of devices is no failure, and gives no reason.
    errno::clear();
    // SAFETY: NULL asks for no count; the list is freed below.
    let list = made(unsafe { (verbs.ibv_get_device_list)(ptr::null_mut()) })?;
    // SAFETY: the list ends with a null pointer.
    let first = unsafe { *list };
    let context = if first.is_null() {
        Err(errno::shortage().unwrap_or(NO_DEVICE))
    } else {
        // SAFETY: the device is of the list, which is not yet freed.
        made(unsafe { (verbs.ibv_open_device)(first) })
    };
    // SAFETY: the list is not used again.
    unsafe { (verbs.ibv_free_device_list)(list) };
    context
}

/// The table of functions that lies before a context.
pub(crate) fn extended(context: *mut abi::ibv_context) -> *const abi::verbs_context {
    // SAFETY: this project's contexts lie at the end of a `verbs_context`.
    unsafe { context.byte_sub(std::mem::offset_of!(abi::verbs_context, context)).cast() }
}

fn lid(context: *mut abi::ibv_context) -> Result<u16> {
    // SAFETY: all-zero bytes are a value of the structure.
    let mut port: abi::ibv_port_attr = unsafe { zeroed() };
    // SAFETY: the context is open; its table lies before it.
    let query = unsafe { (*extended(context)).query_port }.ok_or(Errno(libc::ENOSYS))?;
    // SAFETY: the structure can be written, and is as long as stated.
    done(unsafe { query(context, PORT, &raw mut port, size_of::<abi::ibv_port_attr>()) })?;
    Ok(port.lid)
}
