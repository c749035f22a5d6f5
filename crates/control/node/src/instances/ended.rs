//! The output of the last instances that ended here.

use std::collections::VecDeque;
use std::sync::Mutex;

use fabric::Vid;
use instance::{Carried, Chunk};

use crate::lock::lock;

/// How many instances' output is kept after their end.
const LIMIT: usize = 64;

/// The output of ended instances, the newest last.
#[derive(Debug, Default)]
pub struct Ended(Mutex<VecDeque<(Vid, Carried)>>);

impl Ended {
    /// Keeps the output of an instance that ends here; this may drop that of the oldest one.
    pub fn keep(&self, vid: Vid, carried: Carried) {
        let mut kept = lock(&self.0);
        kept.push_back((vid, carried));
        if kept.len() > LIMIT {
            kept.pop_front();
        }
    }

    /// Drops the output of an ended instance with this VID: the instance runs here again, restored from a checkpoint, and so has
    /// not ended.
    pub fn runs_again(&self, vid: Vid) {
        lock(&self.0).retain(|(ended, _)| *ended != vid);
    }

    /// At most `limit` bytes of its output from position `from` on, the position behind them, and its exit code.
    pub fn read(&self, vid: Vid, from: u64, limit: usize) -> Option<(Vec<Chunk>, u64, Option<i32>)> {
        let kept = lock(&self.0);
        let (_, carried) = kept.iter().rev().find(|(ended, _)| *ended == vid)?;
        let (chunks, next) = carried.output.read(from, limit);
        Some((chunks, next, carried.exit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_of(ended: &Ended, vid: u16) -> Option<i32> {
        ended.read(Vid::new(vid).unwrap(), 0, 1).and_then(|(_, _, exit)| exit)
    }

    fn keep(ended: &Ended, vid: u16, code: i32) {
        ended.keep(Vid::new(vid).unwrap(), Carried { exit: Some(code), ..Carried::default() });
    }

    #[test]
    fn one_that_lives_again_has_not_ended() {
        let ended = Ended::default();
        for vid in [1, 2, 1] {
            keep(&ended, vid, vid.into());
        }
        ended.runs_again(Vid::new(1).unwrap());
        assert_eq!((exit_of(&ended, 1), exit_of(&ended, 2)), (None, Some(2)));
    }

    #[test]
    fn the_last_ones_are_kept() {
        let ended = Ended::default();
        let limit = u16::try_from(LIMIT).unwrap();
        for vid in 1..=limit + 1 {
            keep(&ended, vid, 7);
        }
        assert_eq!(
            (exit_of(&ended, 1), exit_of(&ended, 2), exit_of(&ended, limit + 1)),
            (None, Some(7), Some(7))
        );
    }
}
