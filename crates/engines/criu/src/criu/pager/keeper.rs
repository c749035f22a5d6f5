//! The keeper: the second process that holds the userfaultfds, beside the pager.
//!
//! It is forked so that both processes share one table of descriptors: a descriptor that one of them receives, such as the
//! userfaultfd of a forked process, belongs to the other as well. If either ends, the other kills the instance, waits until the
//! instance has ended, and only then ends too.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::{mem, ptr};

/// The state that both processes share.
struct Shared {
    /// The descriptor of the instance's first process, once there is one.
    instance: AtomicI32,
    /// Whether the instance is independent of these processes: no page is missing any more, or there is no instance.
    is_dismissed: AtomicBool,
}

/// The pager's side.
pub struct Kept {
    shared: NonNull<Shared>,
    /// The keeper, and the process that has started the pager.
    keeper: OwnedFd,
    node: OwnedFd,
    instance: Option<OwnedFd>,
}

/// Forks the keeper. This process must have no other thread.
pub fn start() -> io::Result<Kept> {
    // SAFETY: no memory is passed.
    let (me, parent) = unsafe { (libc::getpid(), libc::getppid()) };
    let (pager, node) = (process(me)?, process(parent)?);
    let shared = shared()?;
    // SAFETY: no memory is passed. Both processes continue with a copy of all memory, and neither has another thread.
    let keeper = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
    match i32::try_from(keeper).unwrap_or(-1) {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: the mapping lives as long as the process.
            keep(&pager, unsafe { shared.as_ref() });
            // SAFETY: exiting without cleanup is right: the resources belong to the pager.
            unsafe { libc::_exit(0) }
        }
        keeper => {
            // The keeper's handle of the pager, in the table that both share.
            mem::forget(pager);
            Ok(Kept { shared, keeper: process(keeper)?, node, instance: None })
        }
    }
}

/// Runs the keeper until its end.
fn keep(pager: &OwnedFd, shared: &Shared) {
    await_end(pager.as_raw_fd());
    if !shared.is_dismissed.load(Ordering::SeqCst) {
        end(shared.instance.load(Ordering::SeqCst));
    }
}

impl Kept {
    fn shared(&self) -> &Shared {
        // SAFETY: the mapping lives as long as the process, and holds atomic numbers only.
        unsafe { self.shared.as_ref() }
    }

    /// The descriptors that become readable when one of the processes ends.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let before = self.instance.is_none().then(|| self.node.as_raw_fd());
        let instance = self.instance.as_ref().map(AsRawFd::as_raw_fd);
        let keeper = (!self.shared().is_dismissed.load(Ordering::SeqCst)).then(|| self.keeper.as_raw_fd());
        before.into_iter().chain(instance).chain(keeper).collect()
    }

    /// Whether the pager must end: with its instance, or, before there is one, with the node that restores it.
    pub fn has_ended(&self, is_ready: &dyn Fn(RawFd) -> bool) -> io::Result<bool> {
        match &self.instance {
            None if is_ready(self.node.as_raw_fd()) => return Ok(true),
            Some(instance) if is_ready(instance.as_raw_fd()) => return Ok(true),
            _ => {}
        }
        let is_alone =
            !self.shared().is_dismissed.load(Ordering::SeqCst) && is_ready(self.keeper.as_raw_fd());
        if is_alone { Err(io::Error::other("the keeper of the memory has ended")) } else { Ok(false) }
    }

    /// Ties the instance with this first process to both processes: if either ends, the instance is killed.
    pub fn set_instance(&mut self, first: OwnedFd) {
        self.shared().instance.store(first.as_raw_fd(), Ordering::SeqCst);
        self.instance = Some(first);
    }

    /// Ends the instance.
    pub fn end_instance(&self) {
        end(self.shared().instance.load(Ordering::SeqCst));
    }

    /// Unties the instance from both processes.
    pub fn dismiss(&self) {
        self.shared().is_dismissed.store(true, Ordering::SeqCst);
    }
}

/// Kills the process of a descriptor, if there is one, and waits for its end.
fn end(process: RawFd) {
    if process >= 0 {
        let none = ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo asks for the default one.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, libc::SIGKILL, none, 0) };
        await_end(process);
    }
}

fn await_end(process: RawFd) {
    let mut poll = libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd is passed.
    while unsafe { libc::poll(&raw mut poll, 1, -1) } == -1 {}
}

fn process(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made it for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes zeroed memory that both processes share.
fn shared() -> io::Result<NonNull<Shared>> {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), mem::size_of::<Shared>(), rights, flags, -1, 0) };
    let shared = NonNull::new(at.cast::<Shared>()).filter(|_| at != libc::MAP_FAILED);
    let shared = shared.ok_or_else(io::Error::last_os_error)?;
    let nothing = Shared { instance: AtomicI32::new(-1), is_dismissed: AtomicBool::new(false) };
    // SAFETY: the mapping is writable and page-aligned, and no other code uses it yet.
    unsafe { shared.write(nothing) };
    Ok(shared)
}
