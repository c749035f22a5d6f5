//! The system call that a stopped thread was in, and its result after the restore.

use std::io;
use std::time::Duration;

/// The machine code of a system call.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How much longer a call may last that restarts with its full timeout.
const LONGER: Duration = Duration::from_secs(1);
const INTERRUPTED: i64 = -(libc::EINTR as i64);

/// Calls that end with `EINTR` once a signal is handled, as signal(7) lists them.
const ENDED_BY_ANY: [libc::c_long; 16] = [
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_semop,
    libc::SYS_semtimedop,
];
/// Calls that end with `EINTR` unless the signal has `SA_RESTART`.
const ENDED_UNLESS_RESTARTED: [libc::c_long; 27] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_ioctl,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_getrandom,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
];

/// The system call that a stopped thread was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: libc::c_long,
    /// The result that the thread sees; the call's number if the call restarts.
    pub result: i64,
    /// The address at which the thread continues.
    pub instruction: u64,
    /// The first five arguments.
    pub arguments: [u64; 5],
}

impl Call {
    /// The call with which the thread restarts it instead of getting `EINTR`. `None` if it does not get `EINTR`, or if the
    /// restarted call would last more than [`LONGER`] longer: only the kernel knows how much of its time has passed. `memory` reads
    /// the thread's memory.
    pub fn begun_again(self, memory: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> Option<Self> {
        if self.result != INTERRUPTED {
            return None;
        }
        let arguments = self.what_is_left(|address| time_at(address, &memory))?;
        let instruction = self.instruction.wrapping_sub(SYSCALL.len() as u64);
        Some(Self { result: self.number, instruction, arguments, ..self })
    }

    /// The arguments with which it waits about as long as it would have.
    fn what_is_left(&self, time_at: impl Fn(u64) -> Option<Duration>) -> Option<[u64; 5]> {
        let is_short = |time: Duration| time <= LONGER;
        let is_time_short = |argument: usize| time_at(self.arguments[argument]).is_some_and(is_short);
        let is_count_short = |argument: usize| match u64::try_from(self.arguments[argument] as i32) {
            Ok(milliseconds) => is_short(Duration::from_millis(milliseconds)),
            // It has no timeout.
            Err(_) => true,
        };
        let begins_again = match self.number {
            libc::SYS_nanosleep => return self.slept(0, 1, is_time_short(0)),
            libc::SYS_clock_nanosleep => return self.slept(2, 3, is_time_short(2)),
            libc::SYS_poll => is_count_short(2),
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => is_count_short(3),
            libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => self.arguments[3] == 0 || is_time_short(3),
            libc::SYS_rt_sigtimedwait => self.arguments[2] == 0 || is_time_short(2),
            libc::SYS_semop => true,
            libc::SYS_futex => waits_until(self.arguments[1]) || is_time_short(3),
            _ => false,
        };
        begins_again.then_some(self.arguments)
    }

    /// The arguments of a sleep, which writes the remaining time to an address, if the call passes one.
    fn slept(&self, wanted: usize, left: usize, is_short: bool) -> Option<[u64; 5]> {
        let mut arguments = self.arguments;
        if arguments[left] != 0 {
            arguments[wanted] = arguments[left];
        } else if !is_short {
            return None;
        }
        Some(arguments)
    }

    /// The call with the result `EINTR`, if a signal's handler ends it; `None` if it has a result, or restarts. `restarts` says
    /// whether the handler has `SA_RESTART`.
    pub fn ended(self, restarts: bool) -> Option<Self> {
        let ends =
            ENDED_BY_ANY.contains(&self.number) || !restarts && ENDED_UNLESS_RESTARTED.contains(&self.number);
        let instruction = self.instruction.wrapping_add(SYSCALL.len() as u64);
        (self.result == self.number && ends).then_some(Self { result: INTERRUPTED, instruction, ..self })
    }

    /// The address of its instruction.
    pub fn made_at(&self) -> u64 {
        let behind = if self.result == INTERRUPTED { SYSCALL.len() as u64 } else { 0 };
        self.instruction.wrapping_sub(behind)
    }
}

/// The `struct timespec` at an address. `None` if it is invalid: the program may have overwritten it.
fn time_at(address: u64, memory: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> Option<Duration> {
    const SECOND: u32 = 1_000_000_000;
    let mut parts = [[0; 8]; 2];
    memory(address, parts.as_flattened_mut()).ok()?;
    let [seconds, nanoseconds] = parts.map(u64::from_ne_bytes);
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|nanoseconds| *nanoseconds < SECOND)?;
    Some(Duration::new(seconds, nanoseconds))
}

/// Whether a futex operation has an absolute timeout.
fn waits_until(operation: u64) -> bool {
    /// `FUTEX_LOCK_PI2`
    const LOCK_PI2: libc::c_int = 13;
    let flags = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    let until = [libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, libc::FUTEX_WAIT_REQUEUE_PI, LOCK_PI2];
    until.contains(&(operation as libc::c_int & !flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupted(number: libc::c_long, arguments: [u64; 5]) -> Call {
        Call { number, result: INTERRUPTED, instruction: 0x1002, arguments }
    }

    /// The arguments of the restarted call. 0x5000 contains half a second, 0x6000 ten seconds, 0x6100 an invalid time.
    fn again(number: libc::c_long, arguments: [u64; 5]) -> Option<[u64; 5]> {
        let again = interrupted(number, arguments).begun_again(|address, bytes| {
            let time = match address {
                0x5000 => [0, 500_000_000],
                0x6000 => [10, 0_u64],
                0x6100 => [u64::MAX, u64::from(u32::MAX)],
                _ => return Err(io::ErrorKind::NotFound.into()),
            };
            bytes.copy_from_slice(time.map(u64::to_ne_bytes).as_flattened());
            Ok(())
        })?;
        assert_eq!((again.result, again.instruction, again.number), (number, 0x1000, number));
        assert_eq!(again.made_at(), 0x1000);
        Some(again.arguments)
    }

    #[test]
    fn a_sleep_restarts_with_its_remaining_time() {
        let rest = 0x7000;
        assert_eq!(again(libc::SYS_nanosleep, [0x6000, rest, 3, 4, 5]), Some([rest, rest, 3, 4, 5]));
        assert_eq!(again(libc::SYS_clock_nanosleep, [1, 0, 0x6000, rest, 5]), Some([1, 0, rest, rest, 5]));
    }

    #[test]
    fn a_call_without_a_timeout_or_with_an_absolute_one_restarts() {
        let begins_again = |number, arguments| assert_eq!(again(number, arguments), Some(arguments));
        let minus_one = u64::from(u32::MAX);
        begins_again(libc::SYS_poll, [1, 2, minus_one, 4, 5]);
        begins_again(libc::SYS_epoll_wait, [1, 2, 3, minus_one, 5]);
        begins_again(libc::SYS_rt_sigtimedwait, [1, 2, 0, 4, 5]);
        let private = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG) as u64;
        begins_again(libc::SYS_futex, [1, private, 3, 4, 5]);
    }

    #[test]
    fn a_call_restarts_if_that_makes_it_little_longer() {
        let with = |number, argument: usize, value| {
            let mut arguments = [0, libc::FUTEX_WAIT as u64, 2, 3, 4];
            arguments[argument] = value;
            // The fourth argument of a clock's sleep is the address for the remaining time.
            arguments[3] = if number == libc::SYS_clock_nanosleep { 0 } else { arguments[3] };
            arguments[1] = if number == libc::SYS_nanosleep { 0 } else { arguments[1] };
            again(number, arguments).is_some()
        };
        let calls = [
            (libc::SYS_nanosleep, 0),
            (libc::SYS_clock_nanosleep, 2),
            (libc::SYS_rt_sigtimedwait, 2),
            (libc::SYS_semtimedop, 3),
            (libc::SYS_epoll_pwait2, 3),
            (libc::SYS_futex, 3),
        ];
        for (number, argument) in calls {
            assert!(with(number, argument, 0x5000), "{number}");
            assert!([0x6000, 0x6100].iter().all(|at| !with(number, argument, *at)), "{number}");
        }
        assert!(with(libc::SYS_poll, 2, 1000) && !with(libc::SYS_poll, 2, 1001));
        assert!(with(libc::SYS_epoll_wait, 3, 1000) && !with(libc::SYS_epoll_wait, 3, 1001));
    }

    #[test]
    fn a_call_with_a_result_does_not_restart() {
        assert_eq!(again(libc::SYS_close, [1, 2, 3, 4, 5]), None);
        let came = Call { result: 1, ..interrupted(libc::SYS_poll, [1, 2, u64::MAX, 4, 5]) };
        assert_eq!(came.begun_again(|_, _| Ok(())), None);
    }

    #[test]
    fn a_handler_ends_the_call_that_it_interrupts() {
        let begins = |number| Call { number, result: number, instruction: 0x1000, arguments: [0; 5] };
        let ends = |number, restarts| {
            let ended = begins(number).ended(restarts);
            assert!(ended.is_none_or(|call| call.made_at() == 0x1000 && call.instruction == 0x1002));
            ended.is_some_and(|call| call.result == INTERRUPTED)
        };
        assert!(ends(libc::SYS_pause, true) && ends(libc::SYS_pause, false));
        assert!(!ends(libc::SYS_read, true) && ends(libc::SYS_read, false));
        // Not even with a handler, or with a result.
        assert!(!ends(libc::SYS_clone, false));
        assert_eq!(Call { result: 7, ..begins(libc::SYS_read) }.ended(false), None);
    }
}
