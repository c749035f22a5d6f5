//! What pins an instance is named.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use engine_criu::{Contents, Error, Needs, Report, Watch};

use crate::lab::{
    Host, Lab, Node, Output, PATIENCE, parent_of, process_of, program, relocate, signal, stop, workload,
};

fn report(host: &Host, words: &[&str]) -> Report {
    let spec = workload("pinned", 41, words);
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    host.call(|engine| engine.check(&spec.name, false)).unwrap()
}

#[test]
fn a_device_is_a_blocker_and_an_own_terminal_is_not() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let terminal = report(&a, &["open", "/dev/ptmx"]).blockers;
    assert!(terminal.is_empty(), "{terminal:?}");
    let device = report(&b, &["open", "/dev/net/tun"]).blockers;
    assert!(device[0].what.contains("the device /dev/net/tun open"), "{device:?}");
}

/// At the destination the network is as the node makes it.
#[test]
fn network_changes_of_the_instance_are_blockers() {
    let lab = Lab::new();
    for (host, command, expected) in [
        ("a", "addr add 10.9.9.9/32 dev lo", "the address 10.9.9.9"),
        ("b", "addr add fd00::9/64 dev lo", "the address fd00::9"),
        ("c", "route add 10.50.0.0/16 via 10.77.0.9", "a route to 10.50.0.0 via 10.77.0.9"),
        ("d", "link add br7 type bridge", "the network device br7"),
    ] {
        let found = report(&lab.host(host), &["extend", command]).blockers;
        assert!(found.len() == 1 && found[0].what.contains(expected), "{found:?}");
    }
}

#[test]
fn a_file_lock_is_a_blocker() {
    let lab = Lab::new();
    let host = lab.host("a");
    let path = host.config.state.join("locked");
    fs::write(&path, "").unwrap();
    for (host, path) in [(host, path.to_str().unwrap()), (lab.host("b"), "/dev/full")] {
        let found = report(&host, &["lock", path]).blockers;
        let [found] = &found[..] else { panic!("{found:?}") };
        assert!(found.what.ends_with(&format!("holds a lock on {path}")), "{found}");
    }
}

#[test]
fn a_momentary_lock_is_not_a_blocker() {
    let lab = Lab::new();
    let host = lab.host("a");
    let path = host.config.state.join("locked");
    fs::write(&path, "").unwrap();
    let spec = workload("hasty", 42, &["lock_often", path.to_str().unwrap()]);
    let (mut node, mut output) = (host.start(&spec), Output::default());
    for lines in 3..20 {
        node.read(&mut output, |output| output.lines() > lines);
        assert_eq!(host.call(|engine| engine.check(&spec.name, false)).unwrap().blockers, []);
    }
}

/// It may pass, and it may come after the check: it is looked for again when all is stopped.
#[test]
fn blockers_that_arise_after_the_check_stop_the_dump() {
    let lab = Lab::new();
    for (host, words, expected) in [
        ("a", &["pin", "orphan"][..], "has closed a connection"),
        ("b", &["pin", "reset"], "has an unread error"),
        ("c", &["lock", "/dev/full"], "holds a lock on"),
        ("d", &["leave_unread", "fifo"], "has unread data in the FIFO"),
        ("e", &["ignore"], "has not accepted an incoming connection"),
    ] {
        let host = lab.host(host);
        let directory = host.config.state.clone();
        let mut spec = workload("late", 46, words);
        program(&mut spec).directory = directory;
        let (mut node, mut output) = (host.start(&spec), Output::default());
        node.read(&mut output, |output| output.lines() > 2);
        let found = host.call(|engine| engine.check(&spec.name, false)).unwrap().blockers;
        assert!(found.iter().any(|found| found.what.contains(expected)), "{words:?}: {found:?}");
        node.suspend(&mut output);
        match host.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)) {
            Err(Error::Pinned { blocker, .. }) => assert!(blocker.what.contains(expected), "{blocker}"),
            other => panic!("{words:?}: {other:?}"),
        }
        let mut node = Node::accept(&host.listen(&spec.name));
        let before = output.lines();
        node.read(&mut output, |output| output.lines() > before + 10);
        output.assert_counts();
    }
}

