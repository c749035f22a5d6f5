//! Containers: a move carries what is theirs, and finds the rest on the other host.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use engine_criu::{Config, ContainerConfig, Error, Phase, State, Watch};
use fabric::seqpacket;
use instance::{Container, ContainerImage, InstanceName, InstanceSpec, Root, Workload};
use oci_image::Source;
use serde_json::{Value, json};

use crate::faults::{hold, runs, suspended};
use crate::lab::{
    self, Host, Lab, Node, Output, container, parent_of, process_of, program, relocate, suspend_and_kill,
    workload,
};

const PROCESSES: &str = "17";

/// A host that runs containers.
fn host(lab: &Lab, name: &str) -> Host {
    host_with_runtime(lab, name, "runc")
}

fn host_with_runtime(lab: &Lab, name: &str, runtime: &str) -> Host {
    lab.host_with(name, |config| {
        let (folder, unpacked) = (containers_of(config), unpacked_of(config));
        let runtime = Some(runtime.into());
        config.containers =
            Some(ContainerConfig { runtime, folder, unpacked, libraries: None, hosts: None, devices: None });
    })
}

fn unpacked_of(config: &Config) -> PathBuf {
    config.images[0].with_extension("unpacked")
}

fn containers_of(config: &Config) -> PathBuf {
    config.images[0].with_extension("containers")
}

/// In a container with the machine's own files, and a folder that it shares with the host.
fn contained(spec: InstanceSpec, shared: &Path) -> InstanceSpec {
    let mount = |place: &str, kind: &str| json!({ "destination": place, "type": kind, "source": kind });
    let bind =
        |path: &Path, source: &Path| json!({ "destination": path, "source": source, "options": ["bind"] });
    let capabilities = json!(["CAP_SETGID", "CAP_SETUID", "CAP_KILL", "CAP_DAC_OVERRIDE"]);
    let config = json!({
        "process": { "capabilities": {
            "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
        } },
        "mounts": [
            mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/dev/pts", "devpts"),
            mount("/dev/shm", "tmpfs"), mount("/sys", "sysfs"), bind(&lab::examples(), &lab::examples()), bind(shared, &link_to(shared)),
        ],
        "linux": { "resources": { "pids": { "limit": PROCESSES.parse::<u32>().unwrap() } } },
    });
    let (program, root) = (spec.program().unwrap().clone(), Root::Directory("/".into()));
    let container = Container { program, root, config: config.to_string(), rdma: false };
    InstanceSpec { workload: Workload::Container(container), ..spec }
}

/// Its programs find the RDMA device.
fn with_rdma(mut spec: InstanceSpec) -> InstanceSpec {
    container(&mut spec).rdma = true;
    spec
}

/// It also sees a file of the host, which nobody opens.
fn with_volume(spec: InstanceSpec, file: &Path) -> InstanceSpec {
    with_volumes(spec, &[("/volume", file, &["ro"])])
}

/// It also sees these of the host: where, what, and with which options.
fn with_volumes(mut spec: InstanceSpec, volumes: &[(&str, &Path, &[&str])]) -> InstanceSpec {
    let container = container(&mut spec);
    let mut config: Value = serde_json::from_str(&container.config).unwrap();
    let binds = volumes.iter().map(|(place, source, options)| {
        let options = [&["bind"], *options].concat();
        json!({ "destination": place, "source": source, "options": options })
    });
    config["mounts"].as_array_mut().unwrap().extend(binds);
    container.config = config.to_string();
    spec
}

/// By which the host knows it.
fn link_to(shared: &Path) -> PathBuf {
    shared.with_extension("link")
}

fn shared(lab: &Lab) -> PathBuf {
    let folder = lab.folder().join("shared");
    fs::create_dir(&folder).unwrap();
    symlink(&folder, link_to(&folder)).unwrap();
    folder
}

