//! Source: stops and dumps the tree.

use std::time::{Duration, Instant};

use super::Tree;
use super::cutting::cut;
use super::passing::pass_pages;
use crate::criu::fixups::{Fixups, StoppedTree};
use crate::criu::pages::fork_advice::NotCopied;
use crate::criu::run::Criu;
use crate::criu::{images, repair_mode};
use crate::engine::{State, Watch};
use crate::error::{Doing, Error, Result};
use crate::linux::orphans;
use crate::linux::task::{self, is_stopped};
use crate::memory::MemorySink;
use crate::process::record::Records;
use crate::stopwatch::Stopwatch;

/// The time in which TCP retransmits a lost segment once, at most, on a network that is not slow.
const SENT_AGAIN: Duration = Duration::from_millis(500);

impl Tree {
    /// Lets the armed CRIU stop and dump the tree, with its link cut, and gives its pages to `memory`. Undoes a failed attempt.
    pub fn freeze(
        &mut self,
        memory: &dyn MemorySink,
        records: &Records,
        watch: &Watch<'_>,
        clock: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let tree = self.tree()?;
        self.record.reuse = repair_mode::remember(&tree).doing(|| "inspecting the sockets".into())?;
        self.record.paused = tree.into_iter().filter(|pid| is_stopped(*pid)).collect();
        clock.lap("look");
        let dumped = self.dump(memory, records, watch, clock);
        self.criu = None;
        clock.lap("end of CRIU");
        match (&dumped, self.first()) {
            (Err(_), Ok(_)) => self.run_on(records)?,
            // The instance ended by itself, or with the guard of its CRIU.
            (Err(_), Err(_)) => self.record.state = State::Ended,
            (Ok(()), _) => {}
        }
        dumped
    }

    /// Waits for retransmission of segments that the last attempt has lost on connections that the running tree has closed. They
    /// would be a blocker at the next attempt too.
    pub fn settle(&self) -> Result<()> {
        let first = self.first()?.id().pid;
        let sent = orphans::have_sent_all(first, SENT_AGAIN, || false);
        sent.doing(|| format!("inspecting the connections of `{}`", self.record.spec.name)).map(drop)
    }

    fn dump(
        &mut self,
        memory: &dyn MemorySink,
        records: &Records,
        watch: &Watch<'_>,
        clock: &mut Stopwatch<'_>,
    ) -> Result<()> {
        let begin = Instant::now();
        let end = begin + watch.timeout;
        let first = self.first()?.id().pid;
        let name = &self.record.spec.name;
        let criu = self.criu.as_mut().ok_or_else(|| Error::Unknown(name.clone()))?;
        criu.answer(true)?;
        criu.run_to(Some(Criu::ALL_STOPPED), watch, end)?;
        clock.lap("stop");
        cut(&self.link, &self.record.spec, self.root.own(), first)?;
        clock.lap("cut");
        let layer = self.root.pack_written(&self.record.images)?;
        let not_copied = if memory.leaves_pages() {
            let found = task::tree(first).and_then(|tree| NotCopied::of(&tree));
            found.doing(|| format!("inspecting the memory of `{name}`"))?
        } else {
            NotCopied::default()
        };
        pass_pages(criu, &self.record.images, (memory, &not_copied), watch, end).map_err(
            |error| match error {
                Error::NotTaken(_) if images::is_full(&self.record.images) => {
                    images::no_room(name, &self.record.images)
                }
                error => error,
            },
        )?;
        clock.lap("dump");
        let tree = task::tree(first).doing(|| format!("listing the processes below {first}"))?;
        let images = &self.record.images;
        layer.succeed(watch)?;
        let has_own_root = self.root.own().is_some();
        let stopped = StoppedTree { name, images, tree: &tree, has_own_root };
        let mut fixups = Fixups::all();
        fixups.save(&stopped)?;
        // On disk before CRIU releases the tree: a restarted node must not mistake the tree for a running one. If CRIU misses the
        // answer, the tree runs on, and the engine notices that.
        self.record.state = State::Stopped;
        records.save(&self.record)?;
        criu.answer(true)?;
        criu.run_to(None, watch, end)?;
        clock.lap("leave");
        fixups.finish(&stopped, begin)
    }
}
