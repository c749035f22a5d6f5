//! Corrects interrupted system calls that CRIU would restart or end wrongly.
//!
//! CRIU lets most calls restart, as the kernel does for a thread that was stopped for a while. It differs in two ways:
//!
//! * A call ends with `EINTR` if only the kernel knows its remaining time (`nanosleep`), or if it ends so whenever a thread is
//!   stopped (`epoll_wait`). The fixup lets it restart if the remaining time is known from elsewhere, or is short.
//! * The kernel handles a pending signal before the call restarts, and the call then waits on, for ever if need be (`alarm`,
//!   `pause`). Without the dump, the kernel would have ended the call with `EINTR`; the fixup ends it so. A timer that expires
//!   while CRIU still restores would have the same effect: the fixup postpones it a little.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::criu::fixups::alarms::{Alarm, Receiver, put_off, signals_at_once, signals_before, signals_noted};
use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::criu::images::core_of;
use crate::criu::protobuf::{
    bytes, fields, first_entry, not_understood, number, with, with_entries, with_number,
};
use crate::instance::Blocker;
use crate::linux::call::{Call, SYSCALL};
use crate::linux::pending;
use crate::linux::task;

/// Fields of `core_entry`.
const THREAD_INFO: u64 = 2;
const TASK: u64 = 3;
const THREAD: u64 = 5;
/// Field of `thread_info_x86`.
const REGISTERS: u64 = 2;
/// Fields of `user_x86_regs_entry`: a call's result, number, next instruction and arguments.
const RESULT: u64 = 11;
const NUMBER: u64 = 16;
const INSTRUCTION: u64 = 17;
const ARGUMENTS: [u64; 5] = [15, 14, 13, 8, 10];
/// Field of `thread_core_entry`.
const BLOCKED: u64 = 6;
/// Fields of `task_core_entry`, and of [`THREAD_INFO`].
const BLOCKED_BY_FIRST: u64 = 5;
const ACTIONS: u64 = 15;
const HANDLER: u64 = 1;
const FLAGS: u64 = 2;

/// How long the threads may take to be back in their calls after CRIU has started timers: some hundredths of a second, and more if
/// the dump took long, as on a busy host.
fn until_back(dump: Duration) -> Duration {
    (5 * dump).clamp(Duration::from_millis(250), Duration::from_secs(2))
}

/// The fixup of interrupted system calls.
pub struct Interrupted;

impl Fixup for Interrupted {
    fn name(&self) -> &'static str {
        "system calls"
    }

    fn lacks(&self) -> &'static str {
        "CRIU restarts calls that the kernel would have ended with EINTR, and ends calls that could continue"
    }

    fn finish(&mut self, stopped: &StoppedTree<'_>, begin: Instant) -> io::Result<Option<Blocker>> {
        mend(stopped.images, stopped.tree, begin.elapsed()).map(|()| None)
    }
}

/// Corrects the interrupted calls of a stopped tree in its images. CRIU has left the tree; the dump took `dump`.
///
/// # Errors
/// If an image cannot be read or written, or a process cannot be inspected.
fn mend(images: &Path, tree: &[i32], dump: Duration) -> io::Result<()> {
    let soon = until_back(dump);
    for &pid in tree {
        let leader = core_of(images, task::number_inside(pid)?);
        let process = Process::of(&fs::read(&leader)?, soon).ok_or_else(|| not_understood(&leader))?;
        let memory = match File::open(format!("/proc/{pid}/mem")) {
            // A signal has ended it before it stopped, and ends it at the destination too.
            Err(error) if task::has_ended(&error) => continue,
            memory => memory?,
        };
        let mut early = Vec::new();
        task::for_each_thread(&[pid], |_, number| {
            let core = core_of(images, number);
            let image = fs::read(&core)?;
            let thread = Thread::of(number, &image).ok_or_else(|| not_understood(&core))?;
            let Some(call) = thread.call.filter(|call| is_made(call, &memory)) else { return Ok(()) };
            let goes_on =
                process.goes_on(&thread, call, |address, bytes| memory.read_exact_at(bytes, address));
            early.extend(process.comes_early(&thread, goes_on));
            if goes_on == call {
                return Ok(());
            }
            fs::write(&core, with_call(&image, &goes_on).ok_or_else(|| not_understood(&core))?)
        })?;
        if !early.is_empty() {
            let image = fs::read(&leader)?;
            fs::write(&leader, put_off(&image, &early, soon).ok_or_else(|| not_understood(&leader))?)?;
        }
    }
    Ok(())
}

/// A process's signal handling.
struct Process {
    /// For each signal from the first on: if it has a handler, whether calls restart after it.
    restarts: Vec<Option<bool>>,
    /// The signals that its threads get as soon as they are restored, except those that CRIU has recorded for a single thread.
    at_once: Vec<(Receiver, libc::c_int)>,
    /// The signals that they may get before they are back in their calls.
    soon: Vec<Alarm>,
}