/// Counts as long as all is as it was left: files that were changed, made and deleted, in memory as well and when, a name, a shared
/// memory segment, and a terminal.
const KEEPER: &str = r#"
    rm /etc/debian_version && echo own >>/etc/hosts && echo new >/new && echo kept >/dev/shm/kept
    ipcmk -M 4096 >/dev/null && exec 3>>/log 4>>$SHARED/log || exit 7
    when=$(stat -c %y /dev/shm/kept)
    i=0
    while :; do
        [ ! -e /etc/debian_version ] && [ "$(tail -n 1 /etc/hosts)" = own ] && [ "$(cat /new)" = new ] || exit 8
        [ "$(cat /dev/shm/kept)" = kept ] && [ "$(stat -c %y /dev/shm/kept)" = "$when" ] || exit 11
        [ "$(hostname)" = keeper ] && ipcs -m | grep -q 4096 || exit 9
        [ "$(wc -l </log)" = $i ] && [ "$(wc -l <$SHARED/log)" = $i ] && [ $$ -lt 100 ] || exit 10
        echo $i; echo $i >&3; echo $i >&4
        i=$((i + 1))
    done"#;

#[test]
fn a_container_keeps_its_changes_and_does_not_modify_its_image() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let shared = shared(&lab);
    let mut spec = contained(workload("keeper", 70, &[]), &shared);
    let in_terminal = format!("stty -onlcr; {KEEPER}");
    program(&mut spec).command = ["script", "-qec", &in_terminal, "/dev/null"].map(str::to_owned).into();
    program(&mut spec).environment.push(("SHARED".into(), shared.to_str().unwrap().into()));
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let mut from_to = [(&a, &b), (&b, &a)].into_iter();
    for (from, to) in from_to.by_ref() {
        node = relocate(node, &spec, from, to, &mut output);
        let lines = output.lines();
        node.read(&mut output, |output| output.lines() > lines + 5);
        output.assert_counts();
        assert_eq!(limit_of_processes(&spec, to), PROCESSES);
        assert!(from.is_empty());
    }
    assert!(Path::new("/etc/debian_version").exists() && !Path::new("/new").exists());
    let cgroup = cgroup_of(&spec, &a);
    a.call(|engine| engine.destroy(&spec.name)).unwrap();
    assert!(a.is_empty() && !cgroup.exists(), "{}", cgroup.display());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(containers_of(&a.config).to_str().unwrap()), "{mounts}");
}

/// CRIU changes the layer while it is packed, as long as that takes.
#[test]
fn a_container_with_many_written_files_moves_at_once() {
    const FILES: &str = "6000";
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let mut spec = contained(workload("writer", 72, &[]), &shared(&lab));
    let write = format!("mkdir /root/many; cd /root/many; for n in $(seq {FILES}); do echo $n > $n; done");
    let count = "for n in $(seq 1000000); do echo $(($n - 1)); sleep 0.02; done";
    program(&mut spec).command = ["sh", "-c", &format!("{write}; {count}")].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    let mut node = relocate(node, &spec, &a, &b, &mut output);
    let lines = output.lines();
    node.read(&mut output, |output| output.lines() > lines + 5);
    output.assert_counts();
    let root = format!("/proc/{}/root", process_of(&spec, &b.network_of(&spec.name)));
    let written = fs::read_dir(format!("{root}/root/many")).unwrap().count();
    assert_eq!(written.to_string(), FILES);
    let of_criu = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("cr-tmpfs");
    let left = ["", "/tmp"].map(|folder| fs::read_dir(root.clone() + folder).unwrap().flatten());
    assert!(!left.into_iter().flatten().any(|entry| of_criu(&entry)));
}

/// CRIU would look for it by another name.
#[test]
fn an_open_proc_directory_is_a_blocker() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let mut spec = contained(workload("looking", 73, &[]), &shared(&lab));
    program(&mut spec).command =
        ["sh", "-c", "exec 3</proc/1; while sleep 0.01; do echo; done"].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    let found = a.call(|engine| engine.check(&spec.name, true)).unwrap().blockers;
    assert!(found.iter().any(|found| found.what.ends_with("has the directory /proc/1 open")), "{found:?}");
}

/// Has databases open that travel, one that nobody finds any more, one that is read only, and one on a file system that both hosts have.
const LIBRARIAN: &str = "
import os, sqlite3, sys, time
databases = {}
for path in ['/root/a.db', '/dev/shm/b.db', '/root/deleted.db', '/root/read.db', sys.argv[1]]:
    databases[path] = sqlite3.connect(path)
    databases[path].execute('create table words (word)')
