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
fn connection_requests_wait_at_the_limit_of_descriptors() {
    run("full");
}

#[test]
fn closed_clients_leave_no_resources() {
    run("leavers");
}
