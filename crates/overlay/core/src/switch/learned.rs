//! Learned places of unmanaged MACs.
//!
//! In a full table the place with the most MACs makes room: a flood of new MACs displaces MACs of its own place.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::{Place, PortId};
use crate::mac::Mac;

/// How many changes of place within [`FLAP_INTERVAL`] are followed.
const MOST_MOVES: u8 = 5;

/// The time in which changes of place are counted, and for which a MAC that makes too many stays where it is.
const FLAP_INTERVAL: Duration = Duration::from_secs(10);

/// A full table is searched for old entries at most this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Of how many MACs of one place the one is displaced that was not seen for the longest time.
const CANDIDATES: usize = 8;

/// How many entries a search examines.
const MOST_LOOKED_AT: usize = 64;

/// The key of a MAC in a VLAN.
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
    interval_start: Duration,
    moves: u8,
}

/// The result of learning a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lesson {
    /// The table has this place now.
    Known,
    /// So it does, and another one was forgotten for it.
    Displaced,
    /// The table is full.
    Full,
    /// The MAC has changed its place too often, and stays where it was.
    Flap,
}

/// MACs by where they were seen last.
pub(super) struct LearnedMacs {
    table: IndexMap<Key, Learned, RandomState>,
    /// How many each place has.
    shares: HashMap<Place, usize, RandomState>,
    /// Where the search for an entry to displace continues in the table.
    hand: usize,
    limit: usize,
    age: Duration,
    swept: Duration,
}

impl LearnedMacs {
    pub fn new(limit: usize, age: Duration) -> Self {
        let (table, shares) = (IndexMap::default(), HashMap::default());
        Self { table, shares, hand: 0, limit, age, swept: Duration::ZERO }
    }

    /// The present place of a MAC, if it is known.
    #[inline]
    pub fn find(&self, key: Key, now: Duration) -> Option<Place> {
        let learned = self.table.get(&key)?;
        (now < learned.seen + self.age).then_some(learned.place)
    }

    /// A MAC was seen at `place`.
    #[inline]
    pub fn learn(&mut self, key: Key, place: Place, now: Duration) -> Lesson {
        let Some(learned) = self.table.get_mut(&key) else { return self.insert(key, place, now) };
        let before = learned.place;
        let lesson = if now < learned.seen + self.age {
            learned.see(place, now)
        } else {
            *learned = Learned { place, seen: now, interval_start: now, moves: 0 };
            Lesson::Known
        };
        let after = learned.place;
        if before != after {
            self.leaves(before);
            *self.shares.entry(after).or_default() += 1;
        }
        lesson
    }

    fn insert(&mut self, key: Key, place: Place, now: Duration) -> Lesson {
        if self.table.len() >= self.limit && now >= self.swept + SWEEP_INTERVAL {
            self.sweep(now);
        }
        let mut lesson = Lesson::Known;
        if self.table.len() >= self.limit {
            let Some(index) = self.least_missed(place) else { return Lesson::Full };
            if let Some((_, displaced)) = self.table.swap_remove_index(index) {
                self.leaves(displaced.place);
            }
            lesson = Lesson::Displaced;
        }
        self.table.insert(key, Learned { place, seen: now, interval_start: now, moves: 0 });
        *self.shares.entry(place).or_default() += 1;
        lesson
    }

    /// The entry that makes room for another one of `place`: one of the longest unseen, of the place that has the most
    /// entries.
    fn least_missed(&mut self, place: Place) -> Option<usize> {
        let most = self.shares.values().max()?;
        let shares = |place: &Place| self.shares.get(place) == Some(most);
        // Of several places with as many, the frame's own.
        let crowded = if shares(&place) { place } else { *self.shares.keys().find(|place| shares(place))? };
        let length = self.table.len();
        let mut candidates = Vec::with_capacity(CANDIDATES);
        for _ in 0..MOST_LOOKED_AT.min(length) {
            self.hand = (self.hand + 1) % length;
            let Some((_, learned)) = self.table.get_index(self.hand) else { continue };
            if learned.place == crowded {
                candidates.push((learned.seen, self.hand));
            }
            if candidates.len() == CANDIDATES {
                break;
            }
        }
        candidates.into_iter().min().map(|(_, index)| index)
    }