os.remove('/root/deleted.db')
databases['/root/read.db'].close()
databases['/root/read.db'] = sqlite3.connect('file:/root/read.db?mode=ro', uri=True)
while True:
    print('open', flush=True)
    time.sleep(0.01)
";

#[test]
fn an_open_sqlite_database_in_the_layer_is_a_blocker() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let shared = shared(&lab);
    let mut spec = contained(workload("librarian", 89, &[]), &shared);
    let database = shared.join("c.db");
    program(&mut spec).command =
        ["/usr/bin/python3", "-c", LIBRARIAN, database.to_str().unwrap()].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    for is_saved in [false, true] {
        let found = a.call(|engine| engine.check(&spec.name, is_saved)).unwrap().blockers;
        let names = |path: &str| found.iter().any(|it| it.what.contains(&format!("database {path} open")));
        assert!(found.len() == 2 && names("/root/a.db") && names("/dev/shm/b.db"), "{found:?}");
    }
}

/// Digs folders below each other, and counts then.
const DIGGER: &str = "
import os, time
folder = os.open('/', os.O_RDONLY)
for _ in range(21):
    os.mkdir('d' * 200, dir_fd=folder)
    below = os.open('d' * 200, os.O_RDONLY, dir_fd=folder)
    os.close(folder)
    folder = below
os.close(folder)
while True:
    print('dug', flush=True)
    time.sleep(0.01)
";

/// What packs it takes any path, and what unpacks it does not.
#[test]
fn a_path_that_is_too_long_is_found_before_the_move() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let mut spec = contained(workload("digger", 88, &[]), &shared(&lab));
    program(&mut spec).command = ["/usr/bin/python3", "-c", DIGGER].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    let found = a.call(|engine| engine.check(&spec.name, true)).unwrap().blockers;
    let beginning = format!("the path /{}… in the container has 4221 bytes", "d".repeat(59));
    assert!(found.len() == 1 && found[0].what.starts_with(&beginning), "{found:?}");
    a.call(|engine| engine.destroy(&spec.name)).unwrap();
    assert!(a.is_empty());
}

/// Where the container's cgroup counts processes.
fn cgroup_of(spec: &InstanceSpec, host: &Host) -> PathBuf {
    let process = process_of(spec, &host.network_of(&spec.name));
    let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let line = cgroups.lines().find(|line| line.contains(":pids:") || line.starts_with("0::/transhume"));
    let path = line.unwrap().rsplit(':').next().unwrap().trim_start_matches('/');
    let hierarchies = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
    hierarchies.into_iter().map(|root| root.join(path)).find(|path| path.exists()).unwrap()
}

fn limit_of_processes(spec: &InstanceSpec, host: &Host) -> String {
    fs::read_to_string(cgroup_of(spec, host).join("pids.max")).unwrap().trim().to_owned()
}

#[test]
fn missing_requirements_are_found_before_the_move() {
    let lab = Lab::new();
    let (a, b, bare) = (host(&lab, "a"), host(&lab, "b"), lab.host("c"));
    let shared = shared(&lab);
    let spec = contained(workload("needy", 71, &["count", "1000071"]), &shared);
    let file = lab.folder().join("volume");
    fs::write(&file, "as at the source").unwrap();
    let spec = with_volume(spec, &file);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let needs = a.call(|engine| engine.check(&spec.name, false)).unwrap().needs;
    let lacks = |host: &Host| -> Vec<String> {
        host.call(|engine| engine.verify(&needs)).unwrap().into_iter().map(|lack| lack.to_string()).collect()
    };
    assert_eq!(lacks(&b), [""; 0]);
    assert!(lacks(&bare)[0].contains("no OCI runtime"));
    let kept = file.with_extension("kept");
    fs::rename(&file, &kept).unwrap();
    fs::write(&file, "as at the others").unwrap();
    assert!(lacks(&b)[0].starts_with(&format!("{} is in use and is a different file", file.display())));
    fs::rename(&kept, &file).unwrap();
    let (shared, elsewhere) = (link_to(&shared), shared.with_extension("elsewhere"));
    fs::rename(&shared, &elsewhere).unwrap();
    assert!(
        lacks(&b)[0].starts_with(&format!("{} is in use and does not exist at the dest", shared.display()))
    );
    let refused = b.call(|engine| engine.prepare(&spec, 0)).unwrap_err().to_string();
    assert!(refused.contains(&format!("{}, which `needy` mounts, is not on this host", shared.display())));
    assert!(b.is_empty());
    fs::rename(&elsewhere, &shared).unwrap();
    relocate(node, &spec, &a, &b, &mut output);
}

