use std::time::Duration;

use controller::Settings;

use crate::cluster::Cluster;
use crate::pattern::Pattern;
use crate::trace::Trace;
use crate::world::World;

const HOUR: Duration = Duration::from_secs(3600);

/// Settings in which the cool-down is shorter than the hour, so that each counts for itself.
fn settings() -> Settings {
    Settings { budget: 20, cool_down: HOUR / 2, ..Settings::default() }
}

/// Twelve hosts for six hours.
fn ran(pattern: fn(&Cluster) -> Pattern) -> World {
    let cluster = Cluster::generate(12, 60, 1).unwrap();
    let pattern = pattern(&cluster);
    let mut world = World::new(cluster, pattern, settings(), 300);
    world.run(6 * HOUR).unwrap();
    assert_eq!(world.broken(), [""; 0]);
    world
}

#[test]
fn a_steady_load_is_placed_better_and_then_nothing_moves() {
    let world = ran(|_| Pattern::Steady);
    let (first, last) = (world.tally.course[0], world.tally.course.last().unwrap());
    assert!(last[0] < first[0] / 4, "{:?}", world.tally);
    assert!(world.tally.moves > 10 && world.tally.stopped.is_none(), "{:?}", world.tally);
    assert!(
        world.tally.course[8][2] * 10 >= world.tally.moves * 9,
        "most moves come first: {:?}",
        world.tally
    );
}

#[test]
fn oscillating_and_bursty_loads_break_no_rule() {
    let oscillating = ran(|_| Pattern::Oscillating);
    assert!(oscillating.tally.moves > 0, "what oscillates slowly lasts: {:?}", oscillating.tally);
    let bursty = ran(|_| Pattern::Bursty);
    assert!(bursty.tally.moves <= 12, "{:?}", bursty.tally);
}

#[test]
fn a_recorded_load_breaks_no_rule() {
    let world = ran(|cluster| {
        let trace = Trace::parse(&Trace::example(cluster, 6, 1), cluster).unwrap();
        Pattern::Recorded(Box::new(trace))
    });
    assert!(world.tally.moves > 0, "{:?}", world.tally);
}

#[test]
fn hosts_that_ask_are_emptied_in_waves() {
    let cluster = Cluster::generate(12, 60, 1).unwrap();
    let mut world = World::new(cluster, Pattern::Steady, Settings { budget: 0, ..settings() }, 300);
    world.ask_to_leave(4);
    world.run(3 * HOUR).unwrap();
    assert_eq!((world.leaving(), world.broken()), (0, &[][..]), "{:?}", world.tally);
    assert!(world.tally.drains >= 4 && world.tally.drained > 10, "{:?}", world.tally);
}
