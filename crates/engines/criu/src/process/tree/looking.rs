//! Inspects a running tree.

use super::Tree;
use crate::criu::check;
use crate::criu::pages::archives::{self, FileSystem};
use crate::error::{Doing, Result};
use crate::memory::MemorySink;

impl Tree {
    /// Returns the subject of a check for blockers.
    pub fn subject(&self) -> Result<check::Subject<'_>> {
        let first = self.first()?.id().pid;
        Ok(check::Subject { first, network: &self.record.spec.network, own: self.root.own() })
    }

    /// Returns its first process, and the file systems in memory if `memory` accepts their archives.
    pub fn to_look_at(&self, memory: &dyn MemorySink) -> Result<(i32, Vec<FileSystem>)> {
        let first = self.first()?.id().pid;
        let own = self.root.own().filter(|_| memory.takes_archives());
        let file_systems = own.map(|own| archives::worth_a_look(&own, first)).transpose();
        Ok((
            first,
            file_systems.doing(|| format!("reading the mounts of process {first}"))?.unwrap_or_default(),
        ))
    }
}