/// What CRIU cannot carry, or would lose.
#[test]
fn sockets_and_namespaces_that_cannot_move_are_blockers() {
    let lab = Lab::new();
    for (host, kind, expected) in [
        ("a", "join", "the multicast group 239.1.2.3"),
        ("b", "urge", "has unread urgent data"),
        ("c", "queue", "has the message queue"),
        ("d", "unshare", "has a net namespace of its own"),
        ("e", "clock", "has a time namespace of its own"),
        ("f", "ping", "has a socket of IP protocol 1"),
        ("g", "namespace", "has the namespace net:["),
        ("h", "pipes", "pipes open"),
        ("i", "cork", "has a corked UDP socket open"),
        ("l", "semaphore", "has an eventfd in semaphore mode open"),
        ("n", "packets", "has a pipe in packet mode open"),
        ("p", "descriptors", "has not received descriptors that were sent to it"),
        ("q", "credentials", "has unread data with credentials in a Unix socket"),
        ("s", "memory", "runs a program from memory"),
        ("k", "left_behind", "contains code that a failed dump has left"),
        ("m", "unaccepted", "has not accepted a connection over a Unix socket"),
        ("v", "sealed", "has a shared mapping of /memfd:sealed, which is sealed"),
        ("w", "deadline", "has a thread with deadline scheduling"),
        ("x", "huge", "has /memfd:huge (deleted) open, which consists of huge pages"),
        ("y", "thread", "has a thread's pidfd open"),
        ("z", "children", "has a pid namespace for its children"),
        ("r", "time", "has a time namespace for its children"),
        ("t", "first_thread", "has ended while other threads run"),
        ("u", "directory", "shares its working directory with its parent"),
        ("o", "full", "descriptors open, which is its limit"),
        ("j", "answer", "has unread messages in a netlink socket"),
    ] {
        let found = report(&lab.host(host), &["pin", kind]).blockers;
        assert!(found.iter().any(|found| found.what.contains(expected)), "{kind}: {found:?}");
    }
}

/// CRIU binds it by the name that it was bound by.
#[test]
fn a_renamed_socket_is_a_blocker() {
    let lab = Lab::new();
    let host = lab.host("a");
    let path = host.config.state.join("socket");
    let found = report(&host, &["rename_socket", path.to_str().unwrap()]).blockers;
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(found.what.contains("has a Unix socket whose file was renamed"), "{found}");
}

/// CRIU cannot stop its parent meanwhile.
#[test]
fn a_vfork_child_is_a_blocker() {
    let lab = Lab::new();
    let found = report(&lab.host("a"), &["pin", "vfork"]).blockers;
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(found.what.ends_with("waits for a child created with vfork"), "{found}");
}

/// The node tells it to let go. The first process is told as one that uses RDMA.
#[test]
fn a_stopped_process_with_an_attachment_is_a_blocker() {
    let lab = Lab::new();
    let host = lab.host("a");
    let spec = workload("stopped", 44, &["count", "1000000"]);
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    let check = || host.call(|engine| engine.check(&spec.name, false)).unwrap().blockers;
    let command = process_of(&spec, &host.network_of(&spec.name));
    stop(command);
    assert_eq!(check(), []);

    let first = parent_of(command).unwrap();
    stop(first);
    let found = check();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(found.what.contains(&format!("({first}) is stopped")), "{found}");
    signal(first, libc::SIGCONT);
    assert_eq!(check(), []);
}

/// A mapped one is what a POSIX semaphore is to who made it, if it has a name.
#[test]
fn a_deleted_file_with_another_name_is_a_blocker() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let path = a.config.state.join("deleted");
    let path = path.to_str().unwrap();
    let spec = workload("deleting", 45, &["delete", path]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    let found = a.call(|engine| engine.check(&spec.name, false)).unwrap().blockers;
    assert_eq!(found.len(), 2, "{found:?}");
    for (found, how) in found.iter().zip(["mapped", "open"]) {
        let expected = format!("has {path} {how}, which is deleted but has another name");
        assert!(found.what.ends_with(&expected), "{found}");
    }

    fs::remove_file(format!("{path}.2")).unwrap();
    let mut node = relocate(node, &spec, &a, &b, &mut output);
    let moved = output.lines();
    node.read(&mut output, |output| output.lines() > moved + 10);
    output.assert_counts();
}

/// It would be another's at the destination, or nobody's.
#[test]
fn system_v_objects_are_blockers() {
    let lab = Lab::new();
    for (host, kind, option, expected) in [
        ("a", "semaphores", "-s", "uses the System V semaphores "),
        ("b", "messages", "-q", "uses the System V message queue "),
        ("c", "segment", "-m", "has System V shared memory created or used (segment "),
    ] {
        let found = report(&lab.host(host), &["pin", kind]).blockers;
        let [found] = &found[..] else { panic!("{kind}: {found:?}") };
        let (_, id) = found.what.split_once(expected).unwrap_or_else(|| panic!("{kind}: {found:?}"));
        // It would outlive the instance.
        let removed = Command::new("ipcrm").args([option, id.trim_end_matches(')')]).status();
        assert!(removed.unwrap().success(), "{kind}: {found:?}");
    }
}

