//! Starts and ends the pager of a post-copy move.

use std::path::Path;

use super::Tree;
use crate::criu::paging::Pager;
use crate::error::{Doing, Error, Result};
use crate::process::record::Records;
use crate::process::site::Config;

impl Tree {
    /// Starts a pager for the tree that CRIU restores from `images`, if these lack a part of the memory.
    pub(super) fn start_pager(&mut self, config: &Config, images: &Path) -> Result<()> {
        self.end_pager();
        if self.record.lazily {
            let started = Pager::start(&config.init, images);
            let pager = started.doing(|| format!("starting the pager of `{}`", self.record.spec.name))?;
            self.record.pager = Some(pager.id());
            self.pager = Some(pager);
        }
        Ok(())
    }

    /// Tells the pager which pages the images lack.
    pub(super) fn brief_pager(&self) -> Result<()> {
        let told = self.pager.iter().try_for_each(|pager| pager.owe(&self.record.images));
        told.doing(|| {
            format!("sending the list of missing pages to the pager of `{}`", self.record.spec.name)
        })
    }

    pub(super) fn unpaged(&self) -> Error {
        Error::unusable(format!("the pager of `{}` has ended", self.record.spec.name), "move it again")
    }

    pub(super) fn end_pager(&mut self) {
        self.record.pager = None;
        if let Some(pager) = self.pager.take() {
            pager.end();
        }
    }

    /// Refuses a call that needs all of the memory.
    pub fn must_be_whole(&self) -> Result<()> {
        if self.pager.is_none() {
            return Ok(());
        }
        let what = format!("a part of the memory of `{}` is still on its old host", self.record.spec.name);
        Err(Error::unusable(what, "wait until it has been fetched"))
    }

    /// Records that no page is missing any more.
    pub fn finish_postcopy(&mut self, records: &Records) -> Result<()> {
        self.record.pager = None;
        records.save(&self.record)?;
        let dismissed = self.pager.take().map_or(Ok(()), Pager::dismiss);
        dismissed.doing(|| format!("dismissing the pager of `{}`", self.record.spec.name))
    }
}
