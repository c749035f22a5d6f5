//! Corrects timers of `setitimer` and `timer_create` that CRIU would lose.
//!
//! CRIU dumps the pending signals of a process first, then its memory, and its timers last. A one-shot timer that expires in
//! between is lost: its signal came too late for the first step, and the timer has no time left in the last step. A program that
//! waits for it (with `alarm(2)`, for example) would wait for ever. Therefore the fixup gives a moment of time to each timer
//! without any, if CRIU has not recorded its signal, and the signal is pending once CRIU has left the tree stopped. One signal of
//! each number may be missing there: a thread has taken it before it stopped, if the signal is not blocked and has a lower number
//! than `SIGSTOP`. If no signal of that number was recorded, it belongs to the remaining timer. Periodic timers continue by
//! themselves.
//!
//! The same holds for two timers that send the same signal, if CRIU has recorded both signals: the kernel restores only one of
//! them, unless it is a real-time signal.
//!
//! For a timer that signals the main thread of its process, CRIU records a TID with which it cannot create the timer again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::criu::fixups::alarms::{
    Alarm, MOMENT, POSIX_THREAD, POSIX_TIMERS, Receiver, TASK, TIMERS, Timer, alarms_in, noted_in, with_left,
    word,
};
use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::criu::images::core_of;
use crate::criu::protobuf::{not_understood, number, with, with_entries, with_number};
use crate::instance::Blocker;
use crate::linux::pending::{self, Info, Pending, Set};

/// A queue of signals in the images.
struct Queue {
    receiver: Receiver,
    core: PathBuf,
    /// The blocked signals of each thread that takes signals from it.
    blocked: Vec<Set>,
    /// The thread in whose `/proc` entry the kernel shows it.
    tid: i32,
}

/// Timers whose signals may be late.
struct Late(Vec<LateIn>);

/// The timers of one process.
struct LateIn {
    pid: i32,
    /// The image with its timers.
    leader: PathBuf,
    queues: Vec<(Queue, Vec<Alarm>)>,
}

/// The fixup of process timers.
#[derive(Default)]
pub struct ProcessTimers {
    /// The timers whose signals may be late, between [`Fixup::save`] and [`Fixup::finish`].
    late: Option<Late>,
}

impl Fixup for ProcessTimers {
    fn name(&self) -> &'static str {
        "process timers"
    }

    fn lacks(&self) -> &'static str {
        "CRIU loses the signal of a timer that expires between two steps of its dump, and a timer's thread"
    }

    fn save(&mut self, stopped: &StoppedTree<'_>) -> io::Result<()> {
        self.late = Some(mend(stopped.images, stopped.tree)?);
        Ok(())
    }

    fn finish(&mut self, _: &StoppedTree<'_>, _: Instant) -> io::Result<Option<Blocker>> {
        let unclear = self.late.take().map_or(Ok(None), Late::mend)?;
        Ok(unclear.map(blocker))
    }
}

/// Corrects the timers in a stopped tree's images while CRIU holds the tree. Returns the timers that need [`Late::mend`].
///
/// # Errors
/// If an image cannot be read or written.
fn mend(images: &Path, tree: &[i32]) -> io::Result<Late> {
    let mut late = Vec::new();
    for &pid in tree {
        let pending = Pending::of(pid)?;
        let leader = core_of(images, pending.first()?.number);
        let image = fs::read(&leader)?;
        let named = with_first_thread(&image, &pending).ok_or_else(|| not_understood(&leader))?;
        if named != image {
            fs::write(&leader, &named)?;
        }
        if !pending.is_empty() {
            let alarms = alarms_in(&named, |left| left == 0).ok_or_else(|| not_understood(&leader))?;
            late.push(LateIn { pid, leader, queues: queues_of(images, &pending, &alarms)? });
        }
    }
    Ok(Late(late))
}

impl Late {
    /// Gives late timers a moment of time, once CRIU has left the tree stopped. Returns a process with timers of which it cannot
    /// tell which have expired; the tree must be dumped again.
    ///
    /// # Errors
    /// If a thread cannot be inspected, or an image cannot be read or written.
    pub fn mend(self) -> io::Result<Option<i32>> {
        for LateIn { pid, leader, queues } in self.0 {
            let mut late = Vec::new();
            for (queue, alarms) in queues {
                let queued = pending::queued(queue.tid, queue.receiver == Receiver::Process)?;
                let Some(found) = queue.late(alarms, &queue.noted()?, &queued) else { return Ok(Some(pid)) };
                late.extend(found);
            }
            if !late.is_empty() {
                let image = fs::read(&leader)?;
                fs::write(&leader, with_left(&image, &late, MOMENT).ok_or_else(|| not_understood(&leader))?)?;
            }
        }
        Ok(None)
    }
}

