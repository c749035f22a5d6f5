//! The command line against a coordinator that answers from a script.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A folder with the program, a library beside it, and a socket.
struct Stage {
    folder: PathBuf,
}

impl Stage {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).unwrap();
        // A copy could not be run while another test's new child still holds it open for writing.
        fs::hard_link(env!("CARGO_BIN_EXE_transhume"), folder.join("transhume")).unwrap();
        for library in ["libibverbs.so.1", "librdmacm.so.1"] {
            fs::write(folder.join("lib").join(library), "").unwrap();
        }
        Self { folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("transhume"));
        command.args(arguments).env("TRANSHUME_SOCKET", self.socket()).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Answers each connection with the next of `answers`, and passes on the request.
    fn coordinator(&self, answers: &[&'static str]) -> Receiver<String> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let answers = answers.to_vec();
        let (asked, requests) = channel();
        thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                respond(stream, answer, &asked);
            }
        });
        requests
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn respond(mut stream: UnixStream, answer: &str, asked: &Sender<String>) {
    asked.send(read_line(&stream)).unwrap();
    stream.write_all(answer.as_bytes()).unwrap();
}

fn read_line(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

const STARTED: &str = r#"{"started":{"name":"job","vid":258,"fabric":1,"host":"h1","epoch":0,"address":"10.77.1.2","state":"running","command":["x"]}}
"#;

const MOVED: &str = r#"{"phase":{"phase":"prepare","at_us":0}}
{"copying":{"memory_bytes":4194304,"sent_bytes":1048576,"look":1,"left_us":2500000}}
{"phase":{"phase":"dump","at_us":1500}}
{"transferred":{"bytes":1048576,"total":null}}
{"moved":{"name":"job","from":"h1","to":"h2","epoch":1,"outcome":"moved","restarted":false,"total_us":250000,"blackout_us":120000,"phases":[{"phase":"dump","at_us":1500,"elapsed_us":60000}],"network":{"suspend_us":1,"suspend_round_us":1000,"resume_us":1,"resume_round_us":2000,"processes":1,"queue_pairs":16,"memory_regions":2},"engine":{"dump_us":1,"transfer_us":1,"restore_us":1,"release_us":1,"image_bytes":2097152,"precopied_bytes":1048576}}}
"#;

const ROLLED_BACK: &str = r#"{"moved":{"name":"job","from":"h1","to":"h2","epoch":0,"outcome":{"rolled_back":{"message":"the destination's disk is full","help":"make room on h2"}},"restarted":false,"total_us":1,"blackout_us":0,"phases":[],"network":{"suspend_us":0,"suspend_round_us":0,"resume_us":0,"resume_round_us":0,"processes":0,"queue_pairs":0,"memory_regions":0},"engine":{"dump_us":0,"transfer_us":0,"restore_us":0,"release_us":0,"image_bytes":0}}}
"#;

#[test]
fn without_a_coordinator_every_command_names_the_program_to_start() {
    let stage = Stage::new("none");
    for arguments in
        [&["ps"][..], &["hosts"], &["kill", "job"], &["move", "job", "h2"], &["run", "--", "true"]]
    {
        let output = stage.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let errors = text(&output.stderr);
        assert!(errors.starts_with("transhume: no coordinator listens on"), "{errors}");
        assert!(errors.contains("transhume lab up"), "{errors}");
        assert_eq!(errors.lines().count(), 2, "{errors}");
    }
}

#[test]
fn a_missing_library_is_named_before_anything_is_started() {
    let stage = Stage::new("library");
    fs::remove_file(stage.folder.join("lib/libibverbs.so.1")).unwrap();
    let errors = text(&stage.run(&["run", "--", "true"]).stderr);
    assert!(
        errors.contains("the RDMA libraries (libibverbs.so.1, librdmacm.so.1) are missing")
            && errors.contains("make build"),
        "{errors}"
    );
}

#[test]
fn start_failures_return_shell_exit_codes() {
    let stage = Stage::new("unfit");
    for none in [&["run", "--", ""][..], &["run", "--"], &["run"]] {
        let empty = stage.run(none);
        assert_eq!(empty.status.code(), Some(2), "{none:?}");
        assert!(
            text(&empty.stderr).starts_with("transhume: no command was given\n  pass a program"),
            "{empty:?}"
        );
    }
    let answer = r#"{"not_started":{"code":126,"failure":{"message":"`x` is none","help":"take y"}}}
"#;
    let _requests = stage.coordinator(&[answer]);
    let unfit = stage.run(&["run", "--detach", "--", "x"]);
    assert_eq!(unfit.status.code(), Some(126));
    assert_eq!(text(&unfit.stderr), "transhume: `x` is none\n  take y\n");
    assert_eq!(text(&unfit.stdout), "");
}

#[test]
fn a_working_directory_that_is_gone_is_named() {
    let stage = Stage::new("deleted");
    let folder = stage.folder.join("gone");
    fs::create_dir(&folder).unwrap();
    let script = r#"cd "$1" && rmdir "$1" && exec "$2" run -- prog"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&folder).arg(stage.folder.join("transhume"));
    let ended = shell.env("TRANSHUME_SOCKET", stage.socket()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(
        text(&ended.stderr),
        "transhume: the working directory does not exist: No such file or directory (os error 2)\n  \
         change to an existing directory: the program starts in it on its host\n"
    );
}

#[test]
fn run_copies_output_and_exit_code() {
    let stage = Stage::new("run");
    let output = r#"{"output":{"stream":"Stdout","text":"to out\n","position":{"vid":258,"next":1}}}
{"output":{"stream":"Stderr","text":"to err\n","position":{"vid":258,"next":2}}}
{"exited":{"code":7}}
"#;
    let requests = stage.coordinator(&[STARTED, output]);
    let ended = stage.run(&["run", "--host", "h1", "--name", "job", "--", "prog", "-x"]);
    assert_eq!((text(&ended.stdout).as_str(), text(&ended.stderr).as_str()), ("to out\n", "to err\n"));
    assert_eq!(ended.status.code(), Some(7));
    let request = requests.recv_timeout(LIMIT).unwrap();
    assert!(request.contains(r#""command":["prog","-x"]"#), "{request}");
    let [verbs, manager] =
        ["libibverbs.so.1", "librdmacm.so.1"].map(|name| stage.folder.join("lib").join(name));
    let preload = format!(r#"["LD_PRELOAD","{}:{}"#, verbs.display(), manager.display());
    assert!(request.contains(&preload), "{request}");
    assert_eq!(requests.recv_timeout(LIMIT).unwrap(), logs_after(0));
}

fn logs_after(next: u64) -> String {
    format!(r#"{{"logs":{{"name":"job","follow":true,"after":{{"vid":258,"next":{next}}}}}}}"#)
}

#[test]
fn output_passes_byte_for_byte() {
    let stage = Stage::new("bytes");
    let output = r#"{"output":{"stream":"Stdout","base64":"AP/iggA=","position":{"vid":258,"next":1}}}
{"output":{"stream":"Stderr","base64":"/v8=","position":{"vid":258,"next":2}}}
"done"
"#;
    let _requests = stage.coordinator(&[output]);
    let ended = stage.run(&["logs", "job"]);
    assert_eq!((ended.stdout, ended.stderr), (b"\0\xff\xe2\x82\0".to_vec(), b"\xfe\xff".to_vec()));
}

#[test]
fn dropped_output_is_reported_as_a_failure() {
    let stage = Stage::new("dropped");
    let output = "{\"dropped\":{\"pieces\":9}}\n{\"exited\":{\"code\":0}}\n";
    let _requests = stage.coordinator(&[STARTED, output]);
    let ended = stage.run(&["run", "--", "prog"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("9 pieces of the output of `job` are missing"), "{ended:?}");
}

#[test]
fn possibly_missing_output_is_reported() {
    let stage = Stage::new("unread");
    let output = "{\"unread\":{\"message\":\"host h1 is down\",\"help\":\"\"}}\n{\"exited\":{\"code\":3}}\n";
    let _requests = stage.coordinator(&[STARTED, output]);
    let ended = stage.run(&["run", "--", "prog"]);
    assert_eq!(ended.status.code(), Some(3));
    let said = text(&ended.stderr);
    assert!(said.contains("the last output of `job` may be missing: host h1 is down"), "{said}");
    assert!(said.contains("try `transhume logs job`"), "{said}");
}

#[test]
fn run_goes_on_where_it_was_when_the_coordinator_is_back() {
    let stage = Stage::new("back");
    let first = r#"{"output":{"stream":"Stdout","text":"one\n","position":{"vid":258,"next":4}}}
{"output":{"stream":"Stdout","te"#;
    let second = r#"{"output":{"stream":"Stdout","text":"two\n","position":{"vid":258,"next":5}}}
{"exited":{"code":7}}
"#;
    let requests = stage.coordinator(&[STARTED, first, "", second]);
    let ended = stage.run(&["run", "--", "prog"]);
    assert_eq!((text(&ended.stdout).as_str(), ended.status.code()), ("one\ntwo\n", Some(7)));
    assert!(text(&ended.stderr).contains("connection to the coordinator lost; waiting"), "{ended:?}");
    let asked: Vec<_> = requests.iter().skip(1).collect();
    assert_eq!(asked, [logs_after(0), logs_after(4), logs_after(4)]);
}

#[test]
fn ctrl_c_ends_the_instance_as_soon_as_the_coordinator_is_back() {
    let stage = Stage::new("late");
    let listener = UnixListener::bind(stage.socket()).unwrap();
    let mut command = stage.command(&["run", "--", "prog"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    for answer in [STARTED, ""] {
        let (mut stream, _) = listener.accept().unwrap();
        read_line(&stream);
        stream.write_all(answer.as_bytes()).unwrap();
    }
    drop(listener);
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(errors.next().unwrap().unwrap().contains("while `job` continues to run"));
    wait_for_handler(child.id());
    interrupt(&child);
    assert!(errors.next().unwrap().unwrap().contains("to end `job`; press Ctrl-C again to leave it running"));
    fs::remove_file(stage.socket()).unwrap();
    let listener = UnixListener::bind(stage.socket()).unwrap();
    let (mut output, mut killed) = (None, false);
    while output.is_none() || !killed {
        let (mut stream, _) = listener.accept().unwrap();
        if read_line(&stream).starts_with(r#"{"kill""#) {
            stream.write_all(b"\"done\"\n").unwrap();
            killed = true;
        } else {
            output = Some(stream);
        }
    }
    output.unwrap().write_all(b"{\"exited\":{\"code\":137}}\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn wait_outlives_a_coordinator() {
    let stage = Stage::new("wait");
    let _requests = stage.coordinator(&["", "{\"exited\":{\"code\":3}}\n"]);
    assert_eq!(stage.run(&["wait", "job"]).status.code(), Some(3));
}

#[test]
fn events_go_on_behind_the_last_one_with_the_next_coordinator() {
    let stage = Stage::new("events");
    let first = "{\"logged\":{\"number\":7,\"time_ms\":0,\"event\":\"host_lost\",\"host\":\"h1\"}}\n";
    let requests = stage.coordinator(&[first, "\"done\"\n"]);
    let ended = stage.run(&["events", "--follow", "--after", "3", "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(text(&ended.stdout), "{\"number\":7,\"time_ms\":0,\"event\":\"host_lost\",\"host\":\"h1\"}\n");
    let asked = [3, 7].map(|after| format!(r#"{{"events":{{"after":{after},"since_ms":0,"follow":true}}}}"#));
    assert_eq!(requests.iter().collect::<Vec<_>>(), asked);
    let wrong = stage.run(&["events", "--since", "yesterday"]);
    assert!(text(&wrong.stderr).contains("30s, 10m, 2h or 1d"), "{wrong:?}");
}

#[test]
fn commands_do_not_wait_long_for_a_coordinator_without_a_socket() {
    let stage = Stage::new("gone");
    let listener = UnixListener::bind(stage.socket()).unwrap();
    let mut command = stage.command(&["logs", "--follow", "job"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    read_line(&stream);
    fs::remove_file(stage.socket()).unwrap();
    drop((listener, stream));
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("did not come back"), "{ended:?}");
}

#[test]
fn a_move_is_followed_to_its_end_by_the_next_coordinator() {
    let stage = Stage::new("follow");
    let begun = "{\"begun\":{\"id\":9}}\n{\"phase\":{\"phase\":\"prepare\",\"at_us\":0}}\n";
    let restarted = Box::leak(MOVED.replace("\"restarted\":false", "\"restarted\":true").into_boxed_str());
    let requests = stage.coordinator(&[begun, restarted, ""]);
    let ended = stage.run(&["move", "job", "h2"]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(
        text(&ended.stdout)
            .contains("job h1 → h2, epoch 1: moved; figures lost because the coordinator restarted"),
        "{ended:?}"
    );
    assert!(text(&ended.stderr).contains("to learn the result of the move of `job`"), "{ended:?}");
    assert_eq!(requests.iter().take(2).last().unwrap(), r#"{"follow_move":{"name":"job","id":9}}"#);
    let ended = stage.run(&["move", "job", "h2"]);
    assert_eq!(ended.status.code(), Some(1));
    let errors = text(&ended.stderr);
    assert!(
        errors.contains("lost before it confirmed the move") && errors.contains("transhume ps"),
        "{errors}"
    );
}

#[test]
fn an_unknown_host_to_run_on_is_suggested_too() {
    let stage = Stage::new("host");
    let refusal = "{\"failed\":{\"message\":\"there is no host `nod1`\",\"help\":\"look\"}}\n";
    let hosts = "{\"hosts\":[{\"name\":\"node1\",\"address\":\"x\",\"up\":true,\"drained\":false,\"instances\":0}]}\n";
    let _requests = stage.coordinator(&[refusal, hosts]);
    let errors = text(&stage.run(&["run", "--host", "nod1", "--", "true"]).stderr);
    assert_eq!(errors, "transhume: there is no host `nod1`\n  did you mean `node1`? look\n");
}

#[test]
fn a_missing_lab_is_named() {
    let stage = Stage::new("nolab");
    let errors = text(&stage.run(&["ps", "--lab", "tnone"]).stderr);
    assert!(errors.contains("no lab `tnone` exists: start it with `transhume lab up"), "{errors}");
}

#[test]
fn daemons_without_certificates_say_how_to_get_them() {
    let stage = Stage::new("pki");
    let folder = stage.folder.display().to_string();
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--pki", &folder, "--state", &folder];
    let ended = stage.run(&arguments);
    let errors = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1));
    assert!(errors.contains("coordinator.pem is missing: issue it with `transhume pki`"), "{errors}");
}

#[test]
fn daemon_that_cannot_listen_prints_a_remedy() {
    let stage = Stage::new("listen");
    let folder = stage.folder.display().to_string();
    let twice = stage.run(&["pki", "--dir", &folder, "h1", "h1"]);
    assert!(String::from_utf8_lossy(&twice.stderr).contains("`h1` was given twice"), "{twice:?}");
    assert!(stage.run(&["pki", "--dir", &folder, "coordinator"]).status.success());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for (address, help) in [
        ("192.0.2.1:7700".to_owned(), "use an address of this host"),
        (taken.local_addr().unwrap().to_string(), "use another port"),
    ] {
        let arguments = ["coordinator", "--listen", &address, "--pki", &folder, "--state", &folder];
        let ended = stage.run(&arguments);
        let errors = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1));
        assert!(errors.contains(&format!("listening on {address}")) && errors.contains(help), "{errors}");
    }
}

#[test]
fn a_coordinator_that_is_ended_takes_its_socket_with_it() {
    let stage = Stage::new("ended");
    let folder = stage.folder.display().to_string();
    assert!(stage.run(&["pki", "--dir", &folder, "coordinator"]).status.success());
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--pki", &folder, "--state", &folder];
    let mut daemon = stage.command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(daemon.stderr.take().unwrap()).lines();
    log.find(|line| line.as_ref().unwrap().contains("the coordinator listens on")).unwrap().unwrap();
    assert!(stage.socket().exists());
    interrupt(&daemon);
    assert!(daemon.wait().unwrap().success());
    assert!(!stage.socket().exists());
}

#[test]
fn daemon_rejects_unknown_log_levels() {
    let stage = Stage::new("log");
    let ended = stage.run(&["coordinator", "--listen", "127.0.0.1:0", "--log", "info,node=loud"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(text(&ended.stderr).contains("'info,node=loud' for '--log <LEVELS>'"), "{ended:?}");
}

#[test]
fn a_label_has_one_value() {
    let stage = Stage::new("labels");
    let refused = stage.run(&["run", "--label", "app=db", "--label", "app=x", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("`app` has two values, `db` and `x`"), "{refused:?}");
    let requests = stage.coordinator(&[STARTED]);
    let once = ["run", "--detach", "--label", "app=db", "--label", "app=db", "--label", "a=b", "--", "true"];
    assert!(stage.run(&once).status.success());
    let asked = requests.recv().unwrap();
    assert!(asked.contains(r#""labels":{"a":"b","app":"db"}"#), "{asked}");
}

#[test]
fn run_detached_writes_the_name_only() {
    let stage = Stage::new("detach");
    let _requests = stage.coordinator(&[STARTED]);
    assert_eq!(text(&stage.run(&["run", "--detach", "--", "prog"]).stdout), "job\n");
}

#[test]
fn a_full_standard_output_is_reported_in_one_line() {
    let stage = Stage::new("full");
    let logs = r#"{"output":{"stream":"Stdout","text":"one","position":{"vid":258,"next":1}}}
"done"
"#;
    let hosts = "{\"hosts\":[]}\n";
    let instances = "{\"instances\":[]}\n";
    let _requests = stage.coordinator(&[instances, instances, hosts, hosts, logs, STARTED, MOVED]);
    let commands = [
        &["ps"][..],
        &["ps", "--json"],
        &["hosts"],
        &["hosts", "--json"],
        &["logs", "job"],
        &["run", "--detach", "--", "prog"],
        &["move", "job", "h2"],
        &["--help"],
        &["--version"],
        &["man"],
        &["completions", "bash"],
    ];
    for arguments in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = stage.command(arguments).stdout(full).output().unwrap();
        let errors = text(&ended.stderr);
        assert_eq!(
            errors, "transhume: standard output: No space left on device (os error 28)\n",
            "{arguments:?}"
        );
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_leaves_ends_a_command_quietly() {
    let stage = Stage::new("pipe");
    let _requests = stage.coordinator(&["{\"instances\":[]}\n"]);
    for arguments in ["ps", "--help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = stage.command(&[arguments]).stdout(writer).output().unwrap();
        assert_eq!((ended.status.signal(), text(&ended.stderr)), (Some(libc::SIGPIPE), String::new()));
    }
}

#[test]
fn a_move_shows_its_phases_and_ends_with_a_table() {
    let stage = Stage::new("move");
    let _requests = stage.coordinator(&[MOVED, MOVED]);
    let ended = stage.run(&["move", "job", "h2"]);
    let shown = text(&ended.stdout);
    assert!(ended.status.success(), "{ended:?}");
    let sent = "2.0 MiB, 1.0 MiB of it before the blackout";
    for part in ["1.5 ms  dump", "job h1 → h2, epoch 1", "blackout 120.0 ms", "16 QPs", sent, "PHASE"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let ended = stage.run(&["move", "job", "h2", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["blackout_us"], 120_000);
    let copying =
        serde_json::json!({"memory_bytes": 4194304, "sent_bytes": 1048576, "look": 1, "left_us": 2500000});
    assert_eq!(json_lines(&ended.stderr), [serde_json::json!({ "copying": copying })]);
}

#[test]
fn a_move_that_suspended_nothing_shows_no_blackout() {
    let stage = Stage::new("unsuspended");
    let _requests = stage.coordinator(&[ROLLED_BACK, ROLLED_BACK]);
    let shown = text(&stage.run(&["move", "job", "h2"]).stdout);
    assert!(shown.contains("0.0 ms in all\n") && !shown.contains("blackout"), "{shown}");
    let json = text(&stage.run(&["move", "job", "h2", "--json"]).stdout);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["blackout_us"], 0);
}

#[test]
fn an_argument_or_a_directory_that_is_not_text_is_named() {
    let stage = Stage::new("not-text");
    let wrong = OsStr::from_bytes(b"caf\xe9");
    let ended = stage.command(&["run", "--", "echo"]).arg(wrong).output().unwrap();
    let errors = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2));
    assert!(errors.contains(r#"arguments are not UTF-8: "caf\xE9""#), "{errors}");
    let folder = stage.folder.join(wrong);
    fs::create_dir(&folder).unwrap();
    let ended =
        stage.command(&["run", "--", "echo"]).current_dir(&folder).env("PWD", &folder).output().unwrap();
    let errors = text(&ended.stderr);
    assert!(errors.contains("the working directory's name") && errors.contains(r"caf\xE9"), "{errors}");
}

#[test]
fn a_rollback_and_a_refusal_are_failures_with_the_remedy() {
    let stage = Stage::new("refused");
    let refusal = "{\"failed\":{\"message\":\"there is no instance `jib`\",\"help\":\"look at `ps`\"}}\n";
    let instances = "{\"instances\":[{\"name\":\"job\",\"vid\":258,\"fabric\":1,\"host\":\"h1\",\"epoch\":0,\
                     \"address\":\"x\",\"state\":\"running\",\"command\":[\"x\"]}]}\n";
    let _requests = stage.coordinator(&[ROLLED_BACK, refusal, instances]);
    let ended = stage.run(&["move", "job", "h2"]);
    let errors = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        errors.contains("job was not moved and continues to run on h1: the destination's disk is full"),
        "{errors}"
    );
    assert!(errors.contains("make room on h2"), "{errors}");
    let ended = stage.run(&["move", "jib", "h2"]);
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(
        text(&ended.stderr),
        "transhume: there is no instance `jib`\n  did you mean `job`? look at `ps`\n"
    );
}

#[test]
fn an_instance_that_ended_before_its_move_is_not_reported_as_running() {
    let stage = Stage::new("ended");
    let ended = ROLLED_BACK.replace("rolled_back", "ended").replace("make room on h2", "");
    let _requests = stage.coordinator(&[Box::leak(ended.into_boxed_str())]);
    let ended = stage.run(&["move", "job", "h2"]);
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stderr), "transhume: job was not moved: the destination's disk is full\n");
}

#[test]
fn cancel_waits_for_the_rollback_and_outlives_a_coordinator() {
    let stage = Stage::new("cancelled");
    let waiting =
        "\"cancelling\"\n{\"waiting\":{\"host\":\"h1\",\"why\":\"away\",\"outlook\":\"then\"}}\n\"done\"\n";
    let refused = "{\"failed\":{\"message\":\"`job` is not being moved\",\"help\":\"look\"}}\n";
    let lost = "";
    let requests = stage.coordinator(&[waiting, refused, "{\"instances\":[]}\n", lost, "\"done\"\n"]);
    let ended = stage.run(&["cancel", "job"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(text(&ended.stderr), "transhume: waiting for host h1: away; then\n");
    assert_eq!(requests.recv_timeout(LIMIT).unwrap(), r#"{"cancel":{"name":"job"}}"#);
    let ended = stage.run(&["cancel", "job"]);
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stderr), "transhume: `job` is not being moved\n  look\n");
    let outlived = stage.run(&["cancel", "job"]);
    assert!(outlived.status.success(), "{outlived:?}");
    let wait = "connection to the coordinator lost; waiting for it to come back, to cancel the move of `job`";
    assert!(text(&outlived.stderr).contains(wait), "{outlived:?}");
}

#[test]
fn a_kill_says_for_which_host_it_waits_and_outlives_a_coordinator() {
    let stage = Stage::new("kill");
    let waiting = "{\"waiting\":{\"host\":\"h1\",\"why\":\"it is away\",\"outlook\":\"then it ends\"}}\n";
    let requests = stage.coordinator(&[waiting, "\"done\"\n"]);
    let ended = stage.run(&["kill", "job"]);
    assert!(ended.status.success(), "{ended:?}");
    let errors = text(&ended.stderr);
    assert!(
        errors.starts_with("transhume: waiting for host h1: it is away; then it ends\n")
            && errors
                .contains("connection to the coordinator lost; waiting for it to come back, to end `job`"),
        "{errors}"
    );
    assert_eq!(requests.iter().collect::<Vec<_>>(), [r#"{"kill":{"name":"job"}}"#; 2]);
}

/// The lines of JSON that went to standard error.
fn json_lines(errors: &[u8]) -> Vec<serde_json::Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    text(errors).lines().map(parse).collect()
}

#[test]
fn with_json_all_errors_of_a_move_are_json() {
    let stage = Stage::new("json");
    let lost = stage.run(&["move", "job", "h2", "--json"]);
    let [lost] = &json_lines(&lost.stderr)[..] else { panic!("{lost:?}") };
    assert!(lost["failed"]["message"].as_str().unwrap().starts_with("no coordinator listens"), "{lost}");
    let refusal = "{\"failed\":{\"message\":\"a\\nb\",\"help\":\"look\"}}\n";
    let _requests = stage.coordinator(&[refusal, "{\"begun\":{\"id\":9}}\n", ROLLED_BACK]);
    let refused = stage.run(&["move", "job", "h2", "--json"]);
    let failed = serde_json::json!({"failed": {"message": "a\\nb", "help": "look"}});
    assert_eq!((json_lines(&refused.stderr), refused.status.code()), (vec![failed], Some(1)));
    let late = stage.run(&["move", "job", "h2", "--json"]);
    let [waiting] = &json_lines(&late.stderr)[..] else { panic!("{late:?}") };
    assert_eq!(waiting["waiting"]["host"], "coordinator");
}

#[test]
fn with_json_ctrl_c_is_answered_in_json() {
    let refused = "{\"failed\":{\"message\":\"too late\",\"help\":\"wait\"}}\n";
    let too_late = serde_json::json!({"not_cancelled": {"message": "too late", "help": "wait"}});
    let cancelling = serde_json::json!({"cancelling": {"name": "job"}});
    for (answer, expected) in [("\"cancelling\"\n", cancelling), (refused, too_late)] {
        let ended = interrupted_move("json-c", &["--json"], answer);
        assert_eq!(json_lines(&ended.stderr), [expected]);
    }
}

#[test]
fn control_characters_in_refusals_are_escaped() {
    let stage = Stage::new("control");
    let refusal = r#"{"failed":{"message":"`a\nb` is not a valid instance name","help":"use\u001b[2J letters"}}
"#;
    let _requests = stage.coordinator(&[refusal]);
    let ended = stage.run(&["run", "--detach", "--name", "a\nb", "--", "true"]);
    assert_eq!(
        text(&ended.stderr),
        "transhume: `a\\nb` is not a valid instance name\n  use\\u{1b}[2J letters\n"
    );
}

#[test]
fn a_dry_run_names_each_obstacle() {
    let stage = Stage::new("dry");
    let obstacle = r#"{"phase":{"phase":"prepare","at_us":0}}
{"checked":{"obstacles":[{"message":"/dev/kvm is open","help":"close it"},{"message":"h2 is full","help":""}]}}
"#;
    let _requests = stage.coordinator(&[obstacle, "{\"checked\":{\"obstacles\":[]}}\n"]);
    let ended = stage.run(&["move", "job", "h2", "--dry-run"]);
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stdout), "    0.0 ms  prepare\n");
    assert_eq!(
        text(&ended.stderr),
        "transhume: job cannot be moved to h2: /dev/kvm is open\n  close it\n\
         transhume: job cannot be moved to h2: h2 is full\n"
    );
    assert!(stage.run(&["move", "job", "h2", "--dry-run"]).status.success());
}

#[test]
fn ctrl_c_cancels_a_move_and_waits_for_the_outcome() {
    let ended = interrupted_move("cancel", &[], "\"cancelling\"\n");
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("was not moved and continues to run on h1"));
}

/// A move that is interrupted, to which the coordinator says `answer`, and that is rolled back.
fn interrupted_move(name: &str, options: &[&str], answer: &str) -> Output {
    let stage = Stage::new(name);
    let listener = UnixListener::bind(stage.socket()).unwrap();
    let mut command = stage.command(&[&["move", "job", "h2"], options].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut moving, _) = listener.accept().unwrap();
    assert!(read_line(&moving).starts_with(r#"{"move""#));
    wait_for_handler(child.id());
    interrupt(&child);
    let (mut cancelling, _) = listener.accept().unwrap();
    assert_eq!(read_line(&cancelling), r#"{"cancel":{"name":"job"}}"#);
    cancelling.write_all(answer.as_bytes()).unwrap();
    // The move ends when the result of the Ctrl-C has been written.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    moving.write_all(ROLLED_BACK.as_bytes()).unwrap();
    errors.read_to_string(&mut said).unwrap();
    Output { stderr: said.into_bytes(), ..child.wait_with_output().unwrap() }
}

/// Waits until the process catches SIGINT.
fn wait_for_handler(pid: u32) {
    let status = Path::new("/proc").join(pid.to_string()).join("status");
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let text = fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        if u64::from_str_radix(mask, 16).unwrap() & 2 != 0 {
            return;
        }
        thread::yield_now();
    }
    panic!("the process does not catch SIGINT");
}

#[test]
fn changes_of_the_overlay_are_reported_in_json() {
    const LAID: &str = concat!(
        r#"{"net_laid":{"version":7,"center":"h1","hosts":3,"links":2,"links_added":1,"links_changed":0,"links_removed":4}}"#,
        "\n"
    );
    const ATTACHED: &str =
        "{\"net_attached\":{\"mac\":\"02:00:00:00:00:01\",\"mtu_bytes\":1300,\"adopted\":true}}\n";
    const PROXY: &str =
        "{\"net_attached\":{\"mac\":\"02:00:00:00:00:01\",\"mtu_bytes\":null,\"adopted\":false}}\n";
    let laid = r#""version":7,"center":"h1","hosts":3,"links":2,"links_added":1,"links_changed":0,"links_removed":4}"#;
    let cases = [
        ("layout star", LAID, format!(r#"{{"shape":"star","plain":false,{laid}"#)),
        ("link add h1 h2 --cost 5", LAID, format!(r#"{{"ends":["h1","h2"],"cost":5,"plain":false,{laid}"#)),
        ("link rm h1 h2", LAID, format!(r#"{{"ends":["h1","h2"],{laid}"#)),
        (
            "attach h1 tap1 --address 10.88.0.1/24",
            ATTACHED,
            r#"{"host":"h1","device":"tap1","kind":"station","mac":"02:00:00:00:00:01","bridge":null,"netns":null,"adopted":true,"address":"10.88.0.1/24","mtu_bytes":1300}"#.into(),
        ),
        (
            "proxy h1 --bridge br0",
            PROXY,
            r#"{"host":"h1","device":"transhume0","kind":"proxy","mac":"02:00:00:00:00:01","bridge":"br0","netns":null,"adopted":false,"address":null,"mtu_bytes":null}"#.into(),
        ),
        ("detach h1 tap1", "\"done\"\n", r#"{"host":"h1","device":"tap1","away":false}"#.into()),
        ("detach h1 tap1", "\"net_forgotten\"\n", r#"{"host":"h1","device":"tap1","away":true}"#.into()),
        (
            "move h1 tap1 --to h2",
            "{\"net_moved\":{\"pause_us\":900}}\n",
            r#"{"device":"tap1","from":"h1","to":"h2","pause_us":900}"#.into(),
        ),
    ];
    let stage = Stage::new("changes");
    let _requests = stage.coordinator(&cases.each_ref().map(|(_, answer, _)| *answer));
    for (line, _, expected) in &cases {
        let arguments: Vec<_> = ["net"].into_iter().chain(line.split(' ')).chain(["--json"]).collect();
        let ended = stage.run(&arguments);
        assert_eq!((text(&ended.stdout), text(&ended.stderr)), (format!("{expected}\n"), String::new()));
    }
}

#[test]
fn changes_of_the_overlay_that_fail_say_so_in_json() {
    const FAILED: &str = "{\"failed\":{\"message\":\"no host `h9`\",\"help\":\"name another\"}}\n";
    let lines = ["layout mesh", "link rm h1 h9", "attach h9 tap1", "detach h9 tap1", "move h1 tap1 --to h9"];
    let stage = Stage::new("refused");
    let _requests = stage.coordinator(&[FAILED; 5]);
    for line in lines {
        let arguments: Vec<_> = ["net"].into_iter().chain(line.split(' ')).chain(["--json"]).collect();
        let ended = stage.run(&arguments);
        assert_eq!(ended.status.code(), Some(1), "{line}");
        assert_eq!((text(&ended.stdout), text(&ended.stderr)), (String::new(), FAILED.into()), "{line}");
    }
}

/// The report of a completed move, like one in the report of a drain or a group.
fn move_over(name: &str) -> String {
    let report = MOVED
        .lines()
        .last()
        .unwrap()
        .replace("\"moved\":{\"name\":\"job\"", "\"move_over\":{\"name\":\"NAME\"");
    format!("{}\n", report.replace("NAME", name))
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[test]
fn drain_reports_moves_completed_while_the_coordinator_was_lost() {
    let stage = Stage::new("drain-lost");
    let begun = leaked(format!("{{\"draining\":{{\"instances\":3}}}}\n{}", move_over("a")));
    let rest = leaked(format!(
        "{{\"draining\":{{\"instances\":1}}}}\n{}{{\"drained\":{{\"host\":\"h1\",\"moved\":1,\"stayed\":[]}}}}\n",
        move_over("c")
    ));
    let logged = |name: &str, from: &str| {
        format!(
            "{{\"logged\":{{\"number\":9,\"time_ms\":0,\"event\":\"moved\",\"instance\":\"{name}\",\"from\":\"{from}\",\"to\":\"h2\",\"id\":4,\"epoch\":1,\"figures\":null}}}}\n"
        )
    };
    let log = leaked(format!("{}{}{}\"done\"\n", logged("a", "h1"), logged("b", "h1"), logged("d", "h3")));
    let requests = stage.coordinator(&[begun, rest, log]);
    let ended = stage.run(&["drain", "h1", "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let moves: Vec<_> =
        report["moves"].as_array().unwrap().iter().map(|of| (&of["name"], &of["restarted"])).collect();
    let expected =
        [("a", false), ("c", false), ("b", true)].map(|(name, restarted)| (name.into(), restarted.into()));
    assert_eq!(
        moves,
        expected
            .each_ref()
            .map(|(name, restarted): &(serde_json::Value, serde_json::Value)| (name, restarted))
    );
    assert_eq!(report["moved"], 3);
    assert!(requests.iter().last().unwrap().starts_with(r#"{"events":{"after":0,"since_ms":"#));
}

#[test]
fn a_drain_shows_the_rest_and_the_expected_time_if_it_is_known() {
    let stage = Stage::new("drain-rest");
    let rest =
        |instances, time| format!("{{\"remaining\":{{\"instances\":{instances},\"time_us\":{time}}}}}\n");
    let answer = leaked(format!(
        "{{\"draining\":{{\"instances\":3}}}}\n{}{}{}{{\"drained\":{{\"host\":\"h1\",\"moved\":0,\"stayed\":[]}}}}\n",
        rest(2, "1200000"),
        rest(1, "null"),
        rest(0, "0")
    ));
    let plan = "{\"plan\":[{\"name\":\"a\",\"bytes\":1048576,\"total_us\":2000,\"blackout_us\":1000,\"to\":\"h2\",\"obstacles\":[]}]}\n";
    let _requests = stage.coordinator(&[answer, plan]);
    let ended = stage.run(&["drain", "h1"]);
    let said = text(&ended.stdout);
    assert_eq!(
        said.lines().skip(1).take(2).collect::<Vec<_>>(),
        ["  2 instances left, about 2 s", "  1 instance left"]
    );
    assert_eq!(said.lines().count(), 4, "{said}");
    let planned = text(&stage.run(&["drain", "h1", "--dry-run"]).stdout);
    assert_eq!(planned, "INSTANCE  TO  SIZE     ABOUT   BLACKOUT\na         h2  1.0 MiB  2.0 ms  1.0 ms\n");
}

#[test]
fn json_drain_reports_moves_after_ctrl_c() {
    let stage = Stage::new("drain-json");
    let listener = UnixListener::bind(stage.socket()).unwrap();
    let mut command = stage.command(&["drain", "h1", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut draining, _) = listener.accept().unwrap();
    read_line(&draining);
    draining
        .write_all(format!("{{\"draining\":{{\"instances\":2}}}}\n{}", move_over("a")).as_bytes())
        .unwrap();
    wait_for_handler(child.id());
    interrupt(&child);
    let (mut undrained, _) = listener.accept().unwrap();
    assert_eq!(read_line(&undrained), r#"{"undrain":{"host":"h1"}}"#);
    undrained.write_all(b"\"done\"\n").unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    draining
        .write_all(b"{\"failed\":{\"message\":\"the drain of h1 was ended\",\"help\":\"look\"}}\n")
        .unwrap();
    errors.read_to_string(&mut said).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let failed = serde_json::json!({"failed": {"message": "the drain of h1 was ended", "help": "look"}});
    assert_eq!(json_lines(said.as_bytes()), [serde_json::json!({"ended": {"host": "h1"}}), failed]);
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&report["moved"], &report["moves"][0]["name"]), (&1.into(), &"a".into()));
}

#[test]
fn group_move_reports_a_lost_coordinator_once() {
    let stage = Stage::new("group-lost");
    let begun = "{\"group_begun\":{\"moves\":[{\"name\":\"a\",\"id\":1,\"to\":\"h2\"},{\"name\":\"b\",\"id\":2,\"to\":\"h2\"}]}}\n";
    let requests = stage.coordinator(&[begun, MOVED, MOVED]);
    let ended = stage.run(&["move", "--group", "g", "h2"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(text(&ended.stderr).matches("coordinator lost").count(), 1, "{ended:?}");
    assert_eq!(requests.iter().last().unwrap(), r#"{"follow_move":{"name":"b","id":2}}"#);
}

#[test]
fn lists_of_hosts_and_numbers_of_moves_are_checked_before_anything_is_asked() {
    let stage = Stage::new("lists");
    for (wrong, said) in [
        (&["move", "--group", "g", "h2,,h3"][..], "missing next to a comma: `h2,,h3`"),
        (&["drain", "h1", "--to", "h2,"], "missing next to a comma"),
        (&["drain", "h1", "--parallel", "33"], "33 is not in 1..=32"),
        (&["drain", "h1", "--parallel", "0"], "0 is not in 1..=32"),
    ] {
        let refused = stage.run(wrong);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(text(&refused.stderr).contains(said), "{refused:?}");
    }
}
