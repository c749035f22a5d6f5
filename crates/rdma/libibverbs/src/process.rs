//! This process as a user of RDMA: its identity, and the device behind one lock.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use fabric::{FabricId, ProcessId};
use softhca::{AsyncEvent, Device, Errno, Event, Limits};
use verbs_abi::constants::event;
use verbs_abi::{ibv_async_event, ibv_async_event_element, ibv_context, ibv_cq, ibv_qp, ibv_srq};

use crate::biased::{BiasedLock, Guard, OwnerGuard};
use crate::context::{Context, Raised};
use crate::cq::Cq;
use crate::crowding::{Crowding, NAP};
use crate::directory::Directory;
use crate::reserve::Reserve;
use crate::{debug, reports, xrc};
use waiting::{EventFd, Uncancelled, sleep};

/// A pointer to an object of the program that stays where it is until it is removed from [`Objects`].
pub(crate) struct Held<T>(pub(crate) *mut T);

// SAFETY: the objects are used under the process' lock, or through their own locks.
unsafe impl<T> Send for Held<T> {}

/// The program's objects, by the device's handles.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) cqs: HashMap<softhca::Cq, Held<ibv_cq>>,
    pub(crate) srqs: HashMap<softhca::Srq, Held<ibv_srq>>,
    pub(crate) qps: HashMap<softhca::Qp, Held<ibv_qp>>,
    /// Further openings of the QPs in `qps`.
    pub(crate) opened_again: HashMap<softhca::Qp, Vec<Held<ibv_qp>>>,
    pub(crate) xrcds: HashMap<softhca::Xrcd, Held<ibv_context>>,
    pub(crate) xrcd_files: HashMap<xrc::File, xrc::Opened>,
    pub(crate) mws: HashMap<softhca::Mw, Held<ibv_context>>,
    pub(crate) mrs: HashMap<softhca::Mr, Held<ibv_context>>,
    pub(crate) pds: HashMap<softhca::Pd, Held<ibv_context>>,
    pub(crate) ahs: HashMap<softhca::Ah, Held<ibv_context>>,
}

impl Objects {
    /// One opener of `handle` has destroyed `qp`. False if it was the only one: the caller then destroys the queue pair
    /// itself.
    pub(crate) fn forget_opening(&mut self, handle: softhca::Qp, qp: *mut ibv_qp) -> bool {
        let Some(others) = self.opened_again.get_mut(&handle) else { return false };
        match others.iter().position(|Held(other)| *other == qp) {
            Some(at) => drop(others.remove(at)),
            None => match others.pop() {
                // Events go to one of the remaining openers.
                Some(other) => drop(self.qps.insert(handle, other)),
                None => return false,
            },
        }
        true
    }
}

/// The timers and descriptors on which the thread sleeps.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// [`Device::waiting`].
    pub(crate) waiting: usize,
    /// [`Device::waitables_version`].
    pub(crate) waitables: u64,
}

impl Known {
    pub(crate) fn of(device: &Device) -> Self {
        Self { waiting: device.waiting(), waitables: device.waitables_version() }
    }
}

/// The state that the lock guards.
pub(crate) struct State {
    pub(crate) device: Device,
    pub(crate) objects: Objects,
    /// Peers to which the thread shall ask the node for a link.
    pub(crate) wanted_links: Vec<ProcessId>,
    pub(crate) crowding: Crowding,
    /// The thread sleeps on links. Otherwise it leaves them to the program, which spins.
    pub(crate) armed: bool,
    /// The state of the device when the thread went to sleep.
    pub(crate) known: Known,
    /// The thread sleeps without a tick, and does not check for pending output of the program.
    pub(crate) sleeps_without_tick: bool,
    events: Vec<Event>,
}

/// How often calls of the program yield, at most, while the thread waits once for the lock.
const YIELD_BUDGET: u32 = 16;

