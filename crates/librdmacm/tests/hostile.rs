//! Programs whose neighbours are hostile.
//!
//! Needs a C compiler, librdmacm-dev, and the right to make network namespaces.

mod program;

use program::run;

#[test]
fn a_hostile_neighbour_hurts_only_its_own_connections() {
    run("neighbour");
}

#[test]
fn a_flood_of_datagrams_does_not_stop_answers() {
    run("flooded");
}

#[test]
fn at_the_limit_of_descriptors_who_wants_a_connection_waits() {
    run("full");
}

#[test]
fn clients_that_leave_leave_nothing() {
    run("leavers");
}