#[test]
fn errors_of_the_runtime_are_reported_and_leave_nothing_behind() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let spec = contained(workload("refused", 72, &[]), &shared(&lab));
    let with = |change: &dyn Fn(&mut Value)| {
        let mut spec = spec.clone();
        let container = container(&mut spec);
        let mut config = serde_json::from_str(&container.config).unwrap();
        change(&mut config);
        container.config = config.to_string();
        a.call(|engine| engine.prepare(&spec, 0)).unwrap_err().to_string()
    };
    let refused = with(&|config| config["linux"]["resources"]["memory"] = json!({ "limit": 1 }));
    assert!(refused.contains("could not create the container of `refused` ("), "{refused}");
    let below = json!({ "destination": "/proc/own", "source": "/etc", "options": ["bind"] });
    let refused = with(&|config| config["mounts"].as_array_mut().unwrap().push(below.clone()));
    assert!(refused.contains("/proc"), "{refused}");
    let linked = json!({ "destination": "/lib/own", "source": "/etc", "options": ["bind"] });
    let refused = with(&|config| config["mounts"].as_array_mut().unwrap().push(linked.clone()));
    assert!(refused.contains("/lib/own leads through a symbolic link"), "{refused}");
    assert!(a.is_empty());
}

#[test]
fn containers_are_made_and_removed_concurrently() {
    let lab = Lab::new();
    let a = host_with_runtime(&lab, "a", "false");
    let shared = shared(&lab);
    let come_and_go = |name, number| {
        let spec = contained(workload(name, number, &[]), &shared);
        for _ in 0..100 {
            let refused = a.call(|engine| engine.prepare(&spec, 0)).unwrap_err().to_string();
            assert!(refused.contains("could not create the container"), "{refused}");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| come_and_go("one", 77));
        scope.spawn(|| come_and_go("other", 78));
    });
    assert!(a.is_empty());
}

/// Its root may not change users, as in a bundle that `runc spec` makes.
#[test]
fn a_container_with_few_rights_runs_and_moves() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let mut spec = contained(workload("poor", 84, &["count", "1000084"]), &shared(&lab));
    let container = container(&mut spec);
    let mut config: Value = serde_json::from_str(&container.config).unwrap();
    let few = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    config["process"]["capabilities"] = json!({ "bounding": few, "effective": few, "permitted": few });
    container.config = config.to_string();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    relocate(node, &spec, &a, &b, &mut output);
    output.assert_counts();
}

/// CRIU receives the descriptors of each process over a socket. The kernel refuses that to a container of root without rights while
/// root's other programs have too many on their way.
#[test]
fn a_dump_waits_until_other_programs_have_received_their_descriptors() {
    const FEW: u64 = 64;
    let lab = Lab::new();
    let host = host(&lab, "a");
    let mut spec = contained(workload("modest", 47, &["count", "1000"]), &shared(&lab));
    let container = container(&mut spec);
    let mut config: Value = serde_json::from_str(&container.config).unwrap();
    config["process"]["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": FEW, "hard": FEW }]);
    container.config = config.to_string();
    let (mut node, mut output) = (host.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 2);
    host.call(|engine| engine.arm(&spec.name)).unwrap();
    node.suspend(&mut output);
    let (sender, receiver) = seqpacket::pair().unwrap();
    for _ in 0..FEW {
        seqpacket::send(sender.as_fd(), b"unread", &[sender.as_fd(); 4]).unwrap();
    }
    let receiver = Mutex::new(Some(receiver));
    let receive_after_refusal = |phase: &Phase| {
        if phase.name == "between" {
            receiver.lock().unwrap().take();
        }
    };
    let watch = Watch { progress: &receive_after_refusal, ..Watch::QUIET };
    let dump = host.call(|engine| engine.suspend(&spec.name, None, &watch)).unwrap();
    assert!(dump.phases.0.iter().any(|phase| phase.name == "between"), "{:?}", dump.phases);
}