/// See the module.
pub(crate) struct Process {
    pub(crate) identity: ProcessId,
    pub(crate) fabric: FabricId,
    /// The limits of the device: known also to a child of a fork.
    pub(crate) limits: Limits,
    state: BiasedLock<State>,
    /// How often calls of the program still yield to the thread that waits for the lock. A program that polls in a loop would
    /// otherwise starve the thread.
    yield_budget: AtomicU32,
    /// Calls of the program that wait for the lock.
    program_waits: AtomicU32,
    /// The device belongs to the parent of this process.
    forked: AtomicBool,
    /// Counts the program's polls, which change it with the lock held. A clock would take longer than the poll.
    pub(crate) polls: AtomicU32,
    /// How much of the device's memory is in use, in bytes.
    pub(crate) device_memory: AtomicUsize,
    /// Wakes the thread.
    pub(crate) wake: EventFd,
    pub(crate) directory: Directory,
    /// The thread's connection to the node, or -1; for `fork`.
    pub(crate) node: AtomicI32,
    /// For the next connection to a node.
    pub(crate) reserve: Reserve,
}

/// The process' device once it is attached. Never freed: objects and the thread refer to it.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    pub(crate) fn new(identity: ProcessId, fabric: FabricId, device: Device, wake: EventFd) -> Self {
        let limits = *device.limits();
        let state = State {
            device,
            objects: Objects::default(),
            wanted_links: Vec::new(),
            crowding: Crowding::default(),
            armed: true,
            known: Known::default(),
            sleeps_without_tick: false,
            events: Vec::new(),
        };
        Self {
            identity,
            fabric,
            limits,
            state: BiasedLock::new(state),
            yield_budget: AtomicU32::new(0),
            program_waits: AtomicU32::new(0),
            forked: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            device_memory: AtomicUsize::new(0),
            wake,
            directory: Directory::default(),
            node: AtomicI32::new(-1),
            reserve: Reserve::default(),
        }
    }

    /// The attached process, if there is one.
    pub(crate) fn current() -> Option<&'static Self> {
        // SAFETY: the pointer is null or came from `make_current`, and is never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn make_current(&'static self) {
        CURRENT.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
        // SAFETY: the function may run at any exit: it does not wait for the lock.
        unsafe { libc::atexit(flush_at_exit) };
    }

    /// In a forked child: the device stays with the parent, and the child may attach again.
    pub(crate) fn leave_to_parent(&self) {
        self.forked.store(true, Ordering::Relaxed);
        self.state.disown();
        CURRENT.store(ptr::null_mut(), Ordering::Release);
    }

    /// Whether the device is this process' own.
    ///
    /// # Errors
    /// `EIO` in a forked child.
    pub(crate) fn own(&self) -> Result<(), Errno> {
        if self.forked.load(Ordering::Relaxed) { Err(Errno(libc::EIO)) } else { Ok(()) }
    }

    /// Runs `work` under the lock, and delivers the events that came of it.
    ///
    /// # Errors
    /// `EIO` in a forked child; otherwise the errors of `work`.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut State) -> Result<R, Errno>) -> Result<R, Errno> {
        let _whole = Uncancelled::new();
        self.locked(|state| {
            let result = work(state);
            self.attend(state);
            result
        })
    }

    /// Runs `work` under the lock, for the program. Callers that change more than memory call [`Self::attend`] at the end.
    ///
    /// # Errors
    /// `EIO` in a forked child; otherwise the errors of `work`.
    #[inline]
    pub(crate) fn locked<R>(&self, work: impl FnOnce(&mut State) -> Result<R, Errno>) -> Result<R, Errno> {
        match self.state.lock_as_owner() {
            Some(mut state) => work(&mut state),
            None => self.locked_after_yield(work),
        }
    }

    /// The lock, if the calling thread owns it.
    #[inline]
    pub(crate) fn lock_as_owner(&self) -> Option<OwnerGuard<'_, State>> {
        self.state.lock_as_owner()
    }

    /// Passes on the effects of a call of the program.
    #[inline]
    pub(crate) fn attend(&self, state: &mut State) {
        self.deliver(state);
        self.tell_thread(state);
    }

    /// As [`Self::locked`], for a thread that does not own the lock; the library's thread goes first if it can.
    ///
    /// # Errors
    /// `EIO` in a forked child, where no thread owns it; otherwise the errors of `work`.
    #[cold]
    #[inline(never)]
    pub(crate) fn locked_after_yield<R>(
        &self,
        work: impl FnOnce(&mut State) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.own()?;
        self.yield_to_thread();
        self.program_waits.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock_often();
        self.program_waits.fetch_sub(1, Ordering::Relaxed);
        work(&mut state)
    }

    /// Lets the thread have the lock if it waits for it, but does not wait until it does: programs on its processor may
    /// keep it from running for long.
    fn yield_to_thread(&self) {
        let one_less = |left: u32| left.checked_sub(1);
        if self.yield_budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            sleep(NAP);
        }
    }

    /// Reports the last traffic of a process that ends.
    fn report_traffic(&self, state: &mut State) {
        let node = self.node.load(Ordering::Relaxed);
        if node != -1 {
            // SAFETY: the thread closes the socket only with the lock held, which `state` proves is held here.
            reports::report(&mut state.device, unsafe { BorrowedFd::borrow_raw(node) });
        }
    }

    /// So many more. The lock is held, so that none is lost.
    #[inline]
    pub(crate) fn count_polls(&self, count: u32) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Whether the program waits for the lock.
    pub(crate) fn is_wanted(&self) -> bool {
        self.program_waits.load(Ordering::Relaxed) != 0
    }

    /// Wakes the thread if a timer or descriptor on which it sleeps has changed. Also
    /// if no other thread would send the pending output of this call, should the program not call again.
    fn tell_thread(&self, state: &mut State) {
        let now = Known::of(&state.device);
        let timer = now.waiting > state.known.waiting;
        let links = state.armed && now.waitables != state.known.waitables;
        if timer || links || state.sleeps_without_tick && state.device.has_output() {
            state.known = now;
            state.sleeps_without_tick = false;
            self.wake.signal();
        }
    }

    /// The lock, for the thread, with precedence over the program.
    pub(crate) fn lock_with_priority(&self) -> Guard<'_, State> {
        self.yield_budget.store(YIELD_BUDGET, Ordering::Relaxed);
        let claim = self.state.claim();
        self.yield_budget.store(0, Ordering::Relaxed);
        claim.enter()
    }

    /// The lock, as `fork` takes it.
    pub(crate) fn lock_for_fork(&self) -> Guard<'_, State> {
        self.state.claim().enter()
    }

    /// Passes on the device's output.
    #[inline]
    pub(crate) fn deliver(&self, state: &mut State) {
        if state.device.has_news() {
            self.deliver_news(state);
        }
    }

    /// Makes the thread ask for the members of multicast groups.
    fn ask_for_members(&self, state: &mut State) {
        let mut groups = Vec::new();
        state.device.take_group_requests(&mut groups);
        for group in groups {
            if !self.directory.ask_for_members(group) {
                state.device.learn_members(group, None);
            }
            self.wake.signal();
        }
    }

    fn deliver_news(&self, state: &mut State) {
        let _whole = Uncancelled::new();
        let mut events = std::mem::take(&mut state.events);
        state.device.take_events(&mut events);
        for event in events.drain(..) {
            if matches!(event, Event::LinkLost { .. }) {
                // The thread sees to a new one.
                self.wake.signal();
            }
            deliver_event(&state.objects, event);
        }
        state.events = events;
        self.ask_for_members(state);
        let before = state.wanted_links.len();
        state.device.take_link_requests(&mut state.wanted_links);
        if state.wanted_links.len() > before {
            self.wake.signal();
        }
    }
}

