//! What programs may rely on.
//!
//! Needs a C compiler, librdmacm-dev, iproute2, and the right to make network namespaces.

mod program;

use program::run;

#[test]
fn a_port_is_one_identifiers_also_within_a_process() {
    run("bound");
}

#[test]
fn who_is_in_a_group_before_he_has_a_queue_pair_receives_from_it() {
    run("joined");
}

#[test]
fn a_forked_child_hears_that_its_sockets_are_gone() {
    run("forked");
}

#[test]
fn a_child_that_is_forked_while_another_thread_begins_begins_anew() {
    run("begun");
}

#[test]
fn a_child_does_not_wait_for_its_parents_threads() {
    run("inherited");
}

#[test]
fn a_handler_of_a_signal_may_fork_amid_a_call() {
    run("interrupted");
}

#[test]
fn a_child_keeps_nothing_that_reaches_its_parents_neighbours() {
    run("apart");
}

#[test]
fn extended_connections_need_no_domain_of_the_programs_own() {
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
fn who_waits_is_woken_when_nothing_more_is_read() {
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
fn what_the_state_forbids_is_refused() {
    run("stages");
}

#[test]
fn options_say_what_is_so() {
    run("sizes");
}

#[test]
fn what_was_begun_goes_on_without_calls() {
    run("unattended");
}

#[test]
fn only_who_has_the_address_refuses() {
    run("unreachable");
}

#[test]
fn threads_may_be_cancelled_where_they_wait() {
    run("cancelled");
}

#[test]
fn who_accepts_and_leaves_at_once_was_there() {
    run("left");
}

#[test]
fn odd_times_and_parts_are_as_for_other_sockets() {
    run("limits");
}

#[test]
fn a_process_may_end_where_it_waits() {
    run("exits");
}

#[test]
fn what_is_mapped_no_more_is_forgotten() {
    run("mapped");
}

#[test]
fn who_is_refused_hears_so_and_gets_back_what_it_posted() {
    run("refused");
}

#[test]
fn who_has_no_descriptor_left_keeps_its_connections() {
    run("starved");
}

#[test]
fn who_may_poll_nothing_waits_all_the_same() {
    run("sandboxed");
}

#[test]
fn threads_may_take_events_while_the_listener_goes() {
    run("moved");
}

#[test]
fn who_could_not_begin_has_lost_nothing() {
    run("retried");
}

#[test]
fn who_could_not_load_the_other_library_hears_why_and_loads_it_later() {
    run("loaded");
}

#[test]
fn who_is_short_of_memory_refuses_connections() {
    run("short");
}

#[test]
fn a_crowd_takes_the_memory_that_it_needs_and_is_refused_what_there_is_not() {
    run("crowd");
}
