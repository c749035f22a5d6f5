//! Starts CRIU before the blackout, up to the point at which it would touch the tree or needs its images.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Tree;
use crate::criu::rpc::Request;
use crate::criu::run::{Criu, Launch};
use crate::criu::{guard, images};
use crate::engine::{State, Watch};
use crate::error::{Doing, Result};
use crate::init;
use crate::process::record::Records;
use crate::process::site::{Config, Site};

/// How long CRIU may take to start, which takes hundredths of a second.
const ARMED: Duration = Duration::from_secs(10);

impl Tree {
    /// Chooses another directory for the images if `bytes` do not fit into the present one, which was chosen when the instance had
    /// no memory yet.
    pub fn place_images(&mut self, directories: &[PathBuf], bytes: u64) -> Result<()> {
        if self.is_armed() || images::fit(&self.record.images, bytes)? {
            return Ok(());
        }
        let place = images::make_room(directories, &self.record.spec.name, bytes)?;
        images::delete(&std::mem::replace(&mut self.record.images, place))
    }

    /// Starts CRIU for the next step, up to the point at which it would touch the instance or needs its images.
    pub fn arm(&mut self, config: &Config, site: &Site, records: &Records) -> Result<()> {
        let criu = match self.record.state {
            State::Running => self.arm_dump(config)?,
            State::Prepared => {
                self.make_root(site)?;
                let stage = images::stage(&self.record.images)?;
                self.start_pager(config, &stage)?;
                self.launch_restore(config, &stage)?
            }
            _ => return Ok(()),
        };
        self.record.criu = Some(criu.id());
        if let Err(error) = records.save(&self.record) {
            self.record.criu = None;
            return Err(error);
        }
        self.criu = Some(criu);
        Ok(())
    }

    pub(super) fn arm_dump(&self, config: &Config) -> Result<Criu> {
        self.must_be_whole()?;
        let pid = self.first()?.id().pid;
        images::clear(&self.record.images)?;
        guard::clean(Path::new(init::DIRECTORY));
        let mut criu = self.launch(&config.criu, Request::Dump { pid }, &self.record.images)?;
        criu.run_to(Some("pre-dump"), &Watch::QUIET, Instant::now() + ARMED)?;
        criu.guard(&config.init)?;
        Ok(criu)
    }

    /// Ends the armed CRIU, if there is one, and gives the turn back.
    pub fn disarm(&mut self, records: &Records) -> Result<()> {
        self.turn = None;
        if self.criu.take().is_none() {
            return Ok(());
        }
        self.record.criu = None;
        records.save(&self.record)
    }

    /// Starts a CRIU that will restore. CRIU tests the loopback, on which an earlier attempt may have held packets back.
    pub(super) fn launch_restore(&mut self, config: &Config, images: &Path) -> Result<Criu> {
        self.link.let_through().doing(|| "letting held packets through".into())?;
        self.root.end_trial();
        self.launch(&config.criu, Request::Restore { lazily: self.record.lazily }, images)
    }

    pub(super) fn launch(&self, program: &Path, request: Request, images: &Path) -> Result<Criu> {
        Criu::start(&Launch {
            program,
            namespace: self.namespace.as_fd(),
            images,
            name: &self.record.spec.name,
            own: self.root.own(),
            request,
        })
    }
}
