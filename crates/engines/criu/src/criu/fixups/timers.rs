//! Corrects timer descriptors (`timerfd_create`) that CRIU would restore wrongly.
//!
//! The kernel restarts an expired periodic timer only when it is read; until then it has no time left. CRIU restores it with no time
//! left, which disarms it for ever, so the images get a whole period instead. A timer that expires at the moment of the dump has
//! neither time left nor ticks, like one that its program has disarmed: a second look a moment later tells them apart.
//!
//! For an absolute timer CRIU records the time left, and adds it to the whole seconds of the clock at the restore: it would expire up
//! to a second early. So it becomes a relative timer. An absolute timer of the real-time clock stays absolute, so that it follows
//! changes of that clock.

use std::cell::OnceCell;
use std::fs;
use std::io;
use std::path::Path;

use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::criu::fixups::own_files::FILES;
use crate::criu::protobuf::{Field, Message, fields, not_understood, number, with, with_entries};
use crate::linux::task;

/// Field of `file_entry`.
const TIMERFD: u64 = 12;

/// Field of `timerfd_entry`.
const CLOCK: u64 = 4;
/// Field of `timerfd_entry`: the number of expirations since the last read.
const TICKS: u64 = 5;
/// Field of `timerfd_entry`: the flags with which it was set.
const FLAGS: u64 = 6;
/// Fields of `timerfd_entry`: the time left, in seconds and nanoseconds.
const LEFT: [u64; 2] = [7, 8];
/// Fields of `timerfd_entry`: the period, in seconds and nanoseconds.
const PERIOD: [u64; 2] = [9, 10];

/// A timer's clock, and its period in seconds and nanoseconds.
type Rhythm = (u64, [u64; 2]);

/// The fixup of timer descriptors.
pub struct Timers;

impl Fixup for Timers {
    fn name(&self) -> &'static str {
        "timer descriptors"
    }

    fn lacks(&self) -> &'static str {
        "CRIU stops a periodic timer that has expired, and lets an absolute timer expire early"
    }

    fn save(&mut self, stopped: &StoppedTree<'_>) -> io::Result<()> {
        mend(stopped.images, stopped.tree)
    }
}

/// Corrects the timers in a stopped tree's images.
///
/// # Errors
/// If the image cannot be read or written.
fn mend(images: &Path, tree: &[i32]) -> io::Result<()> {
    let path = images.join(FILES);
    let image = fs::read(&path)?;
    let stopped = OnceCell::new();
    let is_stopped = |rhythm| stopped.get_or_init(|| stopped_in(tree)).contains(&rhythm);
    let changed = with_entries(&image, |entry| with(entry, TIMERFD, |timer| mended(timer, is_stopped)));
    let changed = changed.ok_or_else(|| not_understood(&path))?;
    if changed == image { Ok(()) } else { fs::write(&path, changed) }
}

fn mended(timer: &[u8], is_stopped: impl Fn(Rhythm) -> bool) -> Option<Vec<u8>> {
    const ABSOLUTE: u64 = libc::TFD_TIMER_ABSTIME as u64;
    let expired = has_expired(timer, is_stopped)?;
    let of_calendar = number(timer, CLOCK)? == libc::CLOCK_REALTIME as u64;
    let mut mended = Message::default();
    for (field, value) in fields(timer)? {
        let unit = LEFT.iter().position(|left| *left == field);
        match (value, unit) {
            (Field::Number(_), Some(unit)) if expired => mended.number(field, number(timer, PERIOD[unit])?),
            (Field::Number(ticks), _) if field == TICKS && expired => mended.number(field, ticks.max(1)),
            (Field::Number(flags), _) if field == FLAGS && !of_calendar => {
                mended.number(field, flags & !ABSOLUTE);
            }
            (Field::Number(value), _) => mended.number(field, value),
            (Field::Bytes(value), _) => mended.bytes(field, value),
        }
    }
    Some(mended.0)
}

/// Whether a periodic timer has expired and was not read since then.
fn has_expired(timer: &[u8], is_stopped: impl Fn(Rhythm) -> bool) -> Option<bool> {
    let of = |[seconds, nanoseconds]: [u64; 2]| Some([number(timer, seconds)?, number(timer, nanoseconds)?]);
    let (clock, ticks, left, period) = (number(timer, CLOCK)?, number(timer, TICKS)?, of(LEFT)?, of(PERIOD)?);
    Some(left == [0, 0] && period != [0, 0] && (ticks > 0 || !is_stopped((clock, period))))
}

