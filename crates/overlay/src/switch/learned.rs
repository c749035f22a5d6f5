//! Where MACs were seen that nobody manages.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::{Place, PortId};
use crate::mac::Mac;

/// How many changes of place within [`WINDOW`] are followed.
const MOST_MOVES: u8 = 5;

/// The time in which changes of place are counted, and for which a MAC that makes too many stays where it is.
const WINDOW: Duration = Duration::from_secs(10);

/// A full table is looked through for old entries at most this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What a MAC in a VLAN is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    #[inline]
    pub fn new(mac: Mac, vlan: u16) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        let [g, h] = vlan.to_be_bytes();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    pub fn mac(self) -> Mac {
        let [a, b, c, d, e, f, _, _] = self.0.to_be_bytes();
        Mac([a, b, c, d, e, f])
    }

    pub fn vlan(self) -> u16 {
        let [.., g, h] = self.0.to_be_bytes();
        u16::from_be_bytes([g, h])
    }
}

/// Where a MAC was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learned {
    pub place: Place,
    /// When last.
    pub seen: Duration,
    window: Duration,
    moves: u8,
}

/// What became of something learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lesson {
    /// The table says so now.
    Known,
    /// There is no room.
    Full,
    /// The MAC has changed its place too often, and stays where it was.
    Flap,
}

/// MACs by where they were seen last.
pub(super) struct LearnedMacs {
    table: HashMap<Key, Learned, RandomState>,
    limit: usize,
    age: Duration,
    swept: Duration,
}

impl LearnedMacs {
    pub fn new(limit: usize, age: Duration) -> Self {
        Self { table: HashMap::default(), limit, age, swept: Duration::ZERO }
    }

    /// Where a MAC is, as far as is known.
    #[inline]
    pub fn find(&self, key: Key, now: Duration) -> Option<Place> {
        let learned = self.table.get(&key)?;
        (now < learned.seen + self.age).then_some(learned.place)
    }

    /// A MAC was seen at `place`.
    #[inline]
    pub fn learn(&mut self, key: Key, place: Place, now: Duration) -> Lesson {
        match self.table.get_mut(&key) {
            Some(learned) if now < learned.seen + self.age => learned.see(place, now),
            Some(learned) => {
                *learned = Learned { place, seen: now, window: now, moves: 0 };
                Lesson::Known
            }
            None => self.insert(key, place, now),
        }
    }

    fn insert(&mut self, key: Key, place: Place, now: Duration) -> Lesson {
        if self.table.len() >= self.limit && now >= self.swept + SWEEP_INTERVAL {
            self.sweep(now);
        }
        if self.table.len() >= self.limit {
            return Lesson::Full;
        }
        self.table.insert(key, Learned { place, seen: now, window: now, moves: 0 });
        Lesson::Known
    }

    /// Forgets what was not seen for long.
    pub fn sweep(&mut self, now: Duration) {
        self.swept = now;
        let age = self.age;
        self.table.retain(|_, learned| now < learned.seen + age);
    }

    /// Forgets what was seen on a port.
    pub fn forget_port(&mut self, port: PortId) {
        self.table.retain(|_, learned| learned.place != Place::Port(port));
    }

    /// Forgets all.
    pub fn forget_all(&mut self) {
        self.table.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &Learned)> {
        self.table.iter().map(|(key, learned)| (*key, learned))
    }
}

impl Learned {
    fn see(&mut self, place: Place, now: Duration) -> Lesson {
        if place == self.place {
            self.seen = now;
            return Lesson::Known;
        }
        if now >= self.window + WINDOW {
            (self.window, self.moves) = (now, 0);
        }
        if self.moves >= MOST_MOVES {
            return Lesson::Flap;
        }
        self.moves += 1;
        if self.moves == MOST_MOVES {
            self.window = now;
        }
        (self.place, self.seen) = (place, now);
        Lesson::Known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HERE: Place = Place::Port(PortId(1));
    const THERE: Place = Place::Port(PortId(2));

    fn key(number: u8) -> Key {
        Key::new(Mac([2, 0, 0, 0, 0, number]), 7)
    }

    #[test]
    fn keys_are_mac_and_vlan() {
        assert_eq!((key(3).mac(), key(3).vlan()), (Mac([2, 0, 0, 0, 0, 3]), 7));
        assert_ne!(key(3), Key::new(key(3).mac(), 8));
    }

    #[test]
    fn macs_age_and_full_tables_learn_no_more() {
        let mut macs = LearnedMacs::new(2, SECOND * 300);
        assert_eq!(macs.learn(key(1), HERE, SECOND), Lesson::Known);
        assert_eq!(macs.learn(key(2), HERE, SECOND * 100), Lesson::Known);
        assert_eq!(macs.learn(key(3), HERE, SECOND * 100), Lesson::Full);
        assert_eq!(macs.find(key(1), SECOND * 300), Some(HERE));
        assert_eq!(macs.find(key(1), SECOND * 301), None);
        assert_eq!(macs.learn(key(3), HERE, SECOND * 301), Lesson::Known);
        assert_eq!(macs.iter().count(), 2);
        macs.forget_port(PortId(1));
        assert_eq!(macs.iter().count(), 0);
    }

    #[test]
    fn a_mac_that_flaps_is_pinned_for_a_while() {
        let mut macs = LearnedMacs::new(2, SECOND * 300);
        macs.learn(key(1), HERE, SECOND);
        for (at, place) in [THERE, HERE, THERE, HERE, THERE].into_iter().enumerate() {
            assert_eq!(macs.learn(key(1), place, SECOND * (at as u32 + 1)), Lesson::Known);
        }
        assert_eq!(macs.learn(key(1), HERE, SECOND * 14), Lesson::Flap);
        assert_eq!(macs.find(key(1), SECOND * 14), Some(THERE));
        assert_eq!(macs.learn(key(1), HERE, SECOND * 15), Lesson::Known);
        assert_eq!(macs.find(key(1), SECOND * 15), Some(HERE));
    }

    #[test]
    fn seldom_moves_are_followed_for_ever() {
        let mut macs = LearnedMacs::new(2, SECOND * 300);
        for at in 0..100 {
            let place = if at % 2 == 0 { HERE } else { THERE };
            assert_eq!(macs.learn(key(1), place, SECOND * 3 * at), Lesson::Known);
        }
    }
}
