use std::env;

use super::exhaustive::{Explored, Faults, explore, explore_post_copy, explore_together};
use super::{Failure, Sabotage, Tally, run_group, run_seed};

const SEEDS: u64 = 10_000;

/// Runs with large groups.
const GROUPS: u64 = 12;

type Runs = fn(u64, Sabotage, bool) -> Result<Tally, Failure>;

/// The seed to reproduce, if one is given.
fn asked_seed() -> Option<u64> {
    let text = env::var("TRANSHUME_SEED").ok()?;
    Some(text.parse().expect("TRANSHUME_SEED is a number"))
}

fn run_all(run: Runs, seeds: std::ops::Range<u64>) -> Tally {
    let mut total = Tally::default();
    for seed in seeds {
        match run(seed, Sabotage::None, false) {
            Ok(tally) => total += tally,
            Err(_) => {
                panic!("{}", run(seed, Sabotage::None, true).expect_err("the same seed, the same run"))
            }
        }
    }
    total
}

#[test]
fn ten_thousand_seeds_keep_every_invariant() {
    if let Some(seed) = asked_seed() {
        run_all(run_seed, seed..seed + 1);
        return;
    }
    let seeds = test_support::seeds(SEEDS);
    let total = run_all(run_seed, 0..seeds);
    println!("{total:?}");
    assert!(total.groups > seeds / 20, "too few were made together: {total:?}");
    assert!(total.saved > seeds / 20 && total.restored > seeds / 20, "too few were saved: {total:?}");
    assert!(total.fetched > seeds / 20, "too little was fetched: {total:?}");
    assert!(total.bereft > 0 || seeds < SEEDS, "no memory was lost: {total:?}");
    assert!(total.committed > seeds && total.rolled_back > seeds, "too little happened: {total:?}");
    assert!(
        total.crashes > seeds && total.lost > seeds && total.peers > seeds,
        "too little went wrong: {total:?}"
    );
}

#[test]
fn groups_of_a_hundred_keep_every_invariant() {
    if let Some(seed) = asked_seed() {
        run_all(run_group, seed..seed + 1);
        return;
    }
    let seeds = test_support::seeds(GROUPS);
    let total = run_all(run_group, 0..seeds);
    println!("{total:?}");
    // So few seeds are no measure of how much happens.
    if seeds == GROUPS {
        assert!(total.groups > GROUPS / 2 && total.committed > 50 * total.groups, "too few moved: {total:?}");
        assert!(total.rolled_back > 100 && total.saved > 100, "too little happened: {total:?}");
        assert!(total.crashes > GROUPS && total.lost > 100 * GROUPS, "too little went wrong: {total:?}");
    }
}

#[test]
fn detects_a_partly_committed_group() {
    let failure =
        (0..GROUPS).find_map(|seed| run_group(seed, Sabotage::GroupIsCommittedInParts, false).err());
    println!("{}", failure.expect("it is not noticed"));
}

#[test]
fn a_seed_replays_exactly() {
    let run = || run_seed(4711, Sabotage::None, false).unwrap();
    assert_eq!(run(), run());
    let fail =
        || (0..).find_map(|seed| run_seed(seed, Sabotage::SourceResumesOnTimeOut, true).err()).unwrap();
    assert_eq!(fail().trace, fail().trace);
}

/// Each broken rule is detected within the seeds of a test run.
#[test]
fn detects_each_broken_rule() {
    for sabotage in [
        Sabotage::SourceResumesOnTimeOut,
        Sabotage::CommitIsNotDurable,
        Sabotage::DestroyBeforeConfirmation,
        Sabotage::ReleaseIsNotDurable,
        Sabotage::PeersAreForgotten,
        Sabotage::LastMoveIsNotDurable,
        Sabotage::GroupIsCommittedInParts,
        Sabotage::ImagesAreNotWritten,
        Sabotage::MemoryIsNotSent,
        Sabotage::MemoryIsLeftBehind,
        Sabotage::LackIsNotDurable,
    ] {
        let failure = (0..SEEDS).find_map(|seed| run_seed(seed, sabotage, false).err());
        let failure = failure.unwrap_or_else(|| panic!("{sabotage:?} is not noticed"));
        println!("{sabotage:?}: {failure}");
    }
}

fn check(faults: Faults) -> Explored {
    let explored = explore(faults, Sabotage::None).unwrap_or_else(|what| panic!("{what}"));
    println!("{faults:?}: {explored:?}");
    explored
}

#[test]
fn every_order_of_messages_with_a_crash_and_a_loss() {
    check(Faults { crashes: 1, losses: 1, repeats: 1, ..Faults::default() });
}

#[test]
fn every_order_of_messages_with_two_crashes() {
    check(Faults { crashes: 2, ..Faults::default() });
}

#[test]
fn every_order_of_messages_with_a_crash_an_exit_and_a_waiting_peer() {
    check(Faults { crashes: 1, peers: 1, exits: 1, ..Faults::default() });
}

#[test]
fn every_order_of_messages_with_cancel_deadline_and_failure() {
    check(Faults { cancels: 1, failures: 1, deadlines: 1, repeats: 1, ..Faults::default() });
}

#[test]
fn every_order_of_messages_with_doubles_and_an_exit() {
    check(Faults { doubles: 1, exits: 1, crashes: 1, ..Faults::default() });
}

#[test]
fn every_order_of_messages_with_a_second_move() {
    check(Faults { moves: 1, losses: 1, repeats: 1, ..Faults::default() });
    check(Faults { moves: 1, crashes: 1, ..Faults::default() });
}

#[test]
fn every_order_of_messages_with_a_waiting_peer() {
    check(Faults { peers: 1, crashes: 1, ..Faults::default() });
    check(Faults { peers: 1, failures: 1, losses: 1, ..Faults::default() });
}

#[test]
fn every_order_of_messages_of_two_moves_that_are_made_together() {
    let faults = Faults { failures: 1, ..Faults::default() };
    let explored = explore_together(faults, Sabotage::None).unwrap_or_else(|what| panic!("{what}"));
    println!("{faults:?}: {explored:?}");
    assert!(explored.tally.groups > 0 && explored.tally.rolled_back > 0, "{explored:?}");
}

#[test]
fn every_order_of_messages_of_a_post_copy_move() {
    for faults in [
        Faults { crashes: 1, losses: 1, ..Faults::default() },
        Faults { crashes: 1, exits: 1, ..Faults::default() },
        Faults { bereavements: 1, crashes: 1, ..Faults::default() },
        Faults { bereavements: 1, failures: 1, losses: 1, ..Faults::default() },
        Faults { peers: 1, failures: 1, doubles: 1, ..Faults::default() },
        Faults { cancels: 1, deadlines: 1, repeats: 1, ..Faults::default() },
        Faults { moves: 1, losses: 1, ..Faults::default() },
    ] {
        let explored = explore_post_copy(faults, Sabotage::None).unwrap_or_else(|what| panic!("{what}"));
        println!("{faults:?}: {explored:?}");
        assert!(explored.tally.fetched > 0, "{explored:?}");
    }
}

#[test]
fn exhaustive_check_detects_missing_memory() {
    let faults = Faults::default();
    assert!(explore_post_copy(faults, Sabotage::None).is_ok());
    assert!(explore_post_copy(faults, Sabotage::MemoryIsLeftBehind).is_err());
}

#[test]
fn exhaustive_check_detects_a_broken_rule() {
    let faults = Faults { repeats: 1, ..Faults::default() };
    assert!(explore(faults, Sabotage::None).is_ok());
    assert!(explore(faults, Sabotage::SourceResumesOnTimeOut).is_err());
}
