//! Programs whose neighbours are hostile: C, compiled against the installed headers, in an instance of their own.
//!
//! Needs a C compiler, librdmacm-dev, and the right to make network namespaces.

mod library;

use std::path::Path;
use std::process::Command;

use broker::local::LocalFabric;

/// Compiles and runs `tests/c/NAME.c`, for a minute at most: it takes a second, and more on a busy machine.
fn run(name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut build = Command::new("cc");
    build
        .args(["-std=gnu11", "-Wall", "-g", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-lrdmacm", "-libverbs"]);
    assert!(build.status().expect("a C compiler").success(), "is librdmacm-dev installed?");

    let fabric = LocalFabric::new(1).expect("brokers");
    let instance = fabric.add_instance(0).expect("a network namespace: these tests run as root");
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).env("LD_LIBRARY_PATH", library::folder());
    let output = instance.enter(&mut command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}", output.status);
}

#[test]
fn a_hostile_neighbour_hurts_only_its_own_connections() {
    run("neighbour");
}

#[test]
fn a_flood_of_datagrams_does_not_stop_answers() {
    run("flooded");
}

#[test]
fn at_the_limit_of_descriptors_who_wants_a_connection_waits() {
    run("full");
}
