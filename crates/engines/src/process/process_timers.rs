//! Corrects timers of `setitimer` and `timer_create` that CRIU would lose.
//!
//! CRIU dumps the pending signals of a process first, then its memory, and its timers last. A one-shot timer that expires in between
//! is lost: its signal came too late for the first, and it has no time left for the last.
//! A program that waits for it (`alarm(2)`, say) would wait for ever. So the images get a moment of time for timers
//! without any whose signals CRIU has not noted, and that wait once it has left the tree stopped. Not there any more is
//! then one signal of each kind that is not blocked and comes before `SIGSTOP`: a thread has taken it on its way. If
//! none of its kind was noted, it is that of the timer which is left over. Periodic timers go on by themselves.
//!
//! The same holds for two timers with one signal that both were noted: the kernel takes only one of them back, unless
//! it is a real-time signal.
//!
//! For a timer that signals the main thread of its process, CRIU records a thread ID with which it cannot create the timer again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::images::core_of;
use super::pending::{self, Info, Pending, Set};
use super::protobuf::{
    Message, bytes, fields, first_entry, not_understood, number, with, with_entries, with_number,
};
use crate::report::Blocker;

/// Fields of `core_entry`.
const TASK: u64 = 3;
const THREAD: u64 = 5;
/// Fields of `task_core_entry`.
const TIMERS: u64 = 7;
const SHARED_SIGNALS: u64 = 10;
/// Field of `thread_core_entry`.
const OWN_SIGNALS: u64 = 9;
/// Field of `signal_queue_entry`, and of what is in it.
const SIGNAL: u64 = 1;
/// Fields of `task_timers_entry`: those of `setitimer`, with their signals, and those of `timer_create`.
const INTERVAL_TIMERS: [(u64, libc::c_int); 3] =
    [(1, libc::SIGALRM), (2, libc::SIGVTALRM), (3, libc::SIGPROF)];
const POSIX_TIMERS: u64 = 4;
/// Fields of `itimer_entry`: period and time left, each in seconds and microseconds.
const INTERVAL_TIMES: [u64; 4] = [1, 2, 3, 4];
/// Fields of `posix_timer_entry`: the same in seconds and nanoseconds.
const POSIX_TIMES: [u64; 4] = [7, 8, 9, 10];
/// The units of the smaller parts of their times, in nanoseconds.
const INTERVAL_UNIT: u64 = 1000;
const POSIX_UNIT: u64 = 1;
const SECOND: u64 = 1_000_000_000;
/// What a late timer gets, in nanoseconds.
const MOMENT: u64 = 1000;
const POSIX_ID: u64 = 1;
const POSIX_SIGNAL: u64 = 3;
const POSIX_NOTIFY: u64 = 4;
const POSIX_THREAD: u64 = 11;

/// For whom a signal waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Any thread of the process.
    Process,
    /// A thread, by its number in the instance.
    Thread(i32),
}

/// Names a timer of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Of `setitimer`, by its field.
    Interval(u64),
    /// Of `timer_create`, by its number.
    Posix(u64),
}

/// The signal of a timer that expires once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Whose it is.
    pub timer: Timer,
    /// Who gets it.
    pub receiver: Receiver,
    /// Its number.
    pub signal: libc::c_int,
}

impl Alarm {
    /// Whether the kernel has made this signal for the timer.
    fn is(&self, info: &[u8]) -> bool {
        let is_its_timers = match self.timer {
            Timer::Interval(_) => word(info, 2) == Some(libc::SI_KERNEL),
            Timer::Posix(id) => word(info, 2) == Some(libc::SI_TIMER) && word(info, 4) == Some(id as i32),
        };
        is_its_timers && word(info, 0) == Some(self.signal)
    }

    /// Whether the kernel will have the signal again once `noted` are given back.
    fn comes_back(&self, noted: &[Vec<u8>]) -> bool {
        /// As the kernel counts, which leaves none to the C library.
        const FIRST_REAL_TIME: libc::c_int = 32;
        let mut of_its_kind = noted.iter().filter(|info| word(info, 0) == Some(self.signal));
        match self.signal {
            FIRST_REAL_TIME.. => of_its_kind.any(|info| self.is(info)),
            _ => of_its_kind.next().is_some_and(|info| self.is(info)),
        }
    }
}

/// A queue of signals in the images.
struct Queue {
    receiver: Receiver,
    core: PathBuf,
    /// What each thread that takes from it has blocked.
    blocked: Vec<Set>,
    /// The thread by which the kernel shows it.
    tid: i32,
}

