//! The verbs library, loaded at run time as programs that do without its headers load it.
//!
//! The functions that `verbs.h` defines inline go through the context's table here as they do there.

mod functions;
mod memory;
mod queue_pair;
mod queues;

use std::ffi::{CStr, c_char};
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use anyhow::{Context as _, Result, bail, ensure};
use libc::c_int;
use verbs_abi as abi;

use functions::Functions;
pub use memory::Region;
pub use queue_pair::{Address, Capacity, QueuePair, Receive, Send, Target};
pub use queues::{CompletionQueue, SharedReceives};

/// The only port that is used.
const PORT: u8 = 1;

/// An open device with a protection domain, to which every other object of this module belongs.
#[derive(Clone)]
pub struct Device(Rc<Opened>);

struct Opened {
    functions: Functions,
    context: NonNull<abi::ibv_context>,
    domain: NonNull<abi::ibv_pd>,
    attributes: abi::ibv_device_attr,
}

impl Device {
    /// Opens the device `name`, or the first one.
    ///
    /// # Errors
    /// If the library or the device is not there, or refuses.
    pub fn open(name: Option<&str>) -> Result<Self> {
        let functions = Functions::load()?;
        let context = open_context(&functions, name)?;
        // SAFETY: the context was just opened.
        let domain = unsafe { (functions.ibv_alloc_pd)(context.as_ptr()) };
        let domain = not_null(domain, "ibv_alloc_pd")?;
        // SAFETY: the structure is plain old data, for which zeroes are valid.
        let mut attributes = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (functions.ibv_query_device)(context.as_ptr(), &raw mut attributes) };
        success(code, "ibv_query_device")?;
        Ok(Self(Rc::new(Opened { functions, context, domain, attributes })))
    }

    /// The capabilities of the device.
    #[must_use]
    pub fn attributes(&self) -> &abi::ibv_device_attr {
        &self.0.attributes
    }

    /// LID and GID of the port.
    ///
    /// # Errors
    /// If the device refuses, or its port is not active.
    pub fn port_address(&self) -> Result<(u16, [u8; 16])> {
        let port = self.query_port()?;
        ensure!(port.state == abi::constants::port_state::IBV_PORT_ACTIVE, "the device's port is not active");
        let mut gid = abi::ibv_gid::default();
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (self.functions().ibv_query_gid)(self.context(), PORT, 0, &raw mut gid) };
        success(code, "ibv_query_gid")?;
        Ok((port.lid, gid.raw))
    }

    fn query_port(&self) -> Result<abi::ibv_port_attr> {
        // SAFETY: the context lives as long as `self`.
        let extended = unsafe { (*self.context()).abi_compat } == abi::VERBS_ABI_IS_EXTENDED;
        ensure!(extended, "the verbs library is too old: its contexts have no extended functions");
        let offset = std::mem::offset_of!(abi::verbs_context, context);
        // SAFETY: an extended context lies at the end of a verbs_context.
        let table = unsafe { &*self.context().byte_sub(offset).cast::<abi::verbs_context>() };
        let query = table.query_port.context("the verbs library cannot query ports")?;
        // SAFETY: the structure is plain old data, for which zeroes are valid.
        let mut port: abi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call, and the size is the structure's.
        let code = unsafe { query(self.context(), PORT, &raw mut port, size_of_val(&port)) };
        success(code, "ibv_query_port")?;
        Ok(port)
    }

    /// The next asynchronous event, in words, if there is one now.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn async_event(&self) -> Result<Option<String>> {
        // SAFETY: the context lives as long as `self`.
        let fd = unsafe { (*self.context()).async_fd };
        if !is_readable(fd)? {
            return Ok(None);
        }
        // SAFETY: the structure is plain old data, for which zeroes are valid.
        let mut event: abi::ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (self.functions().ibv_get_async_event)(self.context(), &raw mut event) };
        success(code, "ibv_get_async_event")?;
        // SAFETY: the event is the one just got; the text is a constant of the library.
        let words = unsafe {
            (self.functions().ibv_ack_async_event)(&raw mut event);
            words((self.functions().ibv_event_type_str)(event.event_type))
        };
        Ok(Some(words))
    }

    fn status_in_words(&self, status: u32) -> String {
        // SAFETY: the function takes any value, and returns a constant text.
        unsafe { words((self.functions().ibv_wc_status_str)(status)) }
    }

    fn functions(&self) -> &Functions {
        &self.0.functions
    }

    fn context(&self) -> *mut abi::ibv_context {
        self.0.context.as_ptr()
    }

    fn domain(&self) -> *mut abi::ibv_pd {
        self.0.domain.as_ptr()
    }

    /// The context's table of functions.
    fn table(&self) -> &abi::ibv_context_ops {
        // SAFETY: the context lives as long as `self`, and its table does not change.
        unsafe { &(*self.context()).ops }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: every object of the domain holds the `Rc`, so that none is left.
        unsafe {
            (self.functions.ibv_dealloc_pd)(self.domain.as_ptr());
            (self.functions.ibv_close_device)(self.context.as_ptr());
        }
    }
}

const NO_DEVICE: &str = "no RDMA device; start this program with `transhume run`";

fn open_context(functions: &Functions, name: Option<&str>) -> Result<NonNull<abi::ibv_context>> {
    let mut count: c_int = 0;
    // SAFETY: the pointer is valid for the call.
    let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
    let list = not_null(list, "ibv_get_device_list").context(NO_DEVICE)?;
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has `count` devices, valid until it is freed.
    let devices = unsafe { std::slice::from_raw_parts(list.as_ptr(), count) };
    // SAFETY: as above.
    let named = |device: &*mut abi::ibv_device| unsafe { words((functions.ibv_get_device_name)(*device)) };
    let found = devices.iter().copied().find(|device| name.is_none_or(|name| named(device) == name));
    // SAFETY: the device is of the list, and the list is freed once.
    let context = found.map(|device| unsafe { (functions.ibv_open_device)(device) });
    // SAFETY: as above.
    unsafe { (functions.ibv_free_device_list)(list.as_ptr()) };
    match (context, name) {
        (Some(context), _) => not_null(context, "ibv_open_device"),
        (None, Some(name)) => bail!("no RDMA device `{name}`; `ibv_devices` lists the available ones"),
        (None, None) => bail!(NO_DEVICE),
    }
}

/// The library's text at `text`.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn not_null<T>(pointer: *mut T, function: &str) -> Result<NonNull<T>> {
    NonNull::new(pointer).with_context(|| format!("{function}: {}", io::Error::last_os_error()))
}

/// Turns a verb's result, 0 or an errno value, or −1 with errno set, into a [`Result`].
fn success(code: c_int, function: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()).context(function.to_owned()),
        code => Err(io::Error::from_raw_os_error(code)).context(function.to_owned()),
    }
}

fn is_readable(fd: c_int) -> Result<bool> {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd is passed, and it is valid.
    match unsafe { libc::poll(&raw mut wanted, 1, 0) } {
        -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
            Err(io::Error::last_os_error()).context("poll")
        }
        ready => Ok(ready > 0 && wanted.revents & libc::POLLIN != 0),
    }
}

/// A null pointer where a verb takes an optional one.
fn none<T>() -> *mut T {
    ptr::null_mut()
}