/// As the runtime alone would start it: init has more, and is not the same user.
#[test]
fn a_user_gets_the_capabilities_of_the_configuration() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let mut spec = contained(workload("ambient", 90, &[]), &shared(&lab));
    (program(&mut spec).user, program(&mut spec).group) = (65534, 65534);
    let container = container(&mut spec);
    let mut config: Value = serde_json::from_str(&container.config).unwrap();
    let (all, ambient) = (json!(["CAP_CHOWN", "CAP_NET_BIND_SERVICE"]), json!(["CAP_NET_BIND_SERVICE"]));
    config["process"]["capabilities"] = json!({
        "bounding": all, "effective": all, "permitted": all, "inheritable": ambient, "ambient": ambient,
    });
    container.config = config.to_string();
    program(&mut spec).command = ["grep", "Cap", "/proc/self/status"].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.code.is_some());
    let sets = [("Inh", 0x400), ("Prm", 0x400), ("Eff", 0x400), ("Bnd", 0x401), ("Amb", 0x400)];
    let expected = sets.map(|(name, bits)| format!("Cap{name}:\t{bits:016x}\n"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected.concat());
}

/// Init, which is root, is told another home by the runtime.
#[test]
fn home_defaults_to_that_of_the_container_s_user() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let mut spec = contained(workload("nobody", 89, &[]), &shared(&lab));
    (program(&mut spec).user, program(&mut spec).group) = (65534, 65534);
    program(&mut spec).command = ["sh", "-c", "echo $HOME"].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.code.is_some());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/nonexistent\n");
}

/// CRIU needs helpers to restore it, for which its limit has no room.
#[test]
fn a_container_at_its_limit_of_processes_moves() {
    const FULL: &str = "import os, time
try:
    while os.fork():
        pass
    time.sleep(1000)
except OSError:
    pass
for count in range(1000000):
    print(count, flush=True)
    time.sleep(0.01)";
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let mut spec = contained(workload("full", 86, &[]), &shared(&lab));
    program(&mut spec).command = ["/usr/bin/python3", "-c", FULL].map(str::to_owned).into();
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let processes = fs::read_to_string(cgroup_of(&spec, &a).join("pids.current")).unwrap();
    assert_eq!(processes.trim(), PROCESSES);
    node = relocate(node, &spec, &a, &b, &mut output);
    assert_eq!(limit_of_processes(&spec, &b), PROCESSES);
    let lines = output.lines();
    node.read(&mut output, |output| output.lines() > lines + 5);
    output.assert_counts();
}

#[test]
fn a_replaced_volume_is_a_blocker() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let shared = shared(&lab);
    let spec = contained(workload("fooled", 87, &["count", "1000087"]), &shared);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let named = || {
        let report = a.call(|engine| engine.check(&spec.name, true)).unwrap();
        report.blockers.iter().filter(|it| it.what.contains("was moved, removed or replaced")).count()
    };
    let elsewhere = shared.with_extension("elsewhere");
    fs::rename(&shared, &elsewhere).unwrap();
    assert_eq!(named(), 1, "moved");
    fs::create_dir(&shared).unwrap();
    assert_eq!(named(), 1, "replaced");
    fs::remove_dir(&shared).unwrap();
    fs::rename(&elsewhere, &shared).unwrap();
    assert_eq!(named(), 0, "put back");
}

/// CRIU is killed with the tree seized, and with its images complete; then all goes well.
#[test]
fn a_container_survives_a_killed_dump() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let spec = contained(workload("struck", 73, &["count", "1000073"]), &shared(&lab));
    let (mut node, mut output) = (a.start(&spec), Output::default());
    for stop in 0..2 {
        let lines = output.lines();
        node.read(&mut output, |output| output.lines() > lines + 20);
        node.suspend(&mut output);
        let listener = a.listen(&spec.name);
        suspend_and_kill(&a, &spec, stop);
        node = Node::accept(&listener);
    }
    relocate(node, &spec, &a, &b, &mut output);
    output.assert_counts();
}

