//! The root file system of a process instance: its host's. A move does nothing with it.

use crate::criu::root::{FirstProcess, RootFileSystem};
use crate::error::{Doing, Result};
use crate::instance::Kind;
use crate::process::launch;

/// The host's root file system.
pub struct HostRoot;

impl RootFileSystem for HostRoot {
    fn start(&mut self, first: &FirstProcess<'_>) -> Result<i32> {
        let FirstProcess { name, program, init, network, descriptors } = *first;
        let limits = [&[descriptors], &program.limits[..]].concat();
        launch::start(program, Kind::Process, init, network, Vec::new(), limits)
            .doing(|| format!("starting `{name}` in {}", program.directory.display()))
    }
}
