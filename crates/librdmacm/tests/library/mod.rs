//! The libraries under test.

use std::path::PathBuf;
use std::process::Command;

/// Builds them, since cargo builds for tests only what they link, and says where they are.
pub fn folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(|deps| deps.parent()).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "librdmacm", "--package", "libibverbs", "--target-dir"]);
    build.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    profile.join("lib")
}