#[test]
fn a_held_container_dies_with_its_node_and_is_restored_again_or_aborted() {
    let lab = Lab::new();
    let (a, mut b) = (host(&lab, "a"), host(&lab, "b"));
    let shared = shared(&lab);
    let spec = contained(workload("held", 74, &["count", "1000074"]), &shared);
    let mut output = suspended(&spec, &a, &b);
    b.restart();
    let mut holder = hold(&b, &spec);
    holder.kill().unwrap();
    holder.wait().unwrap();
    b.restart();
    let recovered = b.call(|engine| engine.recover()).unwrap();
    assert_eq!(recovered.iter().map(|found| found.state).collect::<Vec<_>>(), [State::Prepared]);
    // A node comes up without what one container needs, and can restore that when it is back.
    let elsewhere = shared.with_extension("elsewhere");
    fs::rename(link_to(&shared), &elsewhere).unwrap();
    b.restart();
    assert_eq!(b.call(|engine| engine.recover()).unwrap()[0].state, State::Prepared);
    let refused = b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap_err().to_string();
    assert!(refused.contains("which `held` mounts, is not on this host"), "{refused}");
    fs::rename(&elsewhere, link_to(&shared)).unwrap();
    // One that is cancelled while its layer is unpacked, or later, is restored again.
    let unwanted = Watch { cancelled: &|| true, ..Watch::QUIET };
    let cancelled = b.call(|engine| engine.restore(&spec.name, &unwanted));
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    b.call(|engine| engine.abort(&spec.name)).unwrap();
    assert!(b.is_empty());
    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    let node = runs(listener, &mut output);
    relocate(node, &spec, &a, &b, &mut output);
}

#[test]
fn a_restarted_node_finds_and_removes_a_container() {
    let lab = Lab::new();
    let mut a = host(&lab, "a");
    let spec = contained(workload("found-too", 75, &["count", "1000075"]), &shared(&lab));
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let init = parent_of(process_of(&spec, &a.network_of(&spec.name))).unwrap();
    a.restart();
    let recovered = a.call(|engine| engine.recover()).unwrap();
    assert_eq!((recovered[0].state, recovered[0].pid), (State::Running, Some(init)));
    assert!(a.call(|engine| engine.check(&spec.name, false)).unwrap().blockers.is_empty());
    a.call(|engine| engine.destroy(&spec.name)).unwrap();
    assert!(a.is_empty());
}

/// A container that has a library of the node's goes on by that, also after the node has come up with others.
#[test]
fn the_mounts_of_a_container_are_recorded() {
    let lab = Lab::new();
    let (mut a, mut b) = (host(&lab, "a"), host(&lab, "b"));
    let libraries = lab.folder().join("libraries");
    fs::create_dir(&libraries).unwrap();
    let system = fs::canonicalize("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").unwrap();
    fs::copy(&system, libraries.join("libibverbs.so.1")).unwrap();
    let come_up_with = |host: &mut Host, libraries: Option<&PathBuf>| {
        host.config.containers.as_mut().unwrap().libraries = libraries.cloned();
        host.restart();
        host.call(|engine| engine.recover()).unwrap();
    };
    come_up_with(&mut a, Some(&libraries));
    let spec = with_rdma(contained(workload("upgraded", 78, &["count", "1000078"]), &shared(&lab)));
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    come_up_with(&mut a, None);
    let needs = a.call(|engine| engine.check(&spec.name, false)).unwrap().needs;
    let lacks = b.call(|engine| engine.verify(&needs)).unwrap();
    assert_eq!(lacks.len(), 2, "{lacks:?}");
    assert!(lacks[0].what.contains("no file for /.transhume/lib/libibverbs.so.1"), "{}", lacks[0]);
    // Its image has one of that name, over which it lies as well.
    assert!(lacks[1].what.contains(&format!("no file for {}", system.display())), "{}", lacks[1]);
    come_up_with(&mut b, Some(&libraries));
    relocate(node, &spec, &a, &b, &mut output);
}

