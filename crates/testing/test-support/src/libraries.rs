//! The drop-in libraries under test, which cargo does not build for tests that load them only.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Set where the whole workspace has been built. Building a part of it then would replace the libraries that other tests
/// are loading by ones with other features.
const BUILT: &str = "TRANSHUME_BUILT";

/// The folder with `libibverbs.so.1` and `librdmacm.so.1`, built unless all is.
///
/// # Panics
/// If they cannot be built.
#[must_use]
pub fn folder() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("a test is in a target folder");
    if env::var_os(BUILT).is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "librdmacm", "--package", "libibverbs", "--target-dir"]);
        build.arg(profile.parent().expect("a target folder"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success(), "the libraries are not built");
    }
    profile.join("lib")
}
