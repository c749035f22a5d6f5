//! Recently answered questions about a station. A station that repeats a question was not helped by the answer: the
//! address may have passed to another station that has not announced it yet.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::mac::Mac;

/// Longer than stations take to find out that a neighbour does not answer: Linux believes in one for up to 45 s, and asks it for 8 s more.
const LATELY: Duration = Duration::from_secs(60);

/// The number of remembered questions. Beyond it, every question is asked of all: for a station without an entry it is
/// unknown whether the answer helped.
const MOST: usize = 4096;

/// See the module.
#[derive(Default)]
pub(super) struct Answered(HashMap<(Mac, IpAddr), Duration, RandomState>);

impl Answered {
    /// Whether `asker` surely was not answered lately when it asked for `target`. It is answered now.
    pub fn is_first(&mut self, asker: Mac, target: IpAddr, now: Duration) -> bool {
        let key = (asker, target);
        if self.0.get(&key).is_some_and(|at| now < *at + LATELY) {
            return false;
        }
        let has_room = self.0.len() < MOST || self.0.contains_key(&key);
        if has_room {
            self.0.insert(key, now);
        }
        has_room
    }

    /// Forgets old entries.
    pub fn sweep(&mut self, now: Duration) {
        self.0.retain(|_, at| now < *at + LATELY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_question_is_known_for_a_minute() {
        let second = Duration::from_secs(1);
        let mac = |number: u16| Mac([2, 0, 0, 0, number.to_be_bytes()[0], number.to_be_bytes()[1]]);
        let target = |last| IpAddr::from([10, 0, 0, last]);
        let mut answered = Answered::default();
        assert!(answered.is_first(mac(1), target(1), second));
        assert!(!answered.is_first(mac(1), target(1), second * 60));
        assert!(answered.is_first(mac(1), target(2), second) && answered.is_first(mac(2), target(1), second));
        assert!(answered.is_first(mac(1), target(1), second * 61));
        let first =
            (0..5000).filter(|number| answered.is_first(mac(*number), target(3), second * 61)).count();
        assert_eq!((first, answered.0.len()), (MOST - 3, MOST));
        assert!(!answered.is_first(mac(4999), target(3), second * 62), "more are not remembered");
        answered.sweep(second * 121);
        assert_eq!(answered.0.len(), 0);
    }
}
