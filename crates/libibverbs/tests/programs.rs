//! C programs, compiled against the installed `verbs.h`, in an instance of their own.
//!
//! Needs a C compiler, libibverbs-dev, and the right to make network namespaces.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use broker::local::LocalFabric;

/// Compiles `tests/c/NAME.c`.
fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let flags = ["-std=gnu11", "-Wall", "-Wno-unused-function", "-g", "-rdynamic", "-o"];
    let built = Command::new("cc").args(flags).arg(&program).arg(&source).arg("-libverbs").status();
    assert!(built.expect("a C compiler").success(), "is libibverbs-dev installed?");
    program
}

/// What runs it with our library, for a minute at most: it takes a second, and more on a busy machine.
fn command(name: &str, arguments: &[&str]) -> Command {
    let library = test_support::libraries::folder().join("libibverbs.so.1");
    let mut command = Command::new("timeout");
    command.arg("60").arg(compile(name)).args(arguments);
    command.env("LD_PRELOAD", &library).env("LD_LIBRARY_PATH", library.parent().unwrap());
    command
}

/// Runs it in an instance.
fn run(name: &str, arguments: &[&str]) {
    let fabric = LocalFabric::new(1).expect("brokers");
    let instance = fabric.add_instance(0).expect("a network namespace: these tests run as root");
    let mut command = command(name, arguments);
    let output = instance.enter(&mut command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {}\n{errors}", output.status);
}

#[test]
fn every_operation_of_reliable_connections_works() {
    run("operations", &[]);
}

#[test]
fn receives_come_from_a_shared_queue() {
    run("operations", &["srq"]);
}

#[test]
fn extended_posting_and_polling_work() {
    run("extended", &[]);
}

#[test]
fn memory_windows_work() {
    run("windows", &[]);
}

#[test]
fn objects_beside_the_usual_ones_work() {
    run("objects", &[]);
}

#[test]
fn libraries_of_the_system_load_with_ours_in_the_place_of_theirs() {
    let library = test_support::libraries::folder().join("libibverbs.so.1");
    let folder = library.parent().unwrap().parent().unwrap().to_str().unwrap();
    let arguments = [folder, "libmlx5.so.1", "libefa.so.1", "libmlx4.so.1", "librdmacm.so.1"];
    let output = command("providers", &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nccls_way_of_loading_gives_it_all_that_its_network_needs() {
    run("nccl", &[]);
}

#[test]
fn extended_reliable_connections_work() {
    run("xrc", &[]);
}

#[test]
fn an_xrc_domain_belongs_to_one_process_and_others_are_told_so() {
    run("xrc_shared", &[]);
}

#[test]
fn every_status_of_a_completion_that_can_occur_does() {
    run("statuses", &[]);
}

#[test]
fn completion_channels_work() {
    run("events", &[]);
}

#[test]
fn threads_may_be_cancelled_without_harm() {
    run("cancelled", &[]);
}

#[test]
fn a_forked_child_does_its_parent_no_harm() {
    run("forks", &[]);
}

#[test]
fn a_child_does_not_wait_for_its_parents_threads() {
    run("inherited", &[]);
}

#[test]
fn a_handler_of_a_signal_may_fork_amid_a_call() {
    run("interrupted", &[]);
}

#[test]
fn a_program_that_can_have_no_thread_has_no_device_either() {
    run("threadless", &[]);
}

#[test]
fn a_program_without_memory_gets_no_new_objects_and_keeps_the_others() {
    run("memoryless", &[]);
}

/// Runs it, and moves it each time it says so, to one after the other of these hosts.
fn run_and_move(name: &str, hosts: &[usize]) {
    let fabric = LocalFabric::new(2).expect("brokers");
    let instance = fabric.add_instance(0).expect("a network namespace: these tests run as root");
    let mut command = command(name, &[]);
    instance.enter(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    for &host in hosts {
        program.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        fabric.suspend(&instance).unwrap();
        assert_eq!(fabric.resume(&instance, host).unwrap().missing, []);
        program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_program_that_takes_all_descriptors_comes_back_from_moves() {
    run_and_move("hungry", &[1, 0, 1]);
}

#[test]
fn a_program_that_forbids_itself_descriptors_is_idle_and_moves() {
    run_and_move("capped", &[1]);
}

#[test]
fn a_child_may_attach_that_was_forked_while_its_parent_did() {
    run("attaching", &[]);
}

#[test]
fn a_process_acknowledges_what_it_has_received_before_it_ends() {
    run("exits", &[]);
}

#[test]
fn a_program_outside_an_instance_finds_no_device_and_is_told_once_why() {
    let output = command("outside", &[]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((errors.lines().count(), output.stdout.len()), (1, 0), "{output:?}");
    assert!(errors.starts_with("transhume: no RDMA device") && errors.contains("`transhume run -- COMMAND`"));
    assert!(command("outside", &["deaf"]).status().unwrap().success());
}
