//! Prepares an instance, and starts its command.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;

use super::Tree;
use super::place::Place;
use crate::criu::repair_mode;
use crate::criu::root::FirstProcess;
use crate::engine::State;
use crate::error::{Doing, Error, Result};
use crate::instance::{InstanceSpec, ResourceLimit};
use crate::linux::task::{Task, TaskId};
use crate::process::record::{Record, Records};
use crate::process::site::Site;

impl Tree {
    /// Makes a namespace for an instance, with its link cut.
    pub fn prepare(spec: InstanceSpec, images: &Path, site: &Site) -> Result<Self> {
        let record = Record {
            version: Record::VERSION,
            spec,
            state: State::Prepared,
            releasing: false,
            first: None,
            criu: None,
            images: images.to_owned(),
            paused: Vec::new(),
            reuse: repair_mode::Reuse::new(),
            binds: None,
            lazily: false,
            pager: None,
        };
        let Place { namespace, link, root } = Place::make(&record.spec, site)?;
        Ok(Self { record, namespace, link, root, first: None, criu: None, turn: None, pager: None })
    }

    /// Makes the root file system, unless it exists.
    pub fn make_root(&mut self, site: &Site) -> Result<()> {
        if !self.root.is_made() {
            let made = site.make_root(&self.record.spec, self.namespace.as_fd())?;
            self.record.binds = made.own().map(|own| own.binds.to_vec());
            self.root = made;
        }
        Ok(())
    }

    /// Starts the command, and returns the first process's PID. A short command may have ended by now.
    pub fn start(&mut self, init: &[OsString], descriptors: ResourceLimit) -> Result<i32> {
        let (name, network) = (&self.record.spec.name, self.namespace.as_fd());
        let program = self.record.spec.program().ok_or_else(|| Error::Unknown(name.clone()))?;
        let pid = self.root.start(&FirstProcess { name, program, init, network, descriptors })?;
        self.first = TaskId::of(pid).ok().and_then(Task::open);
        self.record.first = self.first.as_ref().map(Task::id);
        Ok(pid)
    }

    /// Brings up the link of an instance that has just started. A short command may have ended by now.
    pub fn begin(&mut self, records: &Records) -> Result<()> {
        self.link.mend().doing(|| "mending the link".into())?;
        self.record.state = State::Running;
        records.save(&self.record)
    }
}
