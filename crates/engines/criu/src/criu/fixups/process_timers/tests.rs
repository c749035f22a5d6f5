use std::time::Duration;

use super::*;
use crate::criu::fixups::alarms::*;
use crate::criu::protobuf::{MAGIC, Message};
use crate::linux::pending::Thread;

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
    let timers = [(1, timer(None, 0)), (2, timer(None, 7)), of(0, libc::SIGUSR1, 0), of(1, libc::SIGUSR2, 7)];
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
fn a_timer_of_a_thread_signals_that_thread() {
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
fn an_interval_timer_explains_a_signal_only_if_no_other_timer_does() {
    let of = |id| (POSIX_TIMERS, timer(Some((id, libc::SIGALRM, None)), 0));
    let alarms_of = |timers: &[_]| over_in(&image(timers)).unwrap();
    let (alone, both) = (alarms_of(&[(1, timer(None, 0))]), alarms_of(&[(1, timer(None, 0)), of(0)]));
    assert_eq!(one_for_each_signal(alone.clone()), Some(alone));
    assert_eq!(one_for_each_signal(both.clone()), Some(vec![both[1]]));
    assert_eq!(one_for_each_signal(alarms_of(&[of(0), of(1)])), None);
}

/// The late ones of timers 0 to 2, if `noted` and `queued` contain the signals of these timers.
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
fn a_queued_signal_that_is_not_recorded_is_late() {
    let signal = libc::SIGRTMIN();
    assert_eq!(late(signal, &[0], &[0, 2]), Some(vec![2]));
    assert_eq!(late(signal, &[0, 1], &[0, 1]), Some(vec![]));
    assert_eq!(late(signal, &[], &[]), Some(vec![]));
}

#[test]
fn a_taken_signal_belongs_to_the_remaining_timer() {
    let signal = libc::SIGUSR1;
    assert_eq!(late(signal, &[], &[0, 2]), Some(vec![0, 2, 1]));
    assert_eq!(late(signal, &[0], &[2]), Some(vec![2]));
    assert_eq!(late(signal, &[], &[2]), None);
}

#[test]
fn each_thread_may_have_taken_one_signal() {
    let signal = libc::SIGUSR1;
    assert_eq!(late_for(2, signal, &[0], &[2]), None);
    assert_eq!(late_for(2, signal, &[0, 1], &[2]), Some(vec![1, 2]));
    assert_eq!(late_for(2, libc::SIGRTMIN(), &[0], &[2]), Some(vec![2]));
}

#[test]
fn the_kernel_restores_one_signal_of_a_number_below_the_real_time_ones() {
    assert_eq!(late(libc::SIGUSR1, &[1, 0], &[0]), Some(vec![0]));
}

#[test]
fn a_damaged_image_is_refused() {
    let whole = image(&[(1, timer(None, 0))]);
    assert!((MAGIC..whole.len()).all(|length| over_in(&whole[..length]).is_none()));
}
