//! Inspects a tree that runs.

use super::Tree;
use crate::criu::check;
use crate::criu::pages::archives::{self, FileSystem};
use crate::error::{Doing, Result};
use crate::memory::MemorySink;

impl Tree {
    /// What a look for what pins it goes by.
    pub fn subject(&self) -> Result<check::Subject<'_>> {
        let first = self.first()?.id().pid;
        Ok(check::Subject { first, network: &self.record.spec.network, own: self.root.own() })
    }

    /// Its first process, and what is in memory beside that of processes, if `memory` takes it.
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
