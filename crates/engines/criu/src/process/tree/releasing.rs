//! Destination: lets the held tree run.

use std::time::Instant;

use super::Tree;
use super::place::Place;
use crate::criu::repair_mode;
use crate::engine::{Running, State, Watch};
use crate::error::{Doing, Error, Result};
use crate::process::record::{Record, Records};
use crate::process::site::Site;
use crate::stopwatch::Stopwatch;

impl Tree {
    /// Releases the held tree with its link, and returns its first process. If this cannot be recorded before, the tree stays held.
    ///
    /// Up to CRIU's hook `pre-resume`, the link is cut and the node does not listen for the tree. A tree that fails before this
    /// hook is killed, and its images are kept for another attempt. That attempt gets another namespace, because packets of its
    /// closed connections still wait in this one. At the hook, CRIU has set up each thread, and the tree would run even if CRIU
    /// died. From there on nothing is repeated: the tree runs, or it is lost.
    pub fn release(&mut self, site: &Site, records: &Records, watch: &Watch<'_>) -> Result<Running> {
        let mut clock = Stopwatch::start(watch);
        let running = Record { state: State::Running, ..self.record.clone() };
        // When the tree is complete, there may be no room any more.
        let running = records.stage(&running)?;
        records.save(&Record { releasing: true, ..self.record.clone() })?;
        let complete = self.complete().and_then(|()| self.link.mend().doing(|| "mending the link".into()));
        if let Err(error) = complete {
            self.drop_held();
            Place { namespace: self.namespace, link: self.link, root: self.root } =
                Place::make(&self.record.spec, site)?;
            // A reader of the older record finds that its first process is gone.
            let _older = records.save(&self.record);
            return Err(error);
        }
        clock.lap("complete");
        self.record.state = State::Running;
        // The older record says that the tree may run.
        let _older = running.commit();
        let let_go = self.let_go();
        clock.lap("resume");
        let first = self.first().map(|first| first.id().pid);
        match first {
            Ok(pid) => Ok(Running { pid: Some(pid), phases: clock.stop(), outage: None }),
            Err(_) => Err(self.lost(let_go)),
        }
    }

    /// Lets CRIU complete the held tree, up to its last hook.
    fn complete(&mut self) -> Result<()> {
        let name = &self.record.spec.name;
        let criu = self.criu.as_mut().ok_or_else(|| Error::Unknown(name.clone()))?;
        criu.answer(true)?;
        criu.run_to(Some("pre-resume"), &Watch::QUIET, Instant::now() + Watch::QUIET.timeout)?;
        self.root.restore_process_limit()?;
        self.first().map(drop)
    }

    fn let_go(&mut self) -> Result<()> {
        // The sockets left repair mode while the link was cut.
        let probed = self.tree().map(|tree| repair_mode::probe(&tree));
        let Some(mut criu) = self.criu.take() else { return Ok(()) };
        criu.answer(true)?;
        criu.run_to(None, &Watch::QUIET, Instant::now() + Watch::QUIET.timeout)?;
        probed?.doing(|| "probing the peers of TCP connections".into())
    }

    fn lost(&mut self, let_go: Result<()>) -> Error {
        self.record.state = State::Ended;
        let reason = let_go.err().map_or_else(|| "its processes are gone".to_owned(), |why| why.to_string());
        Error::Lost { name: self.record.spec.name.clone(), reason }
    }
}