/// The queues of a process with the alarms that may be in them.
fn queues_of(images: &Path, pending: &Pending, alarms: &[Alarm]) -> io::Result<Vec<(Queue, Vec<Alarm>)>> {
    let first = pending.first()?;
    let own = pending.threads.iter().map(|thread| {
        let receiver = Receiver::Thread(thread.number);
        let core = core_of(images, thread.number);
        (Queue { receiver, core, blocked: vec![thread.blocked], tid: thread.tid }, thread.waiting)
    });
    let core = core_of(images, first.number);
    let blocked = pending.threads.iter().map(|thread| thread.blocked).collect();
    let shared = Queue { receiver: Receiver::Process, core, blocked, tid: first.tid };
    let all = own.chain([(shared, pending.shared)]).map(|(queue, waiting)| {
        let is_its = |alarm: &&Alarm| alarm.receiver == queue.receiver && pending::has(waiting, alarm.signal);
        let alarms: Vec<Alarm> = alarms.iter().filter(is_its).copied().collect();
        (queue, alarms)
    });
    Ok(all.filter(|(_, alarms)| !alarms.is_empty()).collect())
}

/// The blocker for such a process.
fn blocker(pid: i32) -> Blocker {
    let what = format!("several timers of process {pid} that send the same signal expire during the dump");
    Blocker::new(what, "move it when fewer timers expire")
}

/// The image in which timers that signal the process's first thread have the TID of that thread.
fn with_first_thread(image: &[u8], pending: &Pending) -> Option<Vec<u8>> {
    let first = pending.first().ok()?.number;
    let is_thread = |value: u64| pending.threads.iter().any(|thread| thread.number == value as i32);
    let named = |timer: &[u8]| match number(timer, POSIX_THREAD) {
        Some(thread) if !is_thread(thread) => with_number(timer, POSIX_THREAD, first as u64),
        _ => Some(timer.to_vec()),
    };
    let in_task = |task: &[u8]| with(task, TIMERS, |timers| with(timers, POSIX_TIMERS, named));
    with_entries(image, |core| with(core, TASK, in_task))
}

impl Queue {
    /// Those of `alarms` that are not `noted`, and that are `queued` or were taken; `None` if it cannot tell which.
    fn late(&self, mut alarms: Vec<Alarm>, noted: &[Vec<u8>], queued: &[Info]) -> Option<Vec<Timer>> {
        alarms.retain(|alarm| !alarm.comes_back(noted));
        let waits = |alarm: &Alarm| queued.iter().any(|info| alarm.is(info));
        let is_noted = |alarm: &Alarm| noted.iter().any(|info| alarm.is(info));
        let (mut late, mut others): (Vec<_>, Vec<_>) =
            alarms.iter().copied().partition(|alarm| waits(alarm) || is_noted(alarm));
        let noted_of = |signal| noted.iter().filter(|info| word(info, 0) == Some(signal)).count();
        // The recorded signals were there first.
        others.retain(|alarm| noted_of(alarm.signal) < self.takers_before_stop(alarm.signal));
        if others.iter().any(|alarm| noted_of(alarm.signal) > 0) {
            return None;
        }
        late.extend(one_for_each_signal(others)?);
        Some(late.iter().map(|alarm| alarm.timer).collect())
    }

    /// The signals that CRIU has recorded.
    fn noted(&self) -> io::Result<Vec<Vec<u8>>> {
        noted_in(&fs::read(&self.core)?, self.receiver).ok_or_else(|| not_understood(&self.core))
    }

    /// How many threads take one `signal` each before they stop. The kernel delivers signals for a single thread first, and then
    /// lower numbers before higher ones.
    fn takers_before_stop(&self, signal: libc::c_int) -> usize {
        let comes_first = signal < libc::SIGSTOP || self.receiver != Receiver::Process;
        let takers = self.blocked.iter().filter(|blocked| !pending::has(**blocked, signal)).count();
        if comes_first { takers } else { 0 }
    }
}

/// Keeps one alarm for each signal. Every process has interval timers, and most are never started: one explains a signal only if no
/// other timer does.
fn one_for_each_signal(mut alarms: Vec<Alarm>) -> Option<Vec<Alarm>> {
    let is_posix = |alarm: &Alarm| matches!(alarm.timer, Timer::Posix(_));
    let of_posix: Vec<_> = alarms.iter().filter(|alarm| is_posix(alarm)).map(|alarm| alarm.signal).collect();
    alarms.retain(|alarm| is_posix(alarm) || !of_posix.contains(&alarm.signal));
    let is_alone = |alarm: &Alarm| alarms.iter().filter(|other| other.signal == alarm.signal).count() == 1;
    alarms.iter().all(is_alone).then_some(alarms)
}

#[cfg(test)]
mod tests;
