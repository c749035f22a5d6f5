//! Moves that succeed, and rollbacks: what ran goes on as if nothing had happened.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use engine_criu::{Config, Watch};
use fabric::attach::ToProcess;
use instance::InstanceSpec;

use crate::lab::{
    Host, Lab, Node, Output, PATIENCE, parent_of, process_of, program, relocate, relocate_when, signal, stop,
    wait_for_state, workload,
};

#[test]
fn a_command_runs_to_its_end_and_its_output_arrives() {
    let lab = Lab::new();
    let host = lab.host("a");
    let spec = workload("short", 1, &["count", "20"]);
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.code.is_some());
    assert_eq!((output.lines(), output.code), (20, Some(7)));
    node.send(&ToProcess::Farewell);
    assert!(host.call(|engine| engine.wait(&spec.name, PATIENCE)).unwrap());
}

/// What is lost on its way is sent again, also when nobody is there any more who has sent it.
#[test]
fn the_last_output_of_an_instance_arrives() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let trigger = a.config.state.join("trigger");
    let server = workload("hearing", 21, &["serve", "10.77.0.21:7000"]);
    let spec = workload("saying", 22, &["say", "10.77.0.21:7000", trigger.to_str().unwrap()]);
    let (mut hearing, mut heard) = (b.start(&server), Output::default());
    hearing.read(&mut heard, |output| output.lines() > 0);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 0);
    let nft = |rules: &str| {
        a.call(|_| assert!(Command::new("nft").arg(rules).status().unwrap().success()));
    };
    let hook = "type filter hook forward priority 0; policy drop;";
    nft(&format!("add table bridge cut; add chain bridge cut forward {{ {hook} }}"));
    fs::write(trigger, "").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sleep(Duration::from_millis(300));
            nft("delete table bridge cut");
        });
        node.read(&mut output, |output| output.code.is_some());
    });
    node.send(&ToProcess::Farewell);
    a.call(|engine| engine.destroy(&spec.name)).unwrap();
    hearing.read(&mut heard, |output| output.code.is_some());
    assert_eq!((heard.lines(), heard.code), (2, Some(0)));
}

/// Nothing else wakes init then: what the command has left keeps its output open.
#[test]
fn an_exit_right_after_output_is_reported() {
    let lab = Lab::new();
    let host = lab.host("a");
    let trigger = host.config.state.join("trigger");
    let spec = workload("leaving", 2, &["leave", trigger.to_str().unwrap()]);
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() == 1);
    let command = process_of(&spec, &host.network_of(&spec.name));
    let init = parent_of(command).unwrap();
    stop(init);
    fs::write(trigger, "").unwrap();
    wait_for_state(command, 'Z');
    signal(init, libc::SIGCONT);
    node.read(&mut output, |output| output.code.is_some());
    assert_eq!((output.lines(), output.code), (2, Some(3)));
}

#[test]
fn a_short_command_that_has_ended_counts_as_started() {
    let lab = Lab::new();
    let host = lab.host_with("a", |config| config.init = vec!["/bin/true".into()]);
    for number in 50..60 {
        let spec = workload(&format!("brief{number}"), number, &[]);
        host.call(|engine| {
            engine.prepare(&spec, 0).unwrap();
            engine.start(&spec.name).unwrap();
            assert!(engine.wait(&spec.name, PATIENCE).unwrap());
            engine.destroy(&spec.name).unwrap();
        });
    }
}

#[test]
fn a_missing_command_is_reported() {
    let lab = Lab::new();
    let host = lab.host("a");
    let mut spec = workload("missing", 1, &[]);
    program(&mut spec).command = vec!["no-such-program".into()];
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.not_started.is_some());
    let why = output.not_started.unwrap();
    assert!(why.code == 127 && why.what.contains("`no-such-program`"), "{why:?}");
    assert!(!output.started && output.code.is_none());
}

