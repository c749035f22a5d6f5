//! Reads and edits timers of `setitimer` and `timer_create`, and pending signals, in image files.

use std::time::Duration;

use crate::criu::protobuf::{Message, bytes, fields, first_entry, number, with, with_entries, with_number};

/// Fields of `core_entry`.
pub const TASK: u64 = 3;
const THREAD: u64 = 5;
/// Fields of `task_core_entry`.
pub const TIMERS: u64 = 7;
pub const SHARED_SIGNALS: u64 = 10;
/// Field of `thread_core_entry`.
const OWN_SIGNALS: u64 = 9;
/// Field of `signal_queue_entry`, and of its entries.
const SIGNAL: u64 = 1;
/// Fields of `task_timers_entry`: timers of `setitimer` with their signals, and timers of `timer_create`.
const INTERVAL_TIMERS: [(u64, libc::c_int); 3] =
    [(1, libc::SIGALRM), (2, libc::SIGVTALRM), (3, libc::SIGPROF)];
pub const POSIX_TIMERS: u64 = 4;
/// Fields of `itimer_entry`: period and time left, each in seconds and microseconds.
pub const INTERVAL_TIMES: [u64; 4] = [1, 2, 3, 4];
/// Fields of `posix_timer_entry`: the same in seconds and nanoseconds.
pub const POSIX_TIMES: [u64; 4] = [7, 8, 9, 10];
/// The units of the fractions of a second in their times, in nanoseconds.
const INTERVAL_UNIT: u64 = 1000;
const POSIX_UNIT: u64 = 1;
const SECOND: u64 = 1_000_000_000;
/// The time left that a late timer gets, in nanoseconds.
pub const MOMENT: u64 = 1000;
pub const POSIX_ID: u64 = 1;
pub const POSIX_SIGNAL: u64 = 3;
pub const POSIX_NOTIFY: u64 = 4;
pub const POSIX_THREAD: u64 = 11;

/// The receiver of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Any thread of the process.
    Process,
    /// A thread, by its TID in the instance.
    Thread(i32),
}

/// A timer of a process.
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
    /// The timer.
    pub timer: Timer,
    /// The receiver.
    pub receiver: Receiver,
    /// The signal's number.
    pub signal: libc::c_int,
}

impl Alarm {
    /// Whether the kernel has made this signal for the timer.
    pub fn is(&self, info: &[u8]) -> bool {
        let is_its_timers = match self.timer {
            Timer::Interval(_) => word(info, 2) == Some(libc::SI_KERNEL),
            Timer::Posix(id) => word(info, 2) == Some(libc::SI_TIMER) && word(info, 4) == Some(id as i32),
        };
        is_its_timers && word(info, 0) == Some(self.signal)
    }

    /// Whether the kernel sends the signal again after the restore of the `noted` ones.
    pub fn comes_back(&self, noted: &[Vec<u8>]) -> bool {
        /// The kernel's first real-time signal; the C library reserves some.
        const FIRST_REAL_TIME: libc::c_int = 32;
        let mut of_its_kind = noted.iter().filter(|info| word(info, 0) == Some(self.signal));
        match self.signal {
            FIRST_REAL_TIME.. => of_its_kind.any(|info| self.is(info)),
            _ => of_its_kind.next().is_some_and(|info| self.is(info)),
        }
    }
}

/// The fields that lead to the queue of signals in an image.
fn queue_of(receiver: Receiver) -> (u64, u64) {
    match receiver {
        Receiver::Process => (TASK, SHARED_SIGNALS),
        Receiver::Thread(_) => (THREAD, OWN_SIGNALS),
    }
}

/// The image with `left` nanoseconds left of the timers.
pub fn with_left(image: &[u8], of: &[Timer], left: u64) -> Option<Vec<u8>> {
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

/// The image in which the timers expire at `soon`, and not before.
pub fn put_off(image: &[u8], alarms: &[Alarm], soon: Duration) -> Option<Vec<u8>> {
    let timers: Vec<_> = alarms.iter().map(|alarm| alarm.timer).collect();
    with_left(image, &timers, nanoseconds(soon))
}

/// The signals of timers that may expire before `soon`.
pub fn signals_before(image: &[u8], soon: Duration) -> Option<Vec<Alarm>> {
    alarms_in(image, |left| (MOMENT + 1..nanoseconds(soon)).contains(&left))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The signals that a process gets as soon as it is restored, with their receivers: signals that CRIU has recorded, except those
/// for a single thread, and signals of timers with a moment left. `image` is the image of its first thread.
pub fn signals_at_once(image: &[u8]) -> Option<Vec<(Receiver, libc::c_int)>> {
    let noted =
        signals_noted(image, Receiver::Process)?.into_iter().map(|signal| (Receiver::Process, signal));
    let soon = alarms_in(image, |left| left == MOMENT)?;
    Some(noted.chain(soon.iter().map(|alarm| (alarm.receiver, alarm.signal))).collect())
}

/// The numbers of the signals that CRIU has recorded for `receiver` in this image.
pub fn signals_noted(image: &[u8], receiver: Receiver) -> Option<Vec<libc::c_int>> {
    noted_in(image, receiver)?.iter().map(|info| word(info, 0)).collect()
}

/// The signals that CRIU has recorded for `receiver`.
pub fn noted_in(image: &[u8], receiver: Receiver) -> Option<Vec<Vec<u8>>> {
    let (part, queue) = queue_of(receiver);
    // A process or thread that has ended gets no signals.
    let Some(queue) = bytes(bytes(first_entry(image)?, part)?, queue) else { return Some(Vec::new()) };
    let signals = fields(queue)?.into_iter();
    signals.map(|(_, signal)| bytes(signal.message()?, SIGNAL).map(<[u8]>::to_vec)).collect()
}

/// The signals of one-shot timers whose time left, in nanoseconds, satisfies `is_such`.
pub fn alarms_in(image: &[u8], is_such: impl Fn(u64) -> bool) -> Option<Vec<Alarm>> {
    let task = bytes(first_entry(image)?, TASK)?;
    // A process that has ended has no timers.
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

/// The time left of a one-shot timer, in nanoseconds; none for a periodic timer.
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

/// The signal of a timer of `timer_create`, if it sends one.
fn posix_alarm(timer: &[u8]) -> Option<Option<Alarm>> {
    let signal = i32::try_from(number(timer, POSIX_SIGNAL)?).ok()?;
    let receiver = match i32::try_from(number(timer, POSIX_NOTIFY)?).ok()? {
        libc::SIGEV_SIGNAL => Receiver::Process,
        libc::SIGEV_THREAD_ID => Receiver::Thread(number(timer, POSIX_THREAD)? as i32),
        _ => return Some(None),
    };
    Some(Some(Alarm { timer: Timer::Posix(number(timer, POSIX_ID)?), receiver, signal }))
}

/// A word of a `siginfo_t`; the first word is the signal.
pub fn word(info: &[u8], at: usize) -> Option<i32> {
    info.get(4 * at..)?.first_chunk().map(|word| i32::from_ne_bytes(*word))
}
