//! The engine of a host that has only joined the overlay: it refuses all instances.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use engines::{
    Blocker, Dump, Engine, Error, Host, LeftBehind, MemorySink, Needs, Phases, Recovered, Report, Result,
    Running, Shortage, Watch,
};
use instance::{InstanceName, InstanceSpec};

/// See the module.
pub struct NoEngine;

fn refused<T>() -> Result<T> {
    Err(Error::unusable(
        "this host runs no instances: it has only joined the overlay, with `transhume net up`",
        "choose a host that runs `transhume node`",
    ))
}

impl Engine for NoEngine {
    fn host(&self) -> Result<Host> {
        refused()
    }

    fn prepare(&self, _spec: &InstanceSpec, _memory: u64) -> Result<()> {
        refused()
    }

    fn network_namespace(&self, _name: &InstanceName) -> Result<OwnedFd> {
        refused()
    }

    fn start(&self, _name: &InstanceName) -> Result<Running> {
        refused()
    }

    fn check(&self, _name: &InstanceName, _keeps_memory: bool) -> Result<Report> {
        refused()
    }

    fn verify(&self, _needs: &Needs) -> Result<Vec<Blocker>> {
        refused()
    }

    fn arm(&self, _name: &InstanceName) -> Result<()> {
        refused()
    }

    fn await_memory(&self, _name: &InstanceName) -> Result<()> {
        refused()
    }

    fn pager(&self, _name: &InstanceName) -> Result<Option<OwnedFd>> {
        refused()
    }

    fn be_whole(&self, _name: &InstanceName) -> Result<()> {
        refused()
    }

    fn left_behind(&self, _name: &InstanceName) -> Result<LeftBehind> {
        refused()
    }

    fn disarm(&self, _name: &InstanceName) -> Result<()> {
        Ok(())
    }

    fn await_turn(&self, _name: &InstanceName, _watch: &Watch<'_>) -> Result<()> {
        refused()
    }

    fn show_memory(&self, _name: &InstanceName, _memory: &dyn MemorySink, _watch: &Watch<'_>) -> Result<()> {
        refused()
    }

    fn suspend(
        &self,
        _name: &InstanceName,
        _memory: Option<&dyn MemorySink>,
        _watch: &Watch<'_>,
    ) -> Result<Dump> {
        refused()
    }

    fn image_directory(&self, _name: &InstanceName) -> Result<PathBuf> {
        refused()
    }

    fn restore(&self, _name: &InstanceName, _watch: &Watch<'_>) -> Result<Phases> {
        refused()
    }

    fn release(&self, _name: &InstanceName, _watch: &Watch<'_>) -> Result<Running> {
        refused()
    }

    fn resume(&self, _name: &InstanceName) -> Result<Running> {
        refused()
    }

    fn abort(&self, _name: &InstanceName) -> Result<()> {
        Ok(())
    }

    fn destroy(&self, _name: &InstanceName) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _name: &InstanceName, _timeout: Duration) -> Result<bool> {
        refused()
    }

    fn shortage(&self, _name: &InstanceName) -> Shortage {
        Shortage::default()
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        Ok(Vec::new())
    }
}