#[test]
fn an_unexecutable_command_and_a_missing_directory_are_distinguished() {
    let lab = Lab::new();
    let host = lab.host("a");
    let cases = [("/etc/passwd", "/", "executable"), ("true", "/no/such", "directory")];
    for (number, (command, directory, expected)) in (39..).zip(cases) {
        let mut spec = workload(&format!("unfit{number}"), number, &[]);
        let program = program(&mut spec);
        (program.command, program.directory) = (vec![command.into()], directory.into());
        let (mut node, mut output) = (host.start(&spec), Output::default());
        node.read(&mut output, |output| output.not_started.is_some());
        let why = output.not_started.unwrap();
        assert!(why.code == 126 && why.remedy.contains(expected), "{why:?}");
    }
}

#[test]
fn a_command_has_no_descriptors_of_the_node_s_parent() {
    let lab = Lab::new();
    let host = lab.host("a");
    // SAFETY: a copy of standard error above all others, inheritable and left open, changes nothing for other tests.
    assert_ne!(unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD, 900) }, -1);
    let mut spec = workload("inherits", 1, &[]);
    program(&mut spec).command = ["/bin/ls", "/proc/self/fd"].map(str::to_owned).into();
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.code.is_some());
    // The last one is the folder that it lists.
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n1\n2\n3\n");
}

#[test]
fn output_is_neither_lost_nor_repeated_by_moves() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("counting", 2, &["count", "1000"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 100);
    let mut node = relocate(node, &spec, &a, &b, &mut output);
    assert!(node.resumed);
    let moved = output.lines();
    node.read(&mut output, |output| output.lines() > moved + 100);
    let mut node = relocate(node, &spec, &b, &a, &mut output);
    node.read(&mut output, |output| output.code.is_some());
    output.assert_counts();
    assert_eq!((output.lines(), output.code), (1000, Some(7)));
}

#[test]
fn image_folders_may_be_relative_paths() {
    let lab = Lab::new();
    let here = std::env::current_dir().unwrap();
    let root: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = |config: &mut Config| {
        for folder in &mut config.images {
            *folder = root.join(folder.strip_prefix("/").unwrap());
        }
    };
    let (a, b) = (lab.host_with("a", relative), lab.host_with("b", relative));
    let spec = workload("related", 17, &["count", "1000000"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 10);
    let mut node = relocate(node, &spec, &a, &b, &mut output);
    let moved = output.lines();
    node.read(&mut output, |output| output.lines() > moved + 10);
    output.assert_counts();
}

#[test]
fn a_command_waits_while_its_output_is_not_read() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("flooding", 3, &["flood", "100000"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 1000);
    let mut node = relocate(node, &spec, &a, &b, &mut output);
    node.read(&mut output, |output| output.code.is_some());
    output.assert_counts();
    assert_eq!((output.lines(), output.code), (100_000, Some(0)));
}

#[test]
fn threads_children_pipes_and_memfds_move() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("mixed", 4, &["mixed"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 50);
    let mut node = relocate(node, &spec, &a, &b, &mut output);
    let moved = output.lines();
    node.read(&mut output, |output| output.lines() > moved + 50);
    output.assert_counts();
}

/// Where the node may not read a user's limits, as in many containers, that is what is said.
#[test]
fn an_unprivileged_instance_moves_or_names_the_missing_capability() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let mut spec = workload("user", 9, &[]);
    // The workload itself may lie where only root gets to, as in a clone in root's home.
    let script = "i=0; while echo $i; do i=$((i + 1)); sleep 0.01; done";
    program(&mut spec).command = ["/bin/sh", "-c", script].map(str::to_owned).into();
    (program(&mut spec).user, program(&mut spec).group) = (65534, 65534);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 50);
    let report = a.call(|engine| engine.check(&spec.name, false)).unwrap();
    match &report.blockers[..] {
        [] => {
            let mut node = relocate(node, &spec, &a, &b, &mut output);
            let moved = output.lines();
            node.read(&mut output, |output| output.lines() > moved + 50);
            output.assert_counts();
        }
        lacks => assert!(lacks.iter().all(|lack| lack.remedy.contains("CAP_SYS_RESOURCE")), "{lacks:?}"),
    }
}

