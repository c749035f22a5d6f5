//! Networks of switches in virtual time, with seeds.
//!
//! A world is some nodes in a topology that changes, ports with stations (the managed ones move), and the links and
//! messages between them. The invariants are checked with every frame that arrives anywhere, by its number, and at the
//! end (`records`). How much goes wrong depends on the seed ([`Mode`]).
//!
//! `SWITCH_SEED=n` runs one seed, `SWITCH_SEEDS=n` so many.

mod control;
mod records;
mod short_cuts;
mod world;

use world::World;

/// How much goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing, and nothing changes: all arrives, and in order.
    Calm,
    /// Topologies change, MACs move, links reorder, but nothing is lost, and each step waits for the others: every frame for
    /// one station arrives, once.
    Orderly,
    /// Links lose frames and are cut, messages are late, repeated and in any order, no step waits, stations send forged frames: nothing
    /// arrives at a wrong place.
    Rough,
}

impl Mode {
    fn of(seed: u64) -> Self {
        [Self::Calm, Self::Orderly, Self::Rough, Self::Rough][(seed % 4) as usize]
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Says how a failure can be had again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with SWITCH_SEED={}", self.0);
        }
    }
}

#[test]
fn invariants_hold_over_many_seeds() {
    let seeds = match number("SWITCH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SWITCH_SEEDS").unwrap_or_else(|| test_support::seeds(2000)),
    };
    let mut tally = world::Tally::default();
    for seed in seeds.clone() {
        let _guard = Replay(seed);
        tally += World::new(seed, Mode::of(seed)).run();
    }
    println!("{tally:?}");
    // The worlds are worth nothing if nothing happens in them.
    if seeds.end - seeds.start >= 1000 {
        assert!(tally.moves > 1000 && tally.rolled_back > 100 && tally.topologies > 1000);
        assert!(tally.short_cuts > 1000 && tally.handed_over > 1000, "{tally:?}");
        assert!(tally.sent_on > 1000 && tally.held > 1000 && tally.answered > 1000 && tally.lost > 1000);
    }
}