/// What an instance's mounts allow, by place.
fn mounts_of(spec: &InstanceSpec, host: &Host) -> Vec<(String, String)> {
    let pid = process_of(spec, &host.network_of(&spec.name));
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let mut all: Vec<_> = fields.map(|fields| (fields[4].clone(), fields[5].clone())).collect();
    all.sort();
    all
}

/// Also those that show what another one with the same options shows.
#[test]
fn mount_flags_survive_a_move() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let volume = lab.folder().join("volume");
    let file = volume.join("file");
    fs::create_dir(&volume).unwrap();
    fs::write(&file, "").unwrap();
    let spec = with_volumes(
        contained(workload("bound", 79, &["count", "1000079"]), &shared(&lab)),
        &[
            ("/first", &volume, &["ro"]),
            ("/second", &volume, &["ro", "nosuid", "nodev", "noexec", "noatime"]),
            ("/like first", &volume, &["ro"]),
            ("/like second", &volume, &["ro", "nosuid", "nodev", "noexec", "noatime"]),
            ("/third", &volume, &["nodev"]),
            ("/file", &file, &["ro"]),
            ("/file with blank", &file, &["ro", "nosuid"]),
        ],
    );
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let before = mounts_of(&spec, &a);
    assert_eq!(before.iter().filter(|(_, options)| options.starts_with("ro")).count(), 8, "{before:?}");
    let node = relocate(node, &spec, &a, &b, &mut output);
    assert_eq!(mounts_of(&spec, &b), before);
    relocate(node, &spec, &b, &a, &mut output);
    assert_eq!(mounts_of(&spec, &a), before);
}

/// Watches what its arguments say, and leaves a message queue behind.
const WATCHER: &str = r#"
import ctypes, sys, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
for path in sys.argv[1:]:
    if libc.inotify_add_watch(watch, path.encode(), 2) < 0: sys.exit(7)
if "/tmp" in sys.argv: libc.mq_close(libc.mq_open(b"/left", 0o102, 0o600, None))
while True:
    print("watching", flush=True)
    time.sleep(0.01)
"#;

/// What CRIU finds again moves.
#[test]
fn watches_on_a_container_s_root_are_blockers() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let shared = shared(&lab);
    let reasons = |number: u8, watched: &[&str]| -> Vec<String> {
        let mut spec = contained(workload(&format!("watcher-{number}"), number, &[]), &shared);
        let queues = json!({ "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue" });
        let container = container(&mut spec);
        let mut config: Value = serde_json::from_str(&container.config).unwrap();
        config["mounts"].as_array_mut().unwrap().push(queues);
        container.config = config.to_string();
        program(&mut spec).command =
            ["/usr/bin/python3", "-c", WATCHER].iter().chain(watched).map(|word| (*word).into()).collect();
        let (mut node, mut output) = (a.start(&spec), Output::default());
        node.read(&mut output, |output| output.lines() > 5);
        let report = a.call(|engine| engine.check(&spec.name, false)).unwrap();
        if report.blockers.is_empty() {
            relocate(node, &spec, &a, &b, &mut output);
        } else {
            a.call(|engine| engine.destroy(&spec.name)).unwrap();
        }
        report.blockers.into_iter().map(|blocker| blocker.what).collect()
    };
    let shared_path = shared.to_str().unwrap();
    assert_eq!(reasons(79, &["/", "/etc", "/dev/shm", shared_path]), [""; 0]);
    let found = reasons(80, &["/tmp"]);
    assert!(found[0].ends_with("has the message queue /left"), "{found:?}");
    assert!(
        found[1].contains("watches files in the container's own root file system (inotify)"),
        "{found:?}"
    );
    assert_eq!(found.len(), 2, "{found:?}");
}

/// Counts, with 40 MiB in use.
const LARGE: &str = "
import time
used, count = bytearray(b'x') * (40 << 20), 0
while True:
    print(count, flush=True)
    count += 1
    time.sleep(0.005)
";

