//! A daemon that panics ends at once.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const CHILD: &str = "TRANSHUME_TEST_PANIC";
const SIGABRT: i32 = 6;

#[test]
fn a_panic_on_another_thread_aborts_the_process() {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "child_that_panics", "--ignored", "--nocapture"]).env(CHILD, "1");
    let output = child.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(SIGABRT), "{said}");
    assert!(said.contains("half changed"), "{said}");
}

#[test]
#[ignore = "run by a_panic_on_another_thread_aborts_the_process"]
fn child_that_panics() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let _aborts = rpc::daemon::abort_on_panic();
    let _ = std::thread::spawn(|| panic!("half changed")).join();
    unreachable!("the process has ended");
}