#[test]
fn a_tcp_connection_survives_moves_of_both_ends() {
    let lab = Lab::new();
    let (a, b, c) = (lab.host("a"), lab.host("b"), lab.host("c"));
    let server = workload("server", 5, &["serve", "10.77.0.5:7000"]);
    let client = workload("client", 6, &["ask", "10.77.0.5:7000"]);
    let (mut serving, mut server_output) = (a.start(&server), Output::default());
    serving.read(&mut server_output, |output| output.lines() > 0);
    let (mut asking, mut output) = (b.start(&client), Output::default());
    asking.read(&mut output, |output| output.lines() > 20);

    let mut asking = relocate(asking, &client, &b, &c, &mut output);
    let moved = output.lines();
    asking.read(&mut output, |output| output.lines() > moved + 20);
    relocate(serving, &server, &a, &b, &mut server_output);
    let moved = output.lines();
    asking.read(&mut output, |output| output.lines() > moved + 500);
    let mut asking = relocate(asking, &client, &c, &b, &mut output);
    let moved = output.lines();
    asking.read(&mut output, |output| output.lines() > moved + 20);
    output.assert_counts();
}

/// What comes for a stopped instance must not be acknowledged in its place.
#[test]
fn a_tcp_stream_loses_nothing_when_either_end_moves() {
    let lab = Lab::new();
    let (a, b, c) = (lab.host("a"), lab.host("b"), lab.host("c"));
    let sink = workload("sink", 12, &["drink", "10.77.0.12:7000"]);
    let source = workload("source", 13, &["pour", "10.77.0.12:7000"]);
    let (mut drinking, mut drunk) = (a.start(&sink), Output::default());
    let (mut pouring, mut poured) = (b.start(&source), Output::default());
    drinking.read(&mut drunk, |output| output.lines() > 20);
    for (from, to) in [(&a, &c), (&c, &a)] {
        drinking = relocate(drinking, &sink, from, to, &mut drunk);
        let moved = drunk.lines();
        drinking.read(&mut drunk, |output| output.lines() > moved + 100);
    }
    pouring.read(&mut poured, |output| output.lines() > 20);
    for (from, to) in [(&b, &c), (&c, &b)] {
        pouring = relocate(pouring, &source, from, to, &mut poured);
        let moved = drunk.lines();
        drinking.read(&mut drunk, |output| output.lines() > moved + 100);
    }
    drunk.assert_counts();
    poured.assert_counts();
}

/// Starts a program that counts as long as it finds all as it was, and moves it away and back.
fn comes_along(a: &Host, b: &Host, spec: &InstanceSpec) {
    let (mut node, mut output) = (a.start(spec), Output::default());
    node.read(&mut output, |output| output.lines() > 10);
    goes_on_after_moves(node, &mut output, a, b, spec);
}

fn goes_on_after_moves(mut node: Node, output: &mut Output, a: &Host, b: &Host, spec: &InstanceSpec) -> Node {
    for (from, to) in [(a, b), (b, a)] {
        node = relocate(node, spec, from, to, output);
        let moved = output.lines();
        node.read(output, |output| output.lines() > moved + 10);
    }
    output.assert_counts();
    node
}

/// CRIU knows such a file by its process' number, which differs from host to host.
#[test]
fn a_process_keeps_its_open_proc_self_files() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("reading", 15, &["know_itself"]);
    comes_along(&a, &b, &spec);
}

/// A lock on a file with a name would be lost, or waited for, and pins. These are nobody else's.
#[test]
fn locks_on_unnamed_files_move() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let path = a.config.state.join("locked");
    let spec = workload("locking", 19, &["lock_unnamed", path.to_str().unwrap()]);
    comes_along(&a, &b, &spec);
}

/// It is mapped like a deleted file that has another name, which would pin.
#[test]
fn an_asynchronous_io_ring_moves() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("ring", 21, &["await_disks"]);
    comes_along(&a, &b, &spec);
}

#[test]
fn file_names_may_contain_any_bytes() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let directory = a.config.images[0].parent().unwrap();
    let spec = workload("odd", 20, &["name_oddly", directory.to_str().unwrap()]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 10);
    let needs = a.call(|engine| engine.check(&spec.name, false)).unwrap().needs;
    let odd = directory.join(OsStr::from_bytes(b"\xff"));
    for path in [odd.join(odd.file_name().unwrap()), odd] {
        assert!(needs.files.iter().any(|file| file.path == path), "{needs:?}");
    }
    goes_on_after_moves(node, &mut output, &a, &b, &spec);
}

