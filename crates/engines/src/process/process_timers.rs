//! Timers of `setitimer` and `timer_create` as CRIU would not restore them.
//!
//! CRIU notes first which signals wait for a process, then its memory, and its timers last. One that expires once, and does
//! so in between, is in neither note: its signal came too late for the first, and no time is left of it for the second.
//! A program that waits for it (`alarm(2)`, say) would wait for ever. So the images get each signal that waits for a
//! stopped process, that CRIU has not noted, and that a timer without time left explains. Periodic timers go on by
//! themselves.
//!
//! Of a timer that signals its process' first thread CRIU notes some number, and could not make it again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::protobuf::{Field, MAGIC, Message, bytes, fields, not_understood, number, with, with_entries};
use super::task;
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
const POSIX_ID: u64 = 1;
const POSIX_SIGNAL: u64 = 3;
const POSIX_NOTIFY: u64 = 4;
const POSIX_VALUE: u64 = 5;
const POSIX_THREAD: u64 = 11;

/// For whom a signal waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Process,
    /// A thread, by its number in the instance.
    Thread(i32),
}

/// The signal of a timer of which no time is left.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alarm {
    receiver: Receiver,
    signal: libc::c_int,
    of_interval_timer: bool,
    /// As the kernel hands it over, `siginfo_t`.
    info: Vec<u8>,
}

/// Which signals wait, as the kernel shows them: bit 0 stands for signal 1.
type Set = u64;

/// Makes the timers in a stopped tree's images fit for CRIU in this. Returns a process of which it is not known which of its timers
/// expired; it has to be dumped again.
///
/// # Errors
/// If an image cannot be read or written.
pub fn carry(images: &Path, tree: &[i32]) -> io::Result<Option<i32>> {
    for &pid in tree {
        let waiting = Waiting::for_process(pid)?;
        let leader = core_of(images, waiting.first()?);
        let image = fs::read(&leader)?;
        let named = with_first_thread(&image, &waiting).ok_or_else(|| not_understood(&leader))?;
        if named != image {
            fs::write(&leader, &named)?;
        }
        if waiting.is_empty() {
            continue;
        }
        let alarms = alarms_in(&named).ok_or_else(|| not_understood(&leader))?;
        let for_threads = waiting.threads.iter().map(|(number, set)| (Receiver::Thread(*number), *set));
        for (receiver, set) in for_threads.chain([(Receiver::Process, waiting.shared)]) {
            let core = match receiver {
                Receiver::Process => leader.clone(),
                Receiver::Thread(thread) => core_of(images, thread),
            };
            let ours: Vec<&Alarm> = alarms.iter().filter(|alarm| alarm.receiver == receiver).collect();
            if !ours.is_empty() && add(&core, receiver, set, &ours)? == Added::Unclear {
                return Ok(Some(pid));
            }
        }
    }
    Ok(None)
}

/// What to say of such a process.
pub fn blocker(pid: i32) -> Blocker {
    let what = format!("timers of process {pid} expire, of which several send the same signal");
    Blocker::new(what, "move it when fewer of them expire")
}

fn core_of(images: &Path, number: i32) -> PathBuf {
    images.join(format!("core-{number}.img"))
}

/// The image with the number of the process' first thread in those timers that signal it.
fn with_first_thread(image: &[u8], waiting: &Waiting) -> Option<Vec<u8>> {
    let first = waiting.first().ok()?;
    let is_thread = |value: u64| waiting.threads.iter().any(|(number, _)| *number == value as i32);
    let named = |timer: &[u8]| {
        let mut named = Message::default();
        for (field, value) in fields(timer)? {
            match value {
                Field::Number(thread) if field == POSIX_THREAD && !is_thread(thread) => {
                    named.number(field, first as u64);
                }
                Field::Number(value) => named.number(field, value),
                Field::Bytes(value) => named.bytes(field, value),
            }
        }
        Some(named.0)
    };
    let in_task = |task: &[u8]| with(task, TIMERS, |timers| with(timers, POSIX_TIMERS, named));
    with_entries(image, |core| with(core, TASK, in_task))
}