/// Timers whose signals may have come late.
pub struct Late(Vec<LateIn>);

/// Those of one process.
struct LateIn {
    pid: i32,
    /// The image with its timers.
    leader: PathBuf,
    queues: Vec<(Queue, Vec<Alarm>)>,
}

/// Makes the timers in a stopped tree's images fit for CRIU in this, while CRIU holds the tree, but for those that it returns.
///
/// # Errors
/// If an image cannot be read or written.
pub fn carry(images: &Path, tree: &[i32]) -> io::Result<Late> {
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
    /// Gives them a moment to go, once CRIU has left the tree stopped. Returns a process of which it is not known which of its
    /// timers expired; it has to be dumped again.
    ///
    /// # Errors
    /// If a thread cannot be looked at, or an image not be read or written.
    pub fn carry(self) -> io::Result<Option<i32>> {
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

/// What to say of such a process.
pub fn blocker(pid: i32) -> Blocker {
    let what = format!("several timers of process {pid} that send the same signal expire during the dump");
    Blocker::new(what, "move it when fewer timers expire")
}

/// The image with the number of the process' first thread in those timers that signal it.
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
    /// The timers of those `alarms` that are not `noted`, and that are `queued` or were taken; `None` if it is not known which.
    fn late(&self, mut alarms: Vec<Alarm>, noted: &[Vec<u8>], queued: &[Info]) -> Option<Vec<Timer>> {
        alarms.retain(|alarm| !alarm.comes_back(noted));
        let waits = |alarm: &Alarm| queued.iter().any(|info| alarm.is(info));
        let is_noted = |alarm: &Alarm| noted.iter().any(|info| alarm.is(info));
        let (mut late, mut others): (Vec<_>, Vec<_>) =
            alarms.iter().copied().partition(|alarm| waits(alarm) || is_noted(alarm));
        let noted_of = |signal| noted.iter().filter(|info| word(info, 0) == Some(signal)).count();
        // Those that are noted were there first.
        others.retain(|alarm| noted_of(alarm.signal) < self.takers_before_stop(alarm.signal));
        if others.iter().any(|alarm| noted_of(alarm.signal) > 0) {
            return None;
        }
        late.extend(one_for_each_signal(others)?);
        Some(late.iter().map(|alarm| alarm.timer).collect())
    }

    /// The signals that CRIU has noted.
    fn noted(&self) -> io::Result<Vec<Vec<u8>>> {
        noted_in(&fs::read(&self.core)?, self.receiver).ok_or_else(|| not_understood(&self.core))
    }

    /// How many threads take `signal` once before they stop when they are told to: the kernel hands out first what is for one
    /// thread alone, and then lower numbers before higher ones.
    fn takers_before_stop(&self, signal: libc::c_int) -> usize {
        let comes_first = signal < libc::SIGSTOP || self.receiver != Receiver::Process;
        let takers = self.blocked.iter().filter(|blocked| !pending::has(**blocked, signal)).count();
        if comes_first { takers } else { 0 }
    }
}

/// Every process has interval timers, which most never start: one explains a signal only if no other timer does.
fn one_for_each_signal(mut alarms: Vec<Alarm>) -> Option<Vec<Alarm>> {
    let is_posix = |alarm: &Alarm| matches!(alarm.timer, Timer::Posix(_));
    let of_posix: Vec<_> = alarms.iter().filter(|alarm| is_posix(alarm)).map(|alarm| alarm.signal).collect();
    alarms.retain(|alarm| is_posix(alarm) || !of_posix.contains(&alarm.signal));
    let is_alone = |alarm: &Alarm| alarms.iter().filter(|other| other.signal == alarm.signal).count() == 1;
    alarms.iter().all(is_alone).then_some(alarms)
}

/// The place of the queue of signals in an image.
fn queue_of(receiver: Receiver) -> (u64, u64) {
    match receiver {
        Receiver::Process => (TASK, SHARED_SIGNALS),
        Receiver::Thread(_) => (THREAD, OWN_SIGNALS),
    }
}

/// The image with so many nanoseconds left of the timers.
fn with_left(image: &[u8], of: &[Timer], left: u64) -> Option<Vec<u8>> {
    let in_timers = |timers: &[u8]| {
        let mut changed = Message::default();
        for (field, timer) in fields(timers)? {
            let timer = timer.message()?;
            let (name, [.., seconds, fraction], unit) = match field {
                POSIX_TIMERS => (Timer::Posix(number(timer, POSIX_ID)?), POSIX_TIMES, POSIX_UNIT),
                _ => (Timer::Interval(field), INTERVAL_TIMES, INTERVAL_UNIT),
            };
            match of.contains(&name) {
                true => changed.bytes(
                    field,
                    &with_number(
                        &with_number(timer, seconds, left / SECOND)?,
                        fraction,
                        left % SECOND / unit,
                    )?,
                ),
                false => changed.bytes(field, timer),
            }
        }
        Some(changed.0)
    };
    with_entries(image, |core| with(core, TASK, |task| with(task, TIMERS, in_timers)))
}

/// The image in which those timers expire `soon`, and not before.
pub fn put_off(image: &[u8], alarms: &[Alarm], soon: Duration) -> Option<Vec<u8>> {
    let timers: Vec<_> = alarms.iter().map(|alarm| alarm.timer).collect();
    with_left(image, &timers, nanoseconds(soon))
}

/// The signals of timers that may expire before it is `soon`.
pub fn signals_before(image: &[u8], soon: Duration) -> Option<Vec<Alarm>> {
    alarms_in(image, |left| (MOMENT + 1..nanoseconds(soon)).contains(&left))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The signals that a process gets as soon as it is restored from these images, of which its first thread's is `image`, with
/// who gets them: those that CRIU has noted, but for those for one thread, and those of timers with a moment to go.
pub fn signals_at_once(image: &[u8]) -> Option<Vec<(Receiver, libc::c_int)>> {
    let noted =
        signals_noted(image, Receiver::Process)?.into_iter().map(|signal| (Receiver::Process, signal));
    let soon = alarms_in(image, |left| left == MOMENT)?;
    Some(noted.chain(soon.iter().map(|alarm| (alarm.receiver, alarm.signal))).collect())
}

/// The signals, by number, that CRIU has noted for `receiver` in its image.
pub fn signals_noted(image: &[u8], receiver: Receiver) -> Option<Vec<libc::c_int>> {
    noted_in(image, receiver)?.iter().map(|info| word(info, 0)).collect()
}

/// The signals that CRIU has noted for `receiver`.
fn noted_in(image: &[u8], receiver: Receiver) -> Option<Vec<Vec<u8>>> {
    let (part, queue) = queue_of(receiver);
    // What has ended gets none.
    let Some(queue) = bytes(bytes(first_entry(image)?, part)?, queue) else { return Some(Vec::new()) };
    let signals = fields(queue)?.into_iter();
    signals.map(|(_, signal)| bytes(signal.message()?, SIGNAL).map(<[u8]>::to_vec)).collect()
}

/// The signals of the timers without a period that have such a time left, in nanoseconds.
fn alarms_in(image: &[u8], is_such: impl Fn(u64) -> bool) -> Option<Vec<Alarm>> {
    let task = bytes(first_entry(image)?, TASK)?;
    // A process that has ended has none.
    let Some(timers) = bytes(task, TIMERS) else { return Some(Vec::new()) };
    let mut found = Vec::new();
    for (field, timer) in fields(timers)? {
        let timer = timer.message()?;
        if let Some((_, signal)) = INTERVAL_TIMERS.into_iter().find(|(number, _)| *number == field)
            && left_of_one(timer, INTERVAL_TIMES, INTERVAL_UNIT)?.is_some_and(&is_such)
        {
            found.push(Alarm { timer: Timer::Interval(field), receiver: Receiver::Process, signal });
        }
        if field == POSIX_TIMERS && left_of_one(timer, POSIX_TIMES, POSIX_UNIT)?.is_some_and(&is_such) {
            found.extend(posix_alarm(timer)?);
        }
    }
    Some(found)
}

/// What is left of a timer, in nanoseconds; none if it has a period.
fn left_of_one(timer: &[u8], times: [u64; 4], unit: u64) -> Option<Option<u64>> {
    let [mut period, mut left] = [0_u64; 2];
    let units = [SECOND, unit, SECOND, unit];
    for (place, (field, unit)) in times.into_iter().zip(units).enumerate() {
        let part = number(timer, field)?.saturating_mul(unit);
        let whole = if place < 2 { &mut period } else { &mut left };
        *whole = whole.saturating_add(part);
    }
    Some((period == 0).then_some(left))
}

/// The signal of a timer of `timer_create`, if it sends any.
fn posix_alarm(timer: &[u8]) -> Option<Option<Alarm>> {
    let signal = i32::try_from(number(timer, POSIX_SIGNAL)?).ok()?;
    let receiver = match i32::try_from(number(timer, POSIX_NOTIFY)?).ok()? {
        libc::SIGEV_SIGNAL => Receiver::Process,
        libc::SIGEV_THREAD_ID => Receiver::Thread(number(timer, POSIX_THREAD)? as i32),
        _ => return Some(None),
    };
    Some(Some(Alarm { timer: Timer::Posix(number(timer, POSIX_ID)?), receiver, signal }))
}

/// One of the words of a `siginfo_t`, the first of which is the signal.
fn word(info: &[u8], at: usize) -> Option<i32> {
    info.get(4 * at..)?.first_chunk().map(|word| i32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::super::pending::Thread;
    use super::super::protobuf::MAGIC;
    use super::*;

    /// A timer of `setitimer`, or of `timer_create` with its number and signal.
    fn timer(posix: Option<(u64, libc::c_int, Option<u64>)>, left: u64) -> Vec<u8> {
        let mut timer = Message::default();
        let times = if posix.is_some() { POSIX_TIMES } else { INTERVAL_TIMES };
        if let Some((id, signal, _)) = posix {
            timer.number(POSIX_ID, id);
            timer.number(POSIX_SIGNAL, signal as u64);
        }
        for (field, value) in times.into_iter().zip([0, 0, 0, left]) {
            timer.number(field, value);
        }
        if let Some((.., thread)) = posix {
            let notify = if thread.is_some() { libc::SIGEV_THREAD_ID } else { libc::SIGEV_SIGNAL };
            timer.number(POSIX_NOTIFY, notify as u64);
            timer.number(POSIX_THREAD, thread.unwrap_or_default());
        }
        timer.0
    }

    fn image(timers: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let (mut all, mut task, mut core) = (Message::default(), Message::default(), Message::default());
        timers.iter().for_each(|(field, timer)| all.bytes(*field, timer));
        task.bytes(TIMERS, &all.0);
        task.bytes(SHARED_SIGNALS, &[]);
        core.bytes(TASK, &task.0);
        let mut image = vec![0; MAGIC];
        image.extend((core.0.len() as u32).to_le_bytes());
        image.extend(core.0);
        image
    }

    fn over_in(image: &[u8]) -> Option<Vec<Alarm>> {
        alarms_in(image, |left| left == 0)
    }

    fn signals_of(alarms: &[Alarm]) -> Vec<libc::c_int> {
        alarms.iter().map(|alarm| alarm.signal).collect()
    }

    #[test]
    fn timers_without_time_left_may_have_expired() {
        let of = |id, signal, left| (POSIX_TIMERS, timer(Some((id, signal, None)), left));
        let timers =
            [(1, timer(None, 0)), (2, timer(None, 7)), of(0, libc::SIGUSR1, 0), of(1, libc::SIGUSR2, 7)];
        assert_eq!(signals_of(&over_in(&image(&timers)).unwrap()), [libc::SIGALRM, libc::SIGUSR1]);
        assert_eq!(over_in(&image(&[])).unwrap(), []);
    }

    #[test]
    fn a_late_timer_has_a_moment_to_go() {
        let of = |id, left| (POSIX_TIMERS, timer(Some((id, libc::SIGUSR1, None)), left));
        let before = image(&[(1, timer(None, 0)), (2, timer(None, 0)), of(5, 0), of(6, 0)]);
        let after = image(&[(1, timer(None, 1)), (2, timer(None, 0)), of(5, 0), of(6, 1000)]);
        assert_eq!(with_left(&before, &[Timer::Posix(6), Timer::Interval(1)], MOMENT), Some(after));
    }

    #[test]
    fn an_early_timer_is_put_off() {
        let of = |left| (POSIX_TIMERS, timer(Some((5, libc::SIGUSR1, None)), left));
        let before = image(&[(1, timer(None, 999)), (2, timer(None, 2000)), of(0)]);
        let early = signals_before(&before, Duration::from_millis(1)).unwrap();
        assert_eq!(signals_of(&early), [libc::SIGALRM]);
        let late = put_off(&before, &early, Duration::from_millis(2500)).unwrap();
        let left = alarms_in(&late, |left| left == 2_500_000_000).unwrap();
        assert_eq!(left, early);
    }

    #[test]
    fn a_timer_of_a_thread_signals_that() {
        let image = image(&[(POSIX_TIMERS, timer(Some((5, 32, Some(17))), 0))]);
        assert_eq!(over_in(&image).unwrap()[0].receiver, Receiver::Thread(17));
    }

    #[test]
    fn a_timer_of_the_first_thread_gets_its_number() {
        let of = |thread| (POSIX_TIMERS, timer(Some((5, 32, Some(thread))), 0));
        let before = image(&[of(4711), of(u64::MAX), of(17), (1, timer(None, 0))]);
        let after = image(&[of(12), of(12), of(17), (1, timer(None, 0))]);
        let threads = [12, 17].map(|number| Thread { tid: 0, number, waiting: 0, blocked: 0 });
        let pending = Pending { shared: 0, threads: threads.into() };
        assert_eq!(with_first_thread(&before, &pending), Some(after.clone()));
        assert_eq!(with_first_thread(&after, &pending), Some(after));
    }

    #[test]
    fn an_interval_timer_explains_what_no_other_does() {
        let of = |id| (POSIX_TIMERS, timer(Some((id, libc::SIGALRM, None)), 0));
        let alarms_of = |timers: &[_]| over_in(&image(timers)).unwrap();
        let (alone, both) = (alarms_of(&[(1, timer(None, 0))]), alarms_of(&[(1, timer(None, 0)), of(0)]));
        assert_eq!(one_for_each_signal(alone.clone()), Some(alone));
        assert_eq!(one_for_each_signal(both.clone()), Some(vec![both[1]]));
        assert_eq!(one_for_each_signal(alarms_of(&[of(0), of(1)])), None);
    }

    /// Which of the timers 0 to 2 are late, of which `noted` and `queued` have signals there.
    fn late(signal: libc::c_int, noted: &[u64], queued: &[u64]) -> Option<Vec<u64>> {
        late_for(1, signal, noted, queued)
    }

    fn late_for(threads: usize, signal: libc::c_int, noted: &[u64], queued: &[u64]) -> Option<Vec<u64>> {
        let of = |id: &u64| {
            let mut info = [0; size_of::<Info>()];
            let words = [signal, 0, libc::SI_TIMER, 0, *id as i32].map(i32::to_ne_bytes);
            info.iter_mut().zip(words.as_flattened()).for_each(|(to, byte)| *to = *byte);
            info
        };
        let alarm = |id| Alarm { timer: Timer::Posix(id), receiver: Receiver::Process, signal };
        let noted: Vec<_> = noted.iter().map(|id| of(id).to_vec()).collect();
        let queued: Vec<_> = queued.iter().map(of).collect();
        let (receiver, core) = (Receiver::Process, PathBuf::new());
        let queue = Queue { receiver, core, blocked: vec![0; threads], tid: 0 };
        let late = queue.late([0, 1, 2].map(alarm).into(), &noted, &queued)?;
        Some(late.into_iter().map(|timer| if let Timer::Posix(id) = timer { id } else { u64::MAX }).collect())
    }

    #[test]
    fn what_is_queued_and_not_noted_is_late() {
        let signal = libc::SIGRTMIN();
        assert_eq!(late(signal, &[0], &[0, 2]), Some(vec![2]));
        assert_eq!(late(signal, &[0, 1], &[0, 1]), Some(vec![]));
        assert_eq!(late(signal, &[], &[]), Some(vec![]));
    }

    #[test]
    fn what_was_taken_on_the_way_is_what_is_left_over() {
        let signal = libc::SIGUSR1;
        assert_eq!(late(signal, &[], &[0, 2]), Some(vec![0, 2, 1]));
        assert_eq!(late(signal, &[0], &[2]), Some(vec![2]));
        assert_eq!(late(signal, &[], &[2]), None);
    }

    #[test]
    fn each_thread_may_have_taken_one() {
        let signal = libc::SIGUSR1;
        assert_eq!(late_for(2, signal, &[0], &[2]), None);
        assert_eq!(late_for(2, signal, &[0, 1], &[2]), Some(vec![1, 2]));
        assert_eq!(late_for(2, libc::SIGRTMIN(), &[0], &[2]), Some(vec![2]));
    }

    #[test]
    fn of_one_signal_that_is_not_real_time_the_kernel_takes_one_back() {
        assert_eq!(late(libc::SIGUSR1, &[1, 0], &[0]), Some(vec![0]));
    }

    #[test]
    fn a_damaged_image_is_refused() {
        let whole = image(&[(1, timer(None, 0))]);
        assert!((MAGIC..whole.len()).all(|length| over_in(&whole[..length]).is_none()));
    }
}