/// Each instance has one of its own, which is its host's until it changes it.
#[test]
fn the_host_name_moves() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let before = fs::read("/proc/sys/kernel/hostname").unwrap();
    comes_along(&a, &b, &workload("called", 22, &["keep_name", "elsewhere"]));
    assert_eq!(fs::read("/proc/sys/kernel/hostname").unwrap(), before);
}

/// CRIU does not carry them, or not as they were.
#[test]
fn sockets_keep_their_options() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("options", 16, &["keep_options"]);
    comes_along(&a, &b, &spec);
}

/// CRIU does not carry it.
#[test]
fn threads_keep_their_scheduling() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("scheduled", 19, &["keep_scheduling"]);
    comes_along(&a, &b, &spec);
}

/// Those of a stopped tree expire meanwhile, which CRIU takes for the end of those behind descriptors; and it
/// would have one for a point in time expire early.
#[test]
fn timers_continue_after_a_move() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("timers", 18, &["keep_time"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 10);
    for (from, to) in [(&a, &b), (&b, &a), (&a, &b), (&b, &a)] {
        node = relocate(node, &spec, from, to, &mut output);
        let moved = output.lines();
        node.read(&mut output, |output| output.lines() > moved + 10 || !output.stderr.is_empty());
        output.assert_counts();
    }
}

/// Their times are about as long as the dump takes, so that in each some expire in the middle of it.
#[test]
fn timers_that_expire_during_the_dump_deliver_their_signals() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("alarms", 49, &["expire_once", "128"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 3);
    for (from, to) in [(&a, &b), (&b, &a), (&a, &b), (&b, &a)] {
        node = relocate(node, &spec, from, to, &mut output);
        let moved = output.lines();
        node.read(&mut output, |output| output.lines() > moved + 3 || !output.stderr.is_empty());
        output.assert_counts();
    }
}

/// CRIU has it end with `EINTR`.
#[test]
fn interrupted_system_calls_resume_their_wait() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    comes_along(&a, &b, &workload("waits", 50, &["keep_waiting"]));
}

/// Handled first, the signal would end nothing. It comes while the memory is dumped.
#[test]
fn a_signal_during_the_dump_ends_a_waiting_call() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    comes_along(&a, &b, &workload("ended", 51, &["end_by_timer", "20", "128"]));
}

/// The same where it may come when the instance is about to go on.
#[test]
fn a_signal_during_the_restore_ends_a_waiting_call() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("early", 53, &["end_by_timer", "5", "0"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    for _ in 0..5 {
        node.read(&mut output, |output| output.lines() > 1);
        node = goes_on_after_moves(node, &mut output, &a, &b, &spec);
    }
}

/// On its way to stop at the source a child may have ended.
#[test]
fn children_killed_by_a_timer_end() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("children", 54, &["end_children"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    for _ in 0..4 {
        node.read(&mut output, |output| output.lines() > 1);
        node = goes_on_after_moves(node, &mut output, &a, &b, &spec);
    }
}

/// What one process sends to another while both are being dumped arrives, too.
#[test]
fn connections_within_an_instance_lose_no_data() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let trigger = a.config.state.join("trigger");
    let spec = workload("inside", 14, &["listen", trigger.to_str().unwrap()]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() == 1);
    let mut node = relocate_when(node, &spec, &a, &b, &mut output, |node, output| {
        fs::write(&trigger, "").unwrap();
        node.read(output, |output| output.lines() == 2);
        fs::remove_file(&trigger).unwrap();
    });
    node.read(&mut output, |output| output.code.is_some());
    output.assert_counts();
    assert_eq!((output.lines(), output.code), (66, Some(1)));
}

/// CRIU sends what was not sent yet as soon as it has restored that end; the other may not be there yet.
#[test]
fn full_connections_within_an_instance_move() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let trigger = a.config.state.join("trigger");
    let spec = workload("full", 16, &["fill", trigger.to_str().unwrap()]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    // Both ends are full.
    node.read(&mut output, |output| output.lines() == 2);
    for (from, to) in [(&a, &b), (&b, &a), (&a, &b)] {
        node = relocate(node, &spec, from, to, &mut output);
    }
    fs::write(&trigger, "").unwrap();
    node.read(&mut output, |output| output.code.is_some());
    fs::remove_file(&trigger).unwrap();
    assert_eq!((output.lines(), output.code), (3, Some(0)), "{}", String::from_utf8_lossy(&output.stderr));
}

/// TCP that is refused gives up early.
#[test]
fn full_connections_survive_a_long_stop() {
    let lab = Lab::new();
    let host = lab.host("a");
    let trigger = host.config.state.join("trigger");
    let spec = workload("patient", 20, &["fill", trigger.to_str().unwrap()]);
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() == 2);
    node.suspend(&mut output);
    host.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).unwrap();
    sleep(Duration::from_secs(10));
    let listener = host.listen(&spec.name);
    host.call(|engine| engine.resume(&spec.name)).unwrap();
    let mut node = Node::accept(&listener);
    // Its peers have no room still, and TCP asks them for it.
    sleep(Duration::from_secs(2));
    fs::write(&trigger, "").unwrap();
    node.read(&mut output, |output| output.code.is_some());
    fs::remove_file(&trigger).unwrap();
    assert_eq!((output.lines(), output.code), (3, Some(0)), "{}", String::from_utf8_lossy(&output.stderr));
}