/// The signals that wait in a process.
struct Waiting {
    /// For any of its threads.
    shared: Set,
    /// For each of its threads, by their numbers in the instance; the first thread comes first.
    threads: Vec<(i32, Set)>,
}

impl Waiting {
    fn for_process(pid: i32) -> io::Result<Self> {
        let mut waiting = Self { shared: 0, threads: Vec::new() };
        for tid in task::numbers_in(&format!("/proc/{pid}/task"))? {
            let status = task::read(&format!("/proc/{pid}/task/{tid}/status"))?;
            let (number, own) = (task::innermost_number(&status), set_in(&status, "SigPnd:"));
            let shared = set_in(&status, "ShdPnd:");
            let all = number.zip(own).zip(shared).ok_or(io::ErrorKind::InvalidData)?;
            waiting.threads.push(all.0);
            waiting.shared = all.1;
        }
        Ok(waiting)
    }

    fn first(&self) -> io::Result<i32> {
        self.threads.first().map(|(number, _)| *number).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn is_empty(&self) -> bool {
        self.shared == 0 && self.threads.iter().all(|(_, set)| *set == 0)
    }
}

fn set_in(status: &str, name: &str) -> Option<Set> {
    Set::from_str_radix(status.lines().find_map(|line| line.strip_prefix(name))?.trim(), 16).ok()
}

/// What came of [`add`].
#[derive(Debug, PartialEq, Eq)]
enum Added {
    /// Nothing is missing any more.
    All,
    /// A signal is missing that several timers explain.
    Unclear,
}

/// Adds to an image what of `alarms` is in the set of those that wait.
fn add(core: &Path, receiver: Receiver, set: Set, alarms: &[&Alarm]) -> io::Result<Added> {
    let image = fs::read(core)?;
    let noted = noted_in(&image, receiver).ok_or_else(|| not_understood(core))?;
    let is_missing = |signal: libc::c_int| set >> (signal - 1) & 1 == 1 && !noted.contains(&signal);
    let missing: Vec<&Alarm> = alarms.iter().copied().filter(|alarm| is_missing(alarm.signal)).collect();
    if missing.is_empty() {
        return Ok(Added::All);
    }
    let Some(missing) = one_for_each_signal(missing) else { return Ok(Added::Unclear) };
    fs::write(core, with_signals(&image, receiver, &missing).ok_or_else(|| not_understood(core))?)?;
    Ok(Added::All)
}

/// Every process has interval timers, which most never start: one explains a signal only if no other timer does.
fn one_for_each_signal(mut alarms: Vec<&Alarm>) -> Option<Vec<&Alarm>> {
    let by_others: Vec<_> =
        alarms.iter().filter(|alarm| !alarm.of_interval_timer).map(|alarm| alarm.signal).collect();
    alarms.retain(|alarm| !(alarm.of_interval_timer && by_others.contains(&alarm.signal)));
    let is_alone = |alarm: &&Alarm| alarms.iter().filter(|other| other.signal == alarm.signal).count() == 1;
    alarms.iter().all(is_alone).then_some(alarms)
}

/// The place of the queue of signals in an image.
fn queue_of(receiver: Receiver) -> (u64, u64) {
    match receiver {
        Receiver::Process => (TASK, SHARED_SIGNALS),
        Receiver::Thread(_) => (THREAD, OWN_SIGNALS),
    }
}

fn with_signals(image: &[u8], receiver: Receiver, alarms: &[&Alarm]) -> Option<Vec<u8>> {
    let (part, queue) = queue_of(receiver);
    let added = |signals: &[u8]| {
        let mut all = Message(signals.to_vec());
        for alarm in alarms {
            let mut signal = Message::default();
            signal.bytes(SIGNAL, &alarm.info);
            all.bytes(SIGNAL, &signal.0);
        }
        Some(all.0)
    };
    let changed = with_entries(image, |core| with(core, part, |part| with(part, queue, added)))?;
    // CRIU writes queues that are empty, too.
    (changed != image).then_some(changed)
}

/// The signals that CRIU has noted for `receiver`.
fn noted_in(image: &[u8], receiver: Receiver) -> Option<Vec<libc::c_int>> {
    let (part, queue) = queue_of(receiver);
    let queue = bytes(bytes(core_entry(image)?, part)?, queue)?;
    let signals = fields(queue)?.into_iter();
    signals.map(|(_, signal)| word(bytes(message(signal)?, SIGNAL)?, 0)).collect()
}

/// The signals of the timers that have no time left.
fn alarms_in(image: &[u8]) -> Option<Vec<Alarm>> {
    let task = bytes(core_entry(image)?, TASK)?;
    // A process that has ended has none.
    let Some(timers) = bytes(task, TIMERS) else { return Some(Vec::new()) };
    let mut found = Vec::new();
    for (field, timer) in fields(timers)? {
        let timer = message(timer)?;
        if let Some((_, signal)) = INTERVAL_TIMERS.into_iter().find(|(number, _)| *number == field)
            && is_over(timer, INTERVAL_TIMES)?
        {
            let (receiver, info) = (Receiver::Process, info(&[signal, 0, libc::SI_KERNEL]));
            found.push(Alarm { receiver, signal, of_interval_timer: true, info });
        }
        if field == POSIX_TIMERS && is_over(timer, POSIX_TIMES)? {
            found.extend(posix_alarm(timer)?);
        }
    }
    Some(found)
}

/// Whether a timer has neither a period nor any time left.
fn is_over(timer: &[u8], times: [u64; 4]) -> Option<bool> {
    times.into_iter().try_fold(true, |over, field| Some(over && number(timer, field)? == 0))
}

/// The signal of a timer of `timer_create`, if it sends any.
fn posix_alarm(timer: &[u8]) -> Option<Option<Alarm>> {
    let signal = i32::try_from(number(timer, POSIX_SIGNAL)?).ok()?;
    let receiver = match i32::try_from(number(timer, POSIX_NOTIFY)?).ok()? {
        libc::SIGEV_SIGNAL => Receiver::Process,
        libc::SIGEV_THREAD_ID => Receiver::Thread(number(timer, POSIX_THREAD)? as i32),
        _ => return Some(None),
    };
    let value = number(timer, POSIX_VALUE)?;
    // The timer's number, its overrun, and the program's value.
    let words = [number(timer, POSIX_ID)? as i32, 0, value as i32, (value >> 32) as i32];
    let info = info(&[&[signal, 0, libc::SI_TIMER, 0], &words[..]].concat());
    let alarm = Alarm { receiver, signal, of_interval_timer: false, info };
    Some((1..=64).contains(&signal).then_some(alarm))
}

/// A `siginfo_t` that begins with these words.
fn info(words: &[i32]) -> Vec<u8> {
    let mut info: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    info.resize(size_of::<libc::siginfo_t>(), 0);
    info
}

/// One of the words of a `siginfo_t`, the first of which is the signal.
fn word(info: &[u8], at: usize) -> Option<i32> {
    info.get(4 * at..)?.first_chunk().map(|word| i32::from_ne_bytes(*word))
}

/// The only entry of a process' or a thread's image.
fn core_entry(image: &[u8]) -> Option<&[u8]> {
    let (length, entry) = image.get(MAGIC..)?.split_first_chunk()?;
    entry.get(..u32::from_le_bytes(*length) as usize)
}

fn message<'a>(field: Field<'a>) -> Option<&'a [u8]> {
    match field {
        Field::Bytes(value) => Some(value),
        Field::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timer of `setitimer`, or of `timer_create` with its number and signal.
    fn timer(posix: Option<(u64, libc::c_int, Option<u64>)>, left: u64) -> Vec<u8> {
        let mut timer = Message::default();
        let times = if posix.is_some() { POSIX_TIMES } else { INTERVAL_TIMES };
        if let Some((id, signal, _)) = posix {
            timer.number(POSIX_ID, id);
            timer.number(POSIX_SIGNAL, signal as u64);
            timer.number(POSIX_VALUE, 0x0102_0304_0506_0708);
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

    fn signals_of(alarms: &[Alarm]) -> Vec<libc::c_int> {
        alarms.iter().map(|alarm| alarm.signal).collect()
    }

    #[test]
    fn timers_without_time_left_may_have_expired() {
        let of = |id, signal, left| (POSIX_TIMERS, timer(Some((id, signal, None)), left));
        let timers =
            [(1, timer(None, 0)), (2, timer(None, 7)), of(0, libc::SIGUSR1, 0), of(1, libc::SIGUSR2, 7)];
        assert_eq!(signals_of(&alarms_in(&image(&timers)).unwrap()), [libc::SIGALRM, libc::SIGUSR1]);
        assert_eq!(alarms_in(&image(&[])).unwrap(), []);
    }

    #[test]
    fn a_signal_is_noted_as_the_kernel_would_say_it() {
        let image = image(&[(POSIX_TIMERS, timer(Some((5, libc::SIGUSR1, None)), 0))]);
        let alarms = alarms_in(&image).unwrap();
        let changed = with_signals(&image, Receiver::Process, &alarms.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(noted_in(&image, Receiver::Process).unwrap(), [0; 0]);
        assert_eq!(noted_in(&changed, Receiver::Process).unwrap(), [libc::SIGUSR1]);
        let info = &alarms[0].info;
        assert_eq!(info.len(), 128);
        let words: Vec<i32> = (0..8).map(|at| word(info, at).unwrap()).collect();
        assert_eq!(words, [libc::SIGUSR1, 0, libc::SI_TIMER, 0, 5, 0, 0x0506_0708, 0x0102_0304]);
    }

    #[test]
    fn a_timer_of_a_thread_signals_that() {
        let image = image(&[(POSIX_TIMERS, timer(Some((5, 32, Some(17))), 0))]);
        assert_eq!(alarms_in(&image).unwrap()[0].receiver, Receiver::Thread(17));
    }

    #[test]
    fn a_timer_of_the_first_thread_gets_its_number() {
        let of = |thread| (POSIX_TIMERS, timer(Some((5, 32, Some(thread))), 0));
        let before = image(&[of(4711), of(u64::MAX), of(17), (1, timer(None, 0))]);
        let after = image(&[of(12), of(12), of(17), (1, timer(None, 0))]);
        let waiting = Waiting { shared: 0, threads: vec![(12, 0), (17, 0)] };
        assert_eq!(with_first_thread(&before, &waiting), Some(after.clone()));
        assert_eq!(with_first_thread(&after, &waiting), Some(after));
    }

    #[test]
    fn an_interval_timer_explains_what_no_other_does() {
        let of = |id| (POSIX_TIMERS, timer(Some((id, libc::SIGALRM, None)), 0));
        let alarms_of = |timers: &[_]| alarms_in(&image(timers)).unwrap();
        let kept = |alarms: Vec<Alarm>| {
            one_for_each_signal(alarms.iter().collect())
                .map(|kept| kept.into_iter().cloned().collect::<Vec<_>>())
        };
        let (alone, both) = (alarms_of(&[(1, timer(None, 0))]), alarms_of(&[(1, timer(None, 0)), of(0)]));
        assert_eq!(kept(alone.clone()), Some(alone));
        assert_eq!(kept(both.clone()), Some(vec![both[1].clone()]));
        assert_eq!(kept(alarms_of(&[of(0), of(1)])), None);
    }

    #[test]
    fn the_kernels_sets_are_read() {
        let status = "SigQ:\t0/95\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000002200\n";
        assert_eq!(set_in(status, "SigPnd:"), Some(0));
        assert_eq!(set_in(status, "ShdPnd:"), Some(1 << (libc::SIGALRM - 1) | 1 << (libc::SIGUSR1 - 1)));
    }

    #[test]
    fn a_damaged_image_is_refused() {
        let whole = image(&[(1, timer(None, 0))]);
        assert!((MAGIC..whole.len()).all(|length| alarms_in(&whole[..length]).is_none()));
    }
}
