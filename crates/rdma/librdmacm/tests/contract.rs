//! The contract with programs.
//!
//! Needs a C compiler, librdmacm-dev, iproute2, and the right to make network namespaces.

mod program;

use program::run;

#[test]
fn a_port_belongs_to_one_identifier_within_a_process() {
    run("bound");
}

#[test]
fn joining_a_group_before_creating_the_queue_pair_works() {
    run("joined");
}

#[test]
fn a_forked_child_gets_errors_from_its_sockets() {
    run("forked");
}

#[test]
fn a_child_forked_during_initialisation_initialises_again() {
    run("begun");
}

#[test]
fn a_child_does_not_wait_for_threads_of_its_parent() {
    run("inherited");
}

#[test]
fn a_child_keeps_nothing_that_reaches_its_parents_neighbours() {
    run("apart");
}

#[test]
fn extended_connections_work_with_the_default_domain() {
    run("shared");
}

#[test]
fn only_an_orderly_end_reads_as_one() {
    run("ended");
}

#[test]
fn threads_share_a_socket() {
    run("duplex");
}

#[test]
fn threads_that_wait_together_do_not_spin() {
    run("blocked");
}

#[test]
fn waiting_threads_wake_on_shutdown_for_reading() {
    run("woken");
}

#[test]
fn an_identifier_without_a_device_gets_no_queue_pair() {
    run("nowhere");
}

#[test]
fn plain_sockets_over_rsockets_know_their_addresses() {
    run("preloaded");
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    run("stages");
}

#[test]
fn socket_options_report_the_truth() {
    run("sizes");
}

#[test]
fn nonblocking_operations_proceed_without_calls() {
    run("unattended");
}

#[test]
fn only_the_owner_of_an_address_refuses() {
    run("unreachable");
}

#[test]
fn threads_may_be_cancelled_where_they_wait() {
    run("cancelled");
}

#[test]
fn accepting_and_closing_at_once_establishes_the_connection() {
    run("left");
}

#[test]
fn unusual_timeouts_and_buffers_behave_as_for_kernel_sockets() {
    run("limits");
}

#[test]
fn a_process_may_end_where_it_waits() {
    run("exits");
}

#[test]
fn unmapped_iomap_regions_are_forgotten() {
    run("mapped");
}

#[test]
fn a_refused_client_gets_its_posted_requests_back() {
    run("refused");
}

#[test]
fn a_program_without_free_descriptors_keeps_its_connections() {
    run("starved");
}

#[test]
fn waiting_works_with_a_descriptor_limit_of_zero() {
    run("sandboxed");
}

#[test]
fn events_can_be_taken_while_the_listener_is_destroyed() {
    run("moved");
}

#[test]
fn a_failed_initialisation_can_be_repeated() {
    run("retried");
}

#[test]
fn a_failed_load_of_libibverbs_is_reported_and_can_be_repeated() {
    run("loaded");
}

#[test]
fn a_listener_without_memory_refuses_connections() {
    run("short");
}

#[test]
fn connections_beyond_the_available_memory_are_refused() {
    run("crowd");
}