impl Process {
    /// The process whose first thread has this image.
    fn of(image: &[u8], soon: Duration) -> Option<Self> {
        let task = bytes(first_entry(image)?, TASK)?;
        let actions = fields(task)?.into_iter().filter(|(field, _)| *field == ACTIONS);
        let mut restarts =
            actions.map(|(_, action)| restarts_after(action.message()?)).collect::<Option<Vec<_>>>()?;
        // CRIU omits the signals that cannot have handlers.
        for signal in [libc::SIGKILL, libc::SIGSTOP] {
            let place = (signal as usize - 1).min(restarts.len());
            restarts.insert(place, None);
        }
        Some(Self { restarts, at_once: signals_at_once(image)?, soon: signals_before(image, soon)? })
    }

    /// The corrected call of a thread, if it needs a correction. `memory` is the process's memory.
    fn goes_on(
        &self,
        thread: &Thread,
        call: Call,
        memory: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> Call {
        let to_it =
            self.at_once.iter().filter(|(receiver, _)| thread.is(*receiver)).map(|(_, signal)| *signal);
        let handled =
            to_it.chain(thread.noted.iter().copied()).filter_map(|signal| self.restarts(thread, signal));
        let changed = match handled.reduce(|all, one| all && one) {
            None => call.begun_again(memory),
            Some(restarts) => call.ended(restarts),
        };
        changed.unwrap_or(call)
    }

    /// The signals that would end a restarting call, and may come before it has restarted.
    fn comes_early<'a>(&'a self, thread: &'a Thread, call: Call) -> impl Iterator<Item = Alarm> + 'a {
        let to_it = self.soon.iter().filter(|alarm| thread.is(alarm.receiver));
        let ends = move |restarts| call.ended(restarts).is_some();
        to_it.filter(move |alarm| self.restarts(thread, alarm.signal).is_some_and(ends)).copied()
    }

    /// If a thread handles a signal, whether its call restarts afterwards.
    fn restarts(&self, thread: &Thread, signal: libc::c_int) -> Option<bool> {
        if pending::has(thread.blocked, signal) {
            return None;
        }
        *self.restarts.get(usize::try_from(signal).ok()?.checked_sub(1)?)?
    }
}

/// A thread according to its image.
struct Thread {
    number: i32,
    /// The call that it was stopped in; none if it was stopped elsewhere, or has ended.
    call: Option<Call>,
    blocked: pending::Set,
    /// The signals that CRIU has recorded for it alone.
    noted: Vec<libc::c_int>,
}

impl Thread {
    fn of(number: i32, image: &[u8]) -> Option<Self> {
        let call = call_in(image)?;
        let blocked = blocked_in(first_entry(image)?)?;
        Some(Self { number, call, blocked, noted: signals_noted(image, Receiver::Thread(number))? })
    }

