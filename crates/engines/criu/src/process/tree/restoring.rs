//! Destination: restores the tree, and holds it.

use std::time::{Duration, Instant};

use super::Tree;
use crate::criu::fixups::{Fixups, StoppedTree};
use crate::criu::images;
use crate::criu::paging::Pager;
use crate::criu::run::Criu;
use crate::engine::{Phases, State, Watch};
use crate::error::{Doing, Error, Result};
use crate::linux::task::{Task, TaskId};
use crate::process::record::Records;
use crate::process::site::{Config, Site};
use crate::report::Shortage;
use crate::stopwatch::Stopwatch;

impl Tree {
    /// Lets CRIU restore the tree and hold it before its last step. Undoes a failed attempt.
    pub fn restore(
        &mut self,
        config: &Config,
        site: &Site,
        records: &Records,
        watch: &Watch<'_>,
    ) -> Result<Phases> {
        let mut clock = Stopwatch::start(watch);
        self.make_root(site)?;
        let mut criu = self.begin_restore(config, watch)?;
        self.record.criu = Some(criu.id());
        let before = self.root.shortage();
        let pager = self.pager.as_ref().map(Pager::task).transpose();
        let pager = pager.doing(|| format!("watching the pager of `{}`", self.record.spec.name))?;
        let is_paged = || pager.as_ref().is_none_or(|pager| !pager.ended_within(Duration::ZERO));
        // CRIU waits for killed processes.
        let kills = self.root.kills();
        let is_short = || kills.as_ref().is_some_and(|any| any());
        let is_over = || (watch.cancelled)() || !is_paged() || is_short();
        let watched = Watch { cancelled: &is_over, ..*watch };
        let restored = self.restore_with(&mut criu, records, &watched, &mut clock);
        let restored = if is_paged() { restored } else { Err(self.unpaged()) };
        let restored = restored.map_err(|error| self.or_shortage(error, before));
        if restored.is_ok() {
            self.criu = Some(criu);
        } else {
            drop(criu);
            self.drop_held();
            images::unstage(&self.record.images)?;
        }
        records.save(&self.record)?;
        clock.lap("record");
        restored.map(|()| clock.stop())
    }

    /// Replaces CRIU's error if the kernel has killed processes for lack of memory: CRIU reports only that a process was killed, or
    /// not even that.
    fn or_shortage(&self, error: Error, before: Shortage) -> Error {
        let may_be = matches!(error, Error::Criu { .. } | Error::Cancelled | Error::TimedOut { .. });
        let shortage = if may_be { self.root.out_of_memory(before) } else { None };
        shortage.unwrap_or(error)
    }

    /// Returns the armed CRIU, if there is one, with the images.
    fn begin_restore(&mut self, config: &Config, watch: &Watch<'_>) -> Result<Criu> {
        let images = self.record.images.clone();
        self.root.unpack_written(&images, watch)?;
        let images = images.as_path();
        let Some(mut armed) = self.criu.take() else {
            self.start_pager(config, images)?;
            self.brief_pager()?;
            return self.launch_restore(config, images);
        };
        self.brief_pager()?;
        let stage = images::show(images)?;
        armed.feed(&images.join(images::INVENTORY), &stage.join(images::INVENTORY), watch)?;
        Ok(armed)
    }

    fn restore_with(
        &mut self,
        criu: &mut Criu,
        records: &Records,
        watch: &Watch<'_>,
        clock: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let end = Instant::now() + watch.timeout;
        criu.run_to(Some("pre-restore"), watch, end)?;
        clock.lap("start of CRIU");
        self.link.hold_back().doing(|| "holding packets back".into())?;
        criu.answer(true)?;
        criu.run_to(Some("setup-namespaces"), watch, end)?;
        // On disk before the tree is more than an empty process: after a crash, the recovery ends it.
        self.first = criu.root().and_then(|pid| TaskId::of(pid).ok()).and_then(Task::open);
        self.record.first = self.first.as_ref().map(Task::id);
        records.save(&self.record)?;
        if let Some((pager, first)) = self.pager.as_ref().zip(self.first.as_ref()) {
            let named = pager.name_root(first);
            named.doing(|| format!("naming the instance to the pager of `{}`", self.record.spec.name))?;
        }
        if let Some(first) = self.record.first {
            self.root.join_cgroups(first.pid)?;
        }
        criu.answer(true)?;
        criu.run_to(Some("post-restore"), watch, end)?;
        let (name, images, tree) = (&self.record.spec.name, &self.record.images, self.tree()?);
        let has_own_root = self.root.own().is_some();
        Fixups::all().apply(&StoppedTree { name, images, tree: &tree, has_own_root })?;
        self.record.state = State::Held;
        clock.lap("restore");
        Ok(())
    }
}
