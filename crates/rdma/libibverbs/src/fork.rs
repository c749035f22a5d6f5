//! `fork`. The device stays with the parent: its memory may be registered and its links carry the
//! parent's traffic. In a child the inherited objects are dead (`EIO`); it may open the device again,
//! as another process.
//!
//! The lock is held across `fork`, so that the child sees no half-done state; of other locks, which may be many, the child
//! has its own ([`PerProcess`](waiting::PerProcess)), or never takes them, as the device is not its own. The child then closes
//! its copies of the links and of the connection to the node, so that they end with the parent.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, c_void};
use verbs_abi::constants::IBV_FORK_UNNEEDED;
use waiting::{HeldInFork, Uncancelled};

use crate::biased::Guard;
use crate::devices::ATTACHING;
use crate::process::{Process, State};

/// The locks that `before` takes and the other two release.
struct Held {
    process: &'static Process,
    state: Guard<'static, State>,
}

static HELD: HeldInFork<Held> = HeldInFork::new();

/// From when the library is loaded: another thread may fork while the process is attached.
#[used]
#[unsafe(link_section = ".init_array")]
static WATCH: extern "C" fn() = watch;

extern "C" fn watch() {
    // SAFETY: the three functions are never unloaded: the library is linked with `nodelete`.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    let _whole = Uncancelled::new();
    let Some(process) = Process::current() else { return };
    let mut held = Held { process, state: process.lock_for_fork() };
    held.state.device.before_fork();
    // SAFETY: a child has another process only when no thread of its parent's is left in it.
    unsafe { HELD.put(held) };
}

unsafe extern "C" fn in_parent() {
    let _whole = Uncancelled::new();
    drop(HELD.take());
}

unsafe extern "C" fn in_child() {
    headroom::reset_in_child();
    waiting::begin_generation();
    let _whole = Uncancelled::new();
    // SAFETY: the child is new, and an attaching thread does not fork.
    unsafe { ATTACHING.renew() };
    let Some(held) = HELD.take() else {
        // Another thread may have attached the process since `before`: its links are not known here.
        if let Some(process) = Process::current() {
            leave(process).into_iter().for_each(close);
        }
        return;
    };
    let node = leave(held.process);
    held.state.device.link_descriptors().into_iter().chain(node).for_each(close);
}

/// Leaves the device to the parent. Returns the child's copy of the connection to the node.
fn leave(process: &Process) -> Option<RawFd> {
    process.leave_to_parent();
    drop(process.reserve.kept());
    let node = process.node.load(Ordering::Relaxed);
    (node != -1).then_some(node)
}

fn close(fd: RawFd) {
    // SAFETY: the descriptor is the child's copy; its former owner is not used again.
    unsafe { libc::close(fd) };
}

/// Registered memory needs no care here: no hardware writes to it behind the kernel's back.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}