/// How long a program that ends waits for its last datagrams to be taken.
const LAST_DATAGRAMS: Duration = Duration::from_secs(1);

/// How long for the lock: the thread that ends may hold it itself.
const LAST_LOCK: Duration = Duration::from_millis(100);

/// Sends data that would be lost with the process: acknowledgements that peers wait for, and datagrams that the
/// program takes for sent.
extern "C" fn flush_at_exit() {
    let process = Process::current().filter(|process| !process.forked.load(Ordering::Relaxed));
    let Some(process) = process else { return };
    let begun = Instant::now();
    loop {
        let limit = match process.state.try_lock() {
            Some(mut state) => {
                // The program will make no request any more that could carry them.
                state.device.hold_acks(false);
                state.device.progress(crate::thread::now());
                process.attend(&mut state);
                process.report_traffic(&mut state);
                if !state.device.has_datagrams() {
                    return;
                }
                LAST_DATAGRAMS
            }
            None => LAST_LOCK,
        };
        if begun.elapsed() >= limit {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn deliver_event(objects: &Objects, event: Event) {
    match event {
        Event::Completion(cq) => {
            if let Some(Held(pointer)) = objects.cqs.get(&cq) {
                // SAFETY: objects leave the table before they are freed.
                unsafe { Cq::of(*pointer) }.notify();
            }
        }
        Event::Async(event) => deliver_async(objects, event),
        Event::LinkLost { peer, reason } => debug::say(|| format!("the link to {peer} ended: {reason:?}")),
    }
}

fn deliver_async(objects: &Objects, event: AsyncEvent) {
    let found = match event {
        AsyncEvent::CqError(cq) => of_cq(objects, cq, event::IBV_EVENT_CQ_ERR),
        AsyncEvent::QpFatal(qp) => of_qp(objects, qp, event::IBV_EVENT_QP_FATAL),
        AsyncEvent::QpRequestError(qp) => of_qp(objects, qp, event::IBV_EVENT_QP_REQ_ERR),
        AsyncEvent::QpAccessError(qp) => of_qp(objects, qp, event::IBV_EVENT_QP_ACCESS_ERR),
        AsyncEvent::CommunicationEstablished(qp) => of_qp(objects, qp, event::IBV_EVENT_COMM_EST),
        AsyncEvent::SendQueueDrained(qp) => of_qp(objects, qp, event::IBV_EVENT_SQ_DRAINED),
        AsyncEvent::LastWqeReached(qp) => of_qp(objects, qp, event::IBV_EVENT_QP_LAST_WQE_REACHED),
        AsyncEvent::SrqLimitReached(srq) => of_srq(objects, srq),
    };
    if let Some((context, event)) = found {
        // SAFETY: a context outlives its objects, which leave the table with it.
        unsafe { Context::of(context) }.asynchronous.push(Raised(event));
    }
}

type Found = Option<(*mut ibv_context, ibv_async_event)>;

fn of_cq(objects: &Objects, cq: softhca::Cq, event_type: u32) -> Found {
    let cq = objects.cqs.get(&cq)?.0;
    // SAFETY: objects leave the table before they are freed.
    let context = unsafe { (*cq).context };
    Some((context, ibv_async_event { element: ibv_async_event_element { cq }, event_type }))
}

fn of_qp(objects: &Objects, qp: softhca::Qp, event_type: u32) -> Found {
    let qp = objects.qps.get(&qp)?.0;
    // SAFETY: as above.
    let context = unsafe { (*qp).context };
    Some((context, ibv_async_event { element: ibv_async_event_element { qp }, event_type }))
}

fn of_srq(objects: &Objects, srq: softhca::Srq) -> Found {
    let srq = objects.srqs.get(&srq)?.0;
    // SAFETY: as above.
    let context = unsafe { (*srq).context };
    let element = ibv_async_event_element { srq };
    Some((context, ibv_async_event { element, event_type: event::IBV_EVENT_SRQ_LIMIT_REACHED }))
}
