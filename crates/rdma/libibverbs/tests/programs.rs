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

/// The command that runs it with our library, for a minute at most: it takes a second, and more on a busy
/// machine.
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
fn uncommon_objects_work() {
    run("objects", &[]);
}

#[test]
fn system_libraries_load_with_this_libibverbs() {
    let library = test_support::libraries::folder().join("libibverbs.so.1");
    let folder = library.parent().unwrap().parent().unwrap().to_str().unwrap();
    let arguments = [folder, "libmlx5.so.1", "libefa.so.1", "libmlx4.so.1", "librdmacm.so.1"];
    let output = command("providers", &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nccl_finds_all_symbols_that_it_loads() {
    run("nccl", &[]);
}

#[test]
fn extended_reliable_connections_work() {
    run("xrc", &[]);
}

#[test]
fn an_xrc_domain_of_another_process_cannot_be_opened() {
    run("xrc_shared", &[]);
}

#[test]
fn every_possible_completion_status_occurs() {
    run("statuses", &[]);
}

#[test]
fn completion_channels_work() {
    run("events", &[]);
}

#[test]
fn cancelled_threads_leave_objects_usable() {
    run("cancelled", &[]);
}

#[test]
fn a_forked_child_does_not_disturb_its_parent() {
    run("forks", &[]);
}

#[test]
fn a_child_does_not_wait_for_threads_of_its_parent() {
    run("inherited", &[]);
}

#[test]
fn a_program_without_threads_gets_no_device() {
    run("threadless", &[]);
}

#[test]
fn a_program_without_memory_keeps_its_objects() {
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
fn a_program_with_no_free_descriptor_survives_moves() {
    run_and_move("hungry", &[1, 0, 1]);
}

#[test]
fn a_program_with_a_descriptor_limit_of_zero_survives_moves() {
    run_and_move("capped", &[1]);
}

#[test]
fn a_child_forked_during_attachment_can_attach() {
    run("attaching", &[]);
}

#[test]
fn received_messages_are_acknowledged_at_exit() {
    run("exits", &[]);
}

#[test]
fn a_program_outside_an_instance_gets_one_explanation() {
    let output = command("outside", &[]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((errors.lines().count(), output.stdout.len()), (1, 0), "{output:?}");
    assert!(errors.starts_with("transhume: no RDMA device") && errors.contains("`transhume run -- COMMAND`"));
    assert!(command("outside", &["deaf"]).status().unwrap().success());
}