    /// A MAC is not at `place` any more.
    fn leaves(&mut self, place: Place) {
        if let Some(share) = self.shares.get_mut(&place) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&place);
            }
        }
    }

    /// Forgets entries that were not seen for long.
    pub fn sweep(&mut self, now: Duration) {
        self.swept = now;
        let age = self.age;
        self.retain(|learned| now < learned.seen + age);
    }

    /// Forgets the entries of a port.
    pub fn forget_port(&mut self, port: PortId) {
        self.retain(|learned| learned.place != Place::Port(port));
    }

    fn retain(&mut self, stays: impl Fn(&Learned) -> bool) {
        self.table.retain(|_, learned| stays(learned));
        self.shares.clear();
        for learned in self.table.values() {
            *self.shares.entry(learned.place).or_default() += 1;
        }
    }

    /// Forgets all.
    pub fn forget_all(&mut self) {
        self.table.clear();
        self.shares.clear();
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
        if now >= self.interval_start + FLAP_INTERVAL {
            (self.interval_start, self.moves) = (now, 0);
        }
        if self.moves >= MOST_MOVES {
            return Lesson::Flap;
        }
        self.moves += 1;
        if self.moves == MOST_MOVES {
            self.interval_start = now;
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
    fn macs_age() {
        let mut macs = LearnedMacs::new(2, SECOND * 300);
        assert_eq!(macs.learn(key(1), HERE, SECOND), Lesson::Known);
        assert_eq!(macs.learn(key(2), HERE, SECOND * 100), Lesson::Known);
        assert_eq!(macs.find(key(1), SECOND * 300), Some(HERE));
        assert_eq!(macs.find(key(1), SECOND * 301), None);
        assert_eq!(macs.learn(key(3), HERE, SECOND * 301), Lesson::Known);
        assert_eq!(macs.iter().count(), 2);
        macs.forget_port(PortId(1));
        assert_eq!(macs.iter().count(), 0);
    }

    fn random(rng: &mut fastrand::Rng) -> Key {
        Key::new(Mac(std::array::from_fn(|_| rng.u8(..) & 0xfe)), 7)
    }

    #[test]
    fn a_flooding_place_displaces_its_own_silent_macs() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut macs = LearnedMacs::new(1000, SECOND * 300);
        // Some at the same place that are seen now and then, and some elsewhere.
        let busy: Vec<Key> = (0..100).map(key).collect();
        for number in 0..100_000_u32 {
            let now = SECOND + Duration::from_micros(number.into());
            macs.learn(random(&mut rng), THERE, now);
            if number % 100 == 0 {
                busy.iter().for_each(|key| assert_ne!(macs.learn(*key, THERE, now), Lesson::Full));
            }
        }
        let now = SECOND * 2;
        for number in 100..200 {
            assert_eq!(macs.learn(key(number), HERE, now), Lesson::Displaced);
        }
        for _ in 0..100_000 {
            assert_eq!(macs.learn(random(&mut rng), THERE, now), Lesson::Displaced);
        }
        assert!((100..200).all(|number| macs.find(key(number), now) == Some(HERE)));
        assert_eq!(macs.iter().count(), 1000);
        let shares =
            [HERE, THERE].map(|place| macs.iter().filter(|(_, learned)| learned.place == place).count());
        assert_eq!(shares.map(Some), [HERE, THERE].map(|place| macs.shares.get(&place).copied()));
    }

    #[test]
    fn an_active_mac_survives_a_flood_from_its_place() {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut macs = LearnedMacs::new(1000, SECOND * 300);
        let mut lost = 0;
        for number in 0..100_000_u32 {
            let now = SECOND + Duration::from_micros(number.into());
            macs.learn(random(&mut rng), HERE, now);
            if number % 50 == 0 {
                lost += u32::from(macs.learn(key(1), HERE, now) != Lesson::Known);
            }
        }
        assert!(lost < 20, "{lost} of 2000 times");
    }

    #[test]
    fn places_are_counted_as_macs_come_and_go() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut macs = LearnedMacs::new(50, SECOND * 30);
        for step in 0..20_000_u32 {
            let place = [HERE, THERE, Place::Node(crate::topology::NodeId(1))][rng.usize(..3)];
            macs.learn(key(rng.u8(..)), place, Duration::from_millis(u64::from(step) * 10));
            if step % 977 == 0 {
                macs.forget_port(PortId(rng.u16(1..3)));
            }
            let counted = macs.iter().fold(HashMap::<Place, usize>::new(), |mut shares, (_, learned)| {
                *shares.entry(learned.place).or_default() += 1;
                shares
            });
            assert!(macs.table.len() <= 50 && counted.len() == macs.shares.len());
            assert!(counted.iter().all(|(place, share)| macs.shares[place] == *share));
        }
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
    fn rare_moves_are_always_followed() {
        let mut macs = LearnedMacs::new(2, SECOND * 300);
        for at in 0..100 {
            let place = if at % 2 == 0 { HERE } else { THERE };
            assert_eq!(macs.learn(key(1), place, SECOND * 3 * at), Lesson::Known);
        }
    }
}
