//! Timers behind descriptors (`timerfd_create`) that are periodic, and have expired without having been read since.
//!
//! The kernel starts such a timer again only when it is read; until then no time is left of it. CRIU sets it to just that,
//! which stops it for ever, so that the images get a whole period instead. For other timers CRIU itself does so.

use std::fs;
use std::io;
use std::path::Path;

use super::own_files::FILES;
use super::protobuf::{Field, Message, fields, not_understood, with, with_entries};

/// Field of `file_entry`.
const TIMERFD: u64 = 12;

/// Field of `timerfd_entry`: how often it has expired since it was read.
const TICKS: u64 = 5;
/// Fields of `timerfd_entry`: the time that is left, in seconds and nanoseconds.
const LEFT: [u64; 2] = [7, 8];
/// Fields of `timerfd_entry`: the period, in the same.
const PERIOD: [u64; 2] = [9, 10];

/// Gives the expired periodic timers in a tree's images a period to go.
///
/// # Errors
/// If the image cannot be read or written.
pub fn carry(images: &Path) -> io::Result<()> {
    let path = images.join(FILES);
    let image = fs::read(&path)?;
    let changed = with_entries(&image, |entry| with(entry, TIMERFD, rewound));
    let changed = changed.ok_or_else(|| not_understood(&path))?;
    if changed == image { Ok(()) } else { fs::write(&path, changed) }
}

/// The timer with its period as the time that is left, if none is. Without ticks it was stopped by its program.
fn rewound(timer: &[u8]) -> Option<Vec<u8>> {
    if number(timer, TICKS)? == 0 || number(timer, LEFT[0])? != 0 || number(timer, LEFT[1])? != 0 {
        return Some(timer.to_vec());
    }
    let mut changed = Message::default();
    for (field, value) in fields(timer)? {
        match (value, LEFT.iter().position(|left| *left == field)) {
            (Field::Number(_), Some(unit)) => changed.number(field, number(timer, PERIOD[unit])?),
            (Field::Number(value), None) => changed.number(field, value),
            (Field::Bytes(value), _) => changed.bytes(field, value),
        }
    }
    Some(changed.0)
}

fn number(message: &[u8], field: u64) -> Option<u64> {
    fields(message)?.into_iter().find_map(|(number, value)| match value {
        Field::Number(value) if number == field => Some(value),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timer with these ticks, this time left and this period.
    fn timer(ticks: u64, left: [u64; 2], period: [u64; 2]) -> Vec<u8> {
        let mut timer = Message::default();
        timer.number(1, 300);
        timer.bytes(3, &[8, 0]);
        timer.number(TICKS, ticks);
        for (field, value) in LEFT.into_iter().zip(left).chain(PERIOD.into_iter().zip(period)) {
            timer.number(field, value);
        }
        timer.0
    }

    #[test]
    fn an_expired_periodic_timer_has_its_period_to_go() {
        assert_eq!(rewound(&timer(1, [0, 0], [2, 300])), Some(timer(1, [2, 300], [2, 300])));
    }

    #[test]
    fn other_timers_stay_as_they_are() {
        let stopped = timer(0, [0, 0], [2, 300]);
        let running = timer(1, [0, 7], [2, 300]);
        let expired_once = timer(1, [0, 0], [0, 0]);
        for timer in [stopped, running, expired_once] {
            assert_eq!(rewound(&timer), Some(timer));
        }
    }

    #[test]
    fn a_damaged_timer_is_refused() {
        let whole = timer(1, [0, 0], [2, 300]);
        assert!((0..whole.len()).all(|length| rewound(&whole[..length]).is_none()));
    }
}
