//! Programs in C, compiled against the installed headers.

use std::path::Path;
use std::process::Command;

use broker::local::LocalFabric;

/// Compiles `tests/c/NAME.c`, and runs it in an instance of its own, for a minute at most: it takes a second, and more on a
/// busy machine.
pub fn run(name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut build = Command::new("cc");
    build
        .args(["-std=gnu11", "-Wall", "-g", "-o"])
        .arg(&program)
        .arg(&source)
        // Links only the used ones of these, as some distributions' compilers do by themselves.
        .args(["-Wl,--as-needed", "-lrdmacm", "-libverbs"]);
    assert!(build.status().expect("a C compiler").success(), "is librdmacm-dev installed?");

    let fabric = LocalFabric::new(1).expect("brokers");
    let instance = fabric.add_instance(0).expect("a network namespace: these tests run as root");
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).env("LD_LIBRARY_PATH", test_support::libraries::folder());
    let output = instance.enter(&mut command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}", output.status);
}
