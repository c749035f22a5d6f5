//! The benchmark of libfabric's tcp provider. Debian has none, so it is built from `programs/fabric_perf.c` when it is
//! needed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::artifacts;
use e2e::program::run;

/// Time limit of the compilation.
const LIMIT: Duration = Duration::from_secs(60);

/// Builds the program. It is not part of the workspace's build, so that only its users need libfabric.
///
/// # Errors
/// If it cannot be compiled.
pub fn build() -> Result<PathBuf> {
    const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/fabric_perf.c");
    let program = artifacts::folder()?.join("fabric_perf");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-o"]).arg(&program).args([SOURCE, "-lfabric"]);
    run(&mut compiler, LIMIT).context("cannot build fabric_perf: is libfabric-dev installed?")?;
    Ok(program)
}