    fn is(&self, receiver: Receiver) -> bool {
        receiver == Receiver::Process || receiver == Receiver::Thread(self.number)
    }
}

/// The signals that a thread blocks. CRIU records those of a first thread with its process.
fn blocked_in(core: &[u8]) -> Option<pending::Set> {
    let of_process = || number(bytes(core, TASK)?, BLOCKED_BY_FIRST);
    number(bytes(core, THREAD)?, BLOCKED).or_else(of_process)
}

/// If a signal has a handler, whether calls restart after it.
fn restarts_after(action: &[u8]) -> Option<Option<bool>> {
    let handler = number(action, HANDLER)? as libc::sighandler_t;
    let restarts = number(action, FLAGS)? & libc::SA_RESTART as u64 != 0;
    Some((![libc::SIG_DFL, libc::SIG_IGN].contains(&handler)).then_some(restarts))
}

/// Whether the thread is in this call. Otherwise it is behind another call, whose result equals the number of this one.
fn is_made(call: &Call, memory: &File) -> bool {
    let mut instruction = [0; SYSCALL.len()];
    memory.read_exact_at(&mut instruction, call.made_at()).is_ok() && instruction == SYSCALL
}

/// The call that the thread with this image was stopped in; none if it was stopped elsewhere, or has ended.
fn call_in(image: &[u8]) -> Option<Option<Call>> {
    let Some(info) = bytes(first_entry(image)?, THREAD_INFO) else { return Some(None) };
    let registers = bytes(info, REGISTERS)?;
    let mut arguments = [0; ARGUMENTS.len()];
    for (argument, field) in arguments.iter_mut().zip(ARGUMENTS) {
        *argument = number(registers, field)?;
    }
    let [called, result] = [NUMBER, RESULT].map(|field| Some(number(registers, field)?.cast_signed()));
    let call =
        Call { number: called?, result: result?, instruction: number(registers, INSTRUCTION)?, arguments };
    Some((call.number >= 0).then_some(call))
}

/// The image with this call.
fn with_call(image: &[u8], call: &Call) -> Option<Vec<u8>> {
    let changes = [(RESULT, call.result.cast_unsigned()), (INSTRUCTION, call.instruction)];
    let changes: Vec<_> = changes.into_iter().chain(ARGUMENTS.into_iter().zip(call.arguments)).collect();
    let changed = |registers: &[u8]| {
        changes
            .iter()
            .try_fold(registers.to_vec(), |registers, (field, to)| with_number(&registers, *field, *to))
    };
    with_entries(image, |core| with(core, THREAD_INFO, |info| with(info, REGISTERS, changed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criu::fixups::alarms::Timer;
    use crate::criu::protobuf::{MAGIC, Message};

    /// A process with handlers of the first signals: `handlers` says whether calls restart after each.
    fn process(handlers: &[bool], at_once: &[(Receiver, libc::c_int)]) -> Process {
        let restarts = handlers.iter().map(|restarts| Some(*restarts)).collect();
        Process { restarts, at_once: at_once.to_vec(), soon: Vec::new() }
    }

    fn thread(blocked: pending::Set, noted: &[libc::c_int]) -> Thread {
        Thread { number: 7, call: None, blocked, noted: noted.to_vec() }
    }

    fn ends(process: &Process, thread: &Thread, call: libc::c_long) -> bool {
        let call = Call { number: call, result: call, instruction: 0x1000, arguments: [0; 5] };
        process.goes_on(thread, call, |_, _| Ok(())) != call
    }

    #[test]
    fn a_signal_that_is_handled_at_once_ends_a_call() {
        let process = process(&[true, false], &[(Receiver::Process, 1)]);
        assert!(ends(&process, &thread(0, &[]), libc::SYS_pause));
        assert!(!ends(&process, &thread(0, &[]), libc::SYS_read));
        assert!(ends(&process, &thread(0, &[2]), libc::SYS_read));
    }

    #[test]
    fn a_signal_ends_no_call_without_a_handler_or_for_another_thread() {
        let calls = |process: &Process, blocked| ends(process, &thread(blocked, &[]), libc::SYS_pause);
        let waits = process(&[true], &[(Receiver::Process, 1)]);
        assert!(calls(&waits, 0) && !calls(&waits, 1));
        let of = |number| process(&[true], &[(Receiver::Thread(number), 1)]);
        assert!(calls(&of(7), 0) && !calls(&of(8), 0));
        assert!(!calls(&process(&[], &[(Receiver::Process, 1), (Receiver::Process, 0)]), 0));
    }

    #[test]
    fn a_timer_that_would_end_a_call_may_come_too_early() {
        let alarm = Alarm { timer: Timer::Interval(1), receiver: Receiver::Process, signal: 1 };
        let early = |restarts, number, result| {
            let process = Process { soon: vec![alarm], ..process(&[restarts], &[]) };
            let call = Call { number, result, instruction: 0x1000, arguments: [0; 5] };
            process.comes_early(&thread(0, &[]), call).eq([alarm])
        };
        assert!(
            early(true, libc::SYS_pause, libc::SYS_pause) && early(false, libc::SYS_read, libc::SYS_read)
        );
        assert!(!early(true, libc::SYS_read, libc::SYS_read));
        assert!(!early(false, libc::SYS_read, 7), "it has ended");
    }

    fn image(fields: &[(u64, u64)]) -> Vec<u8> {
        let (mut registers, mut info, mut core) =
            (Message::default(), Message::default(), Message::default());
        fields.iter().for_each(|(field, value)| registers.number(*field, *value));
        info.bytes(REGISTERS, &registers.0);
        core.bytes(THREAD_INFO, &info.0);
        let mut image = vec![0; MAGIC];
        image.extend((core.0.len() as u32).to_le_bytes());
        image.extend(core.0);
        image
    }

    #[test]
    fn a_call_is_found_and_changed_in_an_image() {
        let image = image(&[
            (8, 14),
            (10, 15),
            (RESULT, 1),
            (13, 13),
            (14, 12),
            (15, 11),
            (NUMBER, 2),
            (INSTRUCTION, 3),
        ]);
        let call = Call { number: 2, result: 1, instruction: 3, arguments: [11, 12, 13, 14, 15] };
        assert_eq!(call_in(&image), Some(Some(call)));
        let other = Call { result: -4, instruction: 5, arguments: [16; 5], ..call };
        assert_eq!(call_in(&with_call(&image, &other).unwrap()), Some(Some(other)));
        assert!((MAGIC..image.len()).all(|length| call_in(&image[..length]).is_none()));
    }
}