/// The kernel ends what is restored; the source runs on.
#[test]
fn a_container_without_room_in_its_limit_is_rolled_back_with_the_reason() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let mut spec = contained(workload("large", 82, &[]), &shared(&lab));
    program(&mut spec).command = ["/usr/bin/python3", "-c", LARGE].map(str::to_owned).into();
    let mut output = suspended(&spec, &a, &b);
    let cgroup = fabric::cgroup_name(&containers_of(&b.config).join(spec.name.as_str()));
    let limits = [("memory/", "memory.limit_in_bytes"), ("", "memory.max")];
    let files = limits.map(|(hierarchy, file)| format!("/sys/fs/cgroup/{hierarchy}{cgroup}/{file}"));
    let limit = files.iter().find(|file| Path::new(file).exists()).unwrap();
    fs::write(limit, "16M").unwrap();
    let refused = b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap_err().to_string();
    assert!(refused.contains("more memory than its limit on this host, 16 MiB"), "{refused}");
    b.call(|engine| engine.abort(&spec.name)).unwrap();
    assert!(b.is_empty());
    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    runs(listener, &mut output);
}

#[test]
fn a_host_without_a_runtime_says_so() {
    let lab = Lab::new();
    let a = lab.host("a");
    let spec = contained(workload("bare", 76, &[]), &shared(&lab));
    let refused = a.call(|engine| engine.prepare(&spec, 0)).unwrap_err();
    assert!(matches!(refused, Error::Unusable { .. }) && refused.to_string().contains("runs no containers"));
    assert!(a.is_empty());
}

#[test]
fn a_host_without_the_rdma_libraries_says_so() {
    let lab = Lab::new();
    let a = host(&lab, "a");
    let spec = with_rdma(contained(workload("without", 79, &[]), &shared(&lab)));
    let refused = a.call(|engine| engine.prepare(&spec, 0)).unwrap_err().to_string();
    assert!(refused.contains("the RDMA libraries, which `without` needs, are missing"), "{refused}");
    assert!(refused.contains("`--without-rdma`"), "{refused}");
    assert!(a.is_empty());
}

/// In a container of an image with the libraries that the workload needs.
fn of_image(mut spec: InstanceSpec, layout: &Path) -> InstanceSpec {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/image.sh");
    let mut command = Command::new(script);
    let made = command.arg(layout).arg("CMD [\"sh\"]").arg(lab::examples().join("workload")).status();
    assert!(made.unwrap().success());
    let source = format!("oci:{}", layout.display());
    let (_, root) = source.parse::<Source>().unwrap().look().unwrap();
    container(&mut spec).root = Root::Image(ContainerImage { source, root });
    spec
}

/// What is unpacked on a host.
fn unpacked(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(unpacked_of(&host.config)).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn an_image_is_unpacked_completely_or_not_at_all() {
    let lab = Lab::new();
    let (a, b) = (host(&lab, "a"), host(&lab, "b"));
    let layout = lab.folder().join("layout");
    let spec = of_image(contained(workload("imaged", 77, &["count", "1000077"]), &shared(&lab)), &layout);
    let digits = spec.container().and_then(Container::image).unwrap().root.digits().to_owned();
    // A crash has left a part of it, and one that nobody uses.
    for left in ["new/root/bin", "old/bin", &"0".repeat(64)] {
        fs::create_dir_all(unpacked_of(&a.config).join(left)).unwrap();
    }
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    relocate(node, &spec, &a, &b, &mut output);
    assert_eq!([&unpacked(&a)[..], &unpacked(&b)].concat(), [digits.clone(), digits.clone()]);
    fs::remove_dir_all(unpacked_of(&a.config).join(digits)).unwrap();
    let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|blob| blob.unwrap().path());
    let layer = blobs.max_by_key(|blob| fs::metadata(blob).unwrap().len()).unwrap();
    let mut bytes = fs::read(&layer).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&layer, bytes).unwrap();
    let other = InstanceSpec { name: InstanceName::new("damaged").unwrap(), ..spec };
    let refused = a.call(|engine| engine.prepare(&other, 0)).unwrap_err().to_string();
    assert!(refused.starts_with("a part of an image is damaged"), "{refused}");
    assert!(refused.ends_with("copy the image again"), "{refused}");
    assert!(unpacked(&a).is_empty() && a.is_empty());
}