/// The timers that are disarmed.
fn stopped_in(tree: &[i32]) -> Vec<Rhythm> {
    let descriptors = |pid: &i32| task::numbers_in(&format!("/proc/{pid}/fdinfo")).unwrap_or_default();
    let all = tree.iter().flat_map(|pid| descriptors(pid).into_iter().map(move |number| (pid, number)));
    all.filter_map(|(pid, number)| stopped(&fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?))
        .collect()
}

/// Parses `/proc/PID/fdinfo`; none if it is not a disarmed timer.
fn stopped(text: &str) -> Option<Rhythm> {
    let value = |name| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let times = |name| {
        let (seconds, nanoseconds) = value(name)?.strip_prefix('(')?.strip_suffix(')')?.split_once(", ")?;
        Some([seconds.parse().ok()?, nanoseconds.parse().ok()?])
    };
    let (left, period): ([u64; 2], _) = (times("it_value")?, times("it_interval")?);
    let none = value("ticks")? == "0" && left == [0, 0];
    none.then_some((value("clockid")?.parse().ok()?, period))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timer of the monotonic clock with these ticks, this time left and this period.
    fn timer(ticks: u64, left: [u64; 2], period: [u64; 2]) -> Vec<u8> {
        timer_of(libc::CLOCK_MONOTONIC, ticks, 0, left, period)
    }

    fn timer_of(clock: libc::clockid_t, ticks: u64, flags: u64, left: [u64; 2], period: [u64; 2]) -> Vec<u8> {
        let mut timer = Message::default();
        timer.number(1, 300);
        timer.bytes(3, &[8, 0]);
        timer.number(CLOCK, clock as u64);
        timer.number(TICKS, ticks);
        timer.number(FLAGS, flags);
        for (field, value) in LEFT.into_iter().zip(left).chain(PERIOD.into_iter().zip(period)) {
            timer.number(field, value);
        }
        timer.0
    }

    #[test]
    fn an_expired_periodic_timer_gets_a_whole_period() {
        assert_eq!(mended(&timer(1, [0, 0], [2, 300]), |_| true), Some(timer(1, [2, 300], [2, 300])));
    }

    #[test]
    fn a_timer_that_expires_during_the_dump_keeps_its_tick_and_gets_a_period() {
        let rhythm = (libc::CLOCK_MONOTONIC as u64, [2, 300]);
        let of_another = |other| other != rhythm;
        assert_eq!(mended(&timer(0, [0, 0], [2, 300]), of_another), Some(timer(1, [2, 300], [2, 300])));
    }

    #[test]
    fn a_disarmed_timer_is_recognized_in_fdinfo() {
        let text = |ticks, left| {
            format!(
                "pos:\t0\nflags:\t02\nmnt_id:\t16\nino:\t11\nclockid: 1\nticks: {ticks}\n\
                 settime flags: 00\nit_value: (0, {left})\nit_interval: (2, 300)\n"
            )
        };
        assert_eq!(stopped(&text(0, 0)), Some((1, [2, 300])));
        assert_eq!(stopped(&text(1, 0)), None);
        assert_eq!(stopped(&text(0, 7)), None);
        assert_eq!(stopped("pos:\t0\nflags:\t02\n"), None);
    }

    #[test]
    fn an_absolute_timer_becomes_a_relative_one() {
        let of = |clock, flags| timer_of(clock, 0, flags, [0, 7], [0, 0]);
        let (steady, calendar) = (libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME);
        assert_eq!(mended(&of(steady, 1), |_| true), Some(of(steady, 0)));
        assert_eq!(mended(&of(calendar, 1), |_| true), Some(of(calendar, 1)));
    }

    #[test]
    fn other_timers_stay_as_they_are() {
        let stopped = timer(0, [0, 0], [2, 300]);
        let running = timer(1, [0, 7], [2, 300]);
        let expired_once = timer(1, [0, 0], [0, 0]);
        for timer in [stopped, running, expired_once] {
            assert_eq!(mended(&timer, |_| true), Some(timer));
        }
    }

    #[test]
    fn a_damaged_timer_is_refused() {
        let whole = timer(1, [0, 0], [2, 300]);
        assert!((0..whole.len()).all(|length| mended(&whole[..length], |_| true).is_none()));
    }
}