/// CRIU cannot stop a thread that is about to end. It comes to that in one of some fifty dumps here.
#[test]
fn a_thread_may_end_while_its_process_is_being_stopped() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("brief", 24, &["brief"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    for _ in 0..40 {
        node.suspend(&mut output);
        a.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).unwrap();
        let listener = a.listen(&spec.name);
        a.call(|engine| engine.resume(&spec.name)).unwrap();
        node = Node::accept(&listener);
    }
    // Nothing of CRIU's is left that could not be restored.
    relocate(node, &spec, &a, &b, &mut output);
}

/// CRIU has three in the process for a while.
#[test]
fn a_process_near_its_descriptor_limit_moves_or_is_a_blocker() {
    let lab = Lab::new();
    let with_limit = |number, limit: &str| {
        let mut spec = workload("few", number, &["count", "1000000"]);
        let command = program(&mut spec).command.join(" ");
        let limited = ["sh", "-c", &format!("ulimit -n {limit}; exec {command}")];
        program(&mut spec).command = limited.map(str::to_owned).into();
        spec
    };
    let (a, b) = (lab.host("a"), lab.host("b"));
    comes_along(&a, &b, &with_limit(18, "6"));
    let (host, spec) = (lab.host("c"), with_limit(19, "5"));
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    let found = host.call(|engine| engine.check(&spec.name, true)).unwrap().blockers;
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(found.what.ends_with("has 3 descriptors open, which is its limit"), "{found}");
}

/// It could not come along.
#[test]
fn multipath_tcp_is_disabled_in_instances() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    comes_along(&a, &b, &workload("single", 48, &["listen_on_one_path"]));
}

/// Nobody has the closed end any more: CRIU does not bring it along.
#[test]
fn half_closed_connections_within_an_instance_move() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    comes_along(&a, &b, &workload("half", 47, &["read_to_the_end"]));
}

#[test]
fn a_rolled_back_instance_runs_on_with_its_connections() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let server = workload("server", 7, &["serve", "10.77.0.7:7000"]);
    let client = workload("client", 8, &["ask", "10.77.0.7:7000"]);
    let (mut serving, mut server_output) = (a.start(&server), Output::default());
    serving.read(&mut server_output, |output| output.lines() > 0);
    let (mut asking, mut output) = (b.start(&client), Output::default());
    asking.read(&mut output, |output| output.lines() > 20);

    asking.suspend(&mut output);
    b.call(|engine| engine.suspend(&client.name, None, &Watch::QUIET)).unwrap();
    let listener = b.listen(&client.name);
    b.call(|engine| engine.resume(&client.name)).unwrap();
    let mut asking = Node::accept(&listener);
    let stopped = output.lines();
    asking.read(&mut output, |output| output.lines() > stopped + 500);
    output.assert_counts();
}
