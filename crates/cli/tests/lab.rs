//! `transhume lab` with its daemons: what works in a lab, and that nothing remains of one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lab::layout::{DISKS, NAMESPACES};
use serde_json::Value;

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A lab's name, with nothing of that lab there before and after.
struct Named(&'static str);

impl Named {
    fn new(name: &'static str) -> Option<Self> {
        if !test_support::is_root() {
            test_support::skip("network namespaces need root");
            return None;
        }
        let named = Self(name);
        named.ok(&["lab", "down"]);
        Some(named)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_transhume"));
        command.args(["--lab", self.0]).args(arguments).env_remove("TRANSHUME_SOCKET").stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn error(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.ok(&["lab", "status", "--json"])).unwrap()
    }

    fn is_registered(&self, host: usize) -> bool {
        self.status()["hosts"][host - 1]["registered"] == true
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what} does not come");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Namespaces, mounts, processes and files of this lab.
    fn leftovers(&self) -> BTreeSet<String> {
        let marks = [format!("th-{}-", self.0), format!("lab-{}", self.0)];
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let everything = names(NAMESPACES)
            .chain(names("/run/transhume"))
            .chain(names("/dev/shm"))
            .chain(names(DISKS))
            .chain(mounts.lines().map(str::to_owned))
            .chain(command_lines());
        everything.filter(|line| marks.iter().any(|mark| line.contains(mark))).collect()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.ok(&["lab", "down"]);
        if !thread::panicking() {
            assert_eq!(self.leftovers(), BTreeSet::new());
        }
    }
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// The command lines of all daemons and instances.
fn command_lines() -> impl Iterator<Item = String> {
    let own = std::process::id().to_string();
    names("/proc").filter(move |pid| *pid != own).filter_map(|pid| {
        let text = fs::read(Path::new("/proc").join(pid).join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        (text.contains(" node ") || text.contains(" coordinator ") || text.contains(" init ")).then_some(text)
    })
}

#[test]
fn lab_starts_shows_status_and_leaves_nothing() {
    let Some(lab) = Named::new("tup") else { return };
    lab.ok(&["lab", "up", "--hosts", "3"]);
    let status = lab.status();
    assert_eq!(status["hosts"].as_array().unwrap().len(), 3);
    assert!((1..=3).all(|host| lab.is_registered(host)), "{status}");
    assert!(lab.ok(&["hosts"]).contains("10.77.0.3:7700"));
    assert!(lab.ok(&["lab", "exec", "h2", "--", "ip", "-brief", "address"]).contains("10.77.0.2/16"));
    assert_eq!(lab.run(&["lab", "exec", "h1", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    for (command, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let ended = lab.run(&["lab", "exec", "h1", "--", command]);
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert!(errors.starts_with(&format!("transhume: cannot start `{command}` on h1: ")), "{errors}");
        assert_eq!((errors.lines().count(), ended.status.code()), (2, Some(code)), "{errors}");
    }
    assert!(lab.error(&["lab", "up"]).contains("already exists"));
    assert!(lab.error(&["lab", "exec", "h4", "--", "true"]).contains("it has h1 to h3"));
    let away = "unshare --net sleep 1000 > /dev/null 2>&1 & echo $!";
    let away = lab.ok(&["lab", "exec", "h1", "--", "sh", "-c", away]);
    lab.ok(&["lab", "down"]);
    assert_eq!(lab.leftovers(), BTreeSet::new());
    // Its new parent need not have waited for it yet.
    let runs =
        fs::read(Path::new("/proc").join(away.trim()).join("cmdline")).is_ok_and(|line| !line.is_empty());
    assert!(!runs, "a process of the lab still runs");
    assert!(lab.error(&["lab", "status"]).contains("no lab"));
}

/// The owner of the folder of images could exchange the memory of instances.
#[test]
fn a_folder_of_images_that_another_user_has_made_is_refused() {
    let Some(lab) = Named::new("tforeign") else { return };
    let folder = "/dev/shm/transhume-lab-tforeign";
    fs::create_dir(folder).unwrap();
    std::os::unix::fs::chown(folder, Some(65534), Some(65534)).unwrap();
    let error = lab.error(&["lab", "up", "--hosts", "1"]);
    assert!(error.contains(folder) && error.contains("belongs to user 65534"), "{error}");
}

/// A lock on a file that others can open, others can hold for as long as they like.
#[test]
fn other_users_cannot_hold_up_changes_of_a_lab() {
    let Some(lab) = Named::new("tlock") else { return };
    lab.ok(&["lab", "up", "--hosts", "1"]);
    let folder = fs::metadata("/run/transhume/lab-tlock").unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o777), (0, 0o700));
}

#[test]
fn a_demo_does_not_remove_a_lab_that_runs() {
    let Some(lab) = Named::new("tdemo") else { return };
    lab.ok(&["lab", "up", "--hosts", "1"]);
    assert_eq!(
        lab.error(&["demo"]),
        "transhume: lab `tdemo` is running: choose another name with `--lab`, or remove it with `transhume lab down --lab tdemo`\n"
    );
    assert!(lab.is_registered(1));
}

#[test]
fn a_killed_or_cut_node_is_seen_as_down_until_it_is_back() {
    let Some(lab) = Named::new("tkill") else { return };
    lab.ok(&["lab", "up", "--hosts", "2"]);
    lab.ok(&["lab", "kill", "h1"]);
    lab.wait_until("the loss of h1", |lab| !lab.is_registered(1));
    assert!(lab.status()["hosts"][0]["pid"].is_null());
    lab.ok(&["lab", "start", "h1"]);
    assert!(lab.is_registered(1));

    lab.ok(&["lab", "kill", "coordinator"]);
    assert!(lab.error(&["hosts"]).contains("no coordinator listens"));
    lab.ok(&["lab", "restart", "coordinator"]);
    assert!(lab.is_registered(1) && lab.is_registered(2));

    lab.ok(&["lab", "cut", "h2", "coordinator"]);
    assert_eq!(lab.status()["cuts"], serde_json::json!([["coordinator", "h2"]]));
    lab.wait_until("the loss of h2", |lab| !lab.is_registered(2));
    lab.ok(&["lab", "heal"]);
    lab.wait_until("the return of h2", |lab| lab.is_registered(2));
}

/// Connections of each to each would be more than the table of neighbours holds, which is the whole machine's.
#[test]
fn a_lab_of_many_hosts_comes_up() {
    let Some(lab) = Named::new("tmany") else { return };
    lab.ok(&["lab", "up", "--hosts", "60"]);
    let status = lab.status();
    assert!((0..60).all(|host| status["hosts"][host]["registered"] == true), "{status}");
}

#[test]
fn two_labs_live_side_by_side() {
    let (Some(one), Some(other)) = (Named::new("tside1"), Named::new("tside2")) else { return };
    one.ok(&["lab", "up", "--hosts", "1"]);
    other.ok(&["lab", "up", "--hosts", "1"]);
    one.ok(&["lab", "down"]);
    assert_eq!(one.leftovers(), BTreeSet::new());
    assert!(other.is_registered(1));
}

#[test]
fn a_lab_has_1_to_250_hosts() {
    let Some(lab) = Named::new("tsize") else { return };
    for hosts in ["0", "251", "100000"] {
        let errors = lab.error(&["lab", "up", "--hosts", hosts]);
        assert_eq!(errors, format!("transhume: a lab has 1 to 250 hosts, not {hosts}\n"));
    }
}

#[test]
fn down_removes_remains_of_a_killed_up() {
    let Some(lab) = Named::new("tcrash") else { return };
    for namespaces in [1, 3, 5] {
        let mut up = lab.command(&["lab", "up", "--hosts", "4"]).stderr(Stdio::null()).spawn().unwrap();
        let prefix = "th-tcrash-";
        lab.wait_until("some of the lab", |_| {
            names(NAMESPACES).filter(|name| name.starts_with(prefix)).count() >= namespaces
        });
        up.kill().unwrap();
        up.wait().unwrap();
        assert!(!lab.leftovers().is_empty());
        assert_eq!(
            lab.error(&["lab", "status"]),
            "transhume: lab `tcrash` is incomplete: remove it with `transhume lab down --lab tcrash`\n"
        );
        lab.ok(&["lab", "down"]);
        assert_eq!(lab.leftovers(), BTreeSet::new());
    }
}

#[test]
fn a_command_that_cannot_be_started_leaves_no_instance() {
    let Some(lab) = Named::new("tunfit") else { return };
    lab.ok(&["lab", "up", "--hosts", "1"]);
    let cases = [("no-such-program", 127, "installed"), ("/etc/passwd", 126, "executable")];
    for (command, code, remedy) in cases {
        for detach in [&[][..], &["--detach"]] {
            let run = lab.run(&[&["run"], detach, &["--", command]].concat());
            let errors = String::from_utf8(run.stderr).unwrap();
            assert_eq!(run.status.code(), Some(code), "{errors}");
            assert!(errors.contains(&format!("`{command}`")) && errors.contains(remedy), "{errors}");
            assert!(run.stdout.is_empty());
        }
    }
    assert_eq!(lab.ok(&["ps", "--json"]).trim(), "[]");
    lab.ok(&["lab", "restart", "coordinator"]);
    assert_eq!(lab.ok(&["ps", "--json"]).trim(), "[]");
    assert_eq!(lab.run(&["run", "--", "sh", "-c", "exit 127"]).status.code(), Some(127));
    assert!(lab.ok(&["ps"]).contains("exited (127)"));
}

/// Whether `output` is the output of `seq` up to `last`.
fn is_sequence(output: impl BufRead, last: usize) -> bool {
    output.lines().map(Result::unwrap).eq((1..=last).map(|number| number.to_string()))
}

#[test]
fn slow_readers_throttle_a_command_without_loss() {
    let Some(lab) = Named::new("tlag") else { return };
    lab.ok(&["lab", "up", "--hosts", "2"]);
    let run = lab.run(&["run", "--", "seq", "600000"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(is_sequence(&run.stdout[..], 600_000), "{} bytes", run.stdout.len());

    let spawn = |arguments: &[&str]| lab.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut paused = spawn(&["run", "--name", "paused", "--host", "h1", "--", "seq", "600000"]);
    lab.wait_until("the instance", |lab| lab.ok(&["ps"]).contains("paused"));
    lab.ok(&["move", "paused", "h2"]);
    assert!(lab.ok(&["ps"]).contains("running"), "it waits for its reader");
    assert!(is_sequence(BufReader::new(paused.stdout.take().unwrap()), 600_000));
    assert!(paused.wait().unwrap().success());

    let mut leaving = spawn(&["run", "--name", "left", "--", "seq", "600000"]);
    let mut first = [0; 1];
    leaving.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    leaving.kill().unwrap();
    leaving.wait().unwrap();
    let left = Instant::now();
    lab.ok(&["wait", "left"]);
    assert!(left.elapsed() < Duration::from_secs(20), "no process is left to wait for");
}

#[test]
fn down_ends_instances_with_all_their_processes() {
    let Some(lab) = Named::new("tinst") else { return };
    lab.ok(&["lab", "up", "--hosts", "1"]);
    let mut run = lab.command(&["run", "--", "sh", "-c", "sleep 600 & echo started; wait"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Output comes after the answer to `run`: one that was not answered has nothing to follow.
    let mut output = BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    lab.ok(&["lab", "down"]);
    let said = std::io::read_to_string(run.stderr.take().unwrap()).unwrap();
    assert!(said.contains("did not come back"), "{said}");
    assert!(!run.wait().unwrap().success());
}