/// What a host lacks, in words.
fn lacks(host: &Host, needs: &Needs) -> Vec<String> {
    host.call(|engine| engine.verify(needs)).unwrap().iter().map(ToString::to_string).collect()
}

/// Puts another file in the place of one, as if that were another host's.
fn replace(path: &Path, fill: impl FnOnce(&File)) {
    let other = path.with_extension("other");
    fill(&File::create_new(&other).unwrap());
    fs::rename(other, path).unwrap();
}

fn is_another(path: &Path) -> Vec<String> {
    let remedy = "keep it on a file system that both hosts mount from the same source";
    vec![format!("{} is in use and is a different file at the destination: {remedy}", path.display())]
}

#[test]
fn an_open_file_must_exist_at_the_destination() {
    let lab = Lab::new();
    let host = lab.host("a");
    let path = host.config.state.join("data");
    fs::write(&path, "some").unwrap();
    let found = report(&host, &["open", path.to_str().unwrap()]);
    assert_eq!(found.blockers, []);
    assert_eq!(lacks(&host, &found.needs), [""; 0]);

    fs::remove_file(&path).unwrap();
    let missing = lacks(&host, &found.needs);
    assert!(missing.len() == 1 && missing[0].contains(path.to_str().unwrap()), "{missing:?}");
}

/// Also by others: what is on a file system that both hosts share is one file, and is not looked into.
#[test]
fn a_shared_file_may_change_between_the_checks() {
    let lab = Lab::new();
    for (host, words) in [(lab.host("a"), "open"), (lab.host("b"), "map")] {
        let path = host.config.state.join("data");
        fs::write(&path, "some").unwrap();
        let needs = report(&host, &[words, path.to_str().unwrap()]).needs;
        File::options().append(true).open(&path).unwrap().write_all(b" more").unwrap();
        assert_eq!(lacks(&host, &needs), [""; 0], "{words}: longer");
        for contents in ["else", "no"] {
            fs::write(&path, contents).unwrap();
            assert_eq!(lacks(&host, &needs), [""; 0], "{words}: {contents}");
        }
    }
}

#[test]
fn a_file_of_its_own_at_the_destination_must_be_a_copy() {
    let lab = Lab::new();
    for (host, words) in [(lab.host("a"), "open"), (lab.host("b"), "map")] {
        let path = host.config.state.join("data");
        fs::write(&path, "some").unwrap();
        let needs = report(&host, &[words, path.to_str().unwrap()]).needs;
        for (contents, expected) in [
            ("some", vec![]),
            ("else", is_another(&path)),
            ("some more", is_another(&path)),
            ("so", is_another(&path)),
        ] {
            replace(&path, |mut file| file.write_all(contents.as_bytes()).unwrap());
            assert_eq!(lacks(&host, &needs), expected, "{words}: {contents}");
        }
    }
}

#[test]
fn a_difference_at_the_end_of_a_huge_file_is_found_quickly() {
    const SIZE: u64 = 1 << 40;
    let lab = Lab::new();
    let host = lab.host("a");
    let path = host.config.state.join("huge");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    let begin = Instant::now();
    let needs = report(&host, &["open", path.to_str().unwrap()]).needs;
    replace(&path, |file| file.set_len(SIZE).unwrap());
    assert_eq!(lacks(&host, &needs), [""; 0]);
    replace(&path, |file| file.write_all_at(b"end", SIZE - 3).unwrap());
    assert_eq!(lacks(&host, &needs), is_another(&path));
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn libraries_are_compared_by_build_id() {
    let lab = Lab::new();
    let found = report(&lab.host("a"), &["count", "1000000"]);
    let library = found.needs.files.iter().find(|file| file.path.to_string_lossy().contains("libc.so"));
    assert!(matches!(library.unwrap().contents, Contents::Build(_)), "{library:?}");
    assert!(found.needs.memory > 100 << 10);
}

#[test]
fn shared_memory_counts_once() {
    let lab = Lab::new();
    let needed = report(&lab.host("a"), &["share", "64"]).needs.memory >> 20;
    assert!((64..96).contains(&needed), "{needed} MiB");
}

#[test]
fn a_node_in_another_namespace_is_distinguished_from_a_sandbox() {
    let lab = Lab::new();
    let host = lab.host("a");
    // SAFETY: this test's thread goes on with no System V object.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWIPC) }, 0);
    let found = report(&host, &["count", "1000000"]).blockers;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("the node runs in another ipc namespace"), "{found:?}");
}
