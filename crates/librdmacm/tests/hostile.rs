//! A program whose neighbour is hostile: C, compiled against the installed headers, in an instance of its own.
//!
//! Needs a C compiler, librdmacm-dev, and the right to make network namespaces.

mod library;

use std::path::Path;
use std::process::Command;

use broker::local::LocalFabric;

#[test]
fn a_hostile_neighbour_hurts_only_its_own_connections() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/neighbour.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("neighbour");
    let mut build = Command::new("cc");
    build
        .args(["-std=gnu11", "-Wall", "-g", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-lrdmacm", "-libverbs"]);
    assert!(build.status().expect("a C compiler").success(), "is librdmacm-dev installed?");

    let fabric = LocalFabric::new(1).expect("brokers");
    let instance = fabric.add_instance(0).expect("a network namespace: these tests run as root");
    // For a minute at most: it takes a second, and more on a busy machine.
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).env("LD_LIBRARY_PATH", library::folder());
    let output = instance.enter(&mut command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
}
