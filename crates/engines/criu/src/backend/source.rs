//! The source side of a move, for process trees.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use engine_api::{
    Dump, Error, Intent, LeftMemory, MemorySink, Needs, Outgoing, Report, Result, Running, Source, Watch,
};
use instance::{InstanceName, Region};

use crate::memory::{self, Owner};
use crate::{LeftBehind, ProcessEngine};

/// Starts CRIU while the instance runs, and takes the turn to dump. Dropping it undoes both.
pub struct Departure {
    engine: Arc<ProcessEngine>,
    name: InstanceName,
    /// Whether this side has started CRIU or taken the turn.
    is_armed: AtomicBool,
    arming: Mutex<Option<JoinHandle<()>>>,
}

impl Departure {
    pub fn new(engine: Arc<ProcessEngine>, name: InstanceName) -> Self {
        Self { engine, name, is_armed: AtomicBool::new(false), arming: Mutex::default() }
    }

    /// Starts CRIU in the background. A failed start is repeated when CRIU is needed.
    fn arm_soon(&self) {
        self.is_armed.store(true, Ordering::Relaxed);
        let (engine, name) = (self.engine.clone(), self.name.clone());
        let arming = thread::Builder::new().spawn(move || {
            let _again_later = engine.arm(&name);
        });
        *self.arming.lock().expect("no thread panics while it holds the lock") = arming.ok();
    }
}

impl Source for Departure {
    fn check(&self, intent: Intent) -> Result<Report> {
        let crate::Report { blockers, needs } = self.engine.check(&self.name, intent.is_saved)?;
        if intent.leaves && blockers.is_empty() {
            self.arm_soon();
        }
        let details = postcard::to_stdvec(&needs).map_err(|error| Error::Other(error.to_string()))?;
        Ok(Report { blockers, needs: Needs { memory: needs.memory, details } })
    }

    fn precopy(&self, to: Outgoing<'_>, watch: &Watch<'_>) -> Result<()> {
        Ok(self.engine.show_memory(&self.name, &Regions(to.memory), watch)?)
    }

    fn ready(&self, watch: &Watch<'_>) -> Result<()> {
        self.is_armed.store(true, Ordering::Relaxed);
        self.engine.arm(&self.name)?;
        Ok(self.engine.await_turn(&self.name, watch)?)
    }

    fn suspend(&self, memory: Option<&dyn MemorySink>, watch: &Watch<'_>) -> Result<Dump> {
        let regions = memory.map(Regions);
        let sink = regions.as_ref().map(|regions| regions as &dyn memory::MemorySink);
        let crate::Dump { images, phases } = self.engine.suspend(&self.name, sink, watch)?;
        Ok(Dump { directory: self.engine.image_directory(&self.name)?, images, phases, outage: None })
    }

    fn resume(&self) -> Result<Running> {
        Ok(self.engine.resume(&self.name)?)
    }

    fn stands_still(&self) -> bool {
        false
    }

    fn left_memory(&self) -> Result<Arc<dyn LeftMemory>> {
        Ok(Arc::new(self.engine.left_behind(&self.name)?))
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let arming = self.arming.get_mut().expect("no thread panics while it holds the lock").take();
        if let Some(arming) = arming {
            let _ended = arming.join();
        }
        if *self.is_armed.get_mut() {
            // The next change of the instance writes the record again.
            let _not_noted = self.engine.disarm(&self.name);
        }
    }
}

/// Gives pages to a node's sink by region; this engine names them by owner.
struct Regions<'a>(&'a dyn MemorySink);

impl memory::MemorySink for Regions<'_> {
    fn begin(&self) -> io::Result<()> {
        self.0.begin()
    }

    fn open(&self, owner: Owner) -> io::Result<()> {
        self.0.open(owner.region()?)
    }

    fn takes_archives(&self) -> bool {
        true
    }

    fn expect(&self, bytes: u64) {
        self.0.expect(bytes);
    }

    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        self.0.take(owner.region()?, address, pages)
    }

    fn leaves_pages(&self) -> bool {
        self.0.leaves_pages()
    }

    fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        self.0.take_later(owner.region()?, address, pages)
    }

    fn end(&self) -> io::Result<()> {
        self.0.end()
    }
}

impl LeftMemory for LeftBehind {
    fn read(&self, region: Region, address: u64, into: &mut [u8]) -> io::Result<()> {
        match Owner::of(region)? {
            Owner::Process(pid) => Self::read(self, pid, address, into),
            Owner::Shared(_) | Owner::Archive(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }
}
