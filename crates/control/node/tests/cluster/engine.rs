//! An engine whose instances are network namespaces: processes are the test's own threads, which go
//! wherever their instance's node listens.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engine_api::{
    Capabilities, Coming, Destination, Driver, Dump, Engine, Error, ImageSink, Intent, LeftMemory, Local,
    MemorySink, Needs, Outgoing, PAGE, Phase, Phases, Postcopy, Recovered, Report, Result, Running, Shortage,
    Source, State, Watch,
};
use fabric::netns;
use instance::{Blocker, ImageFile, InstanceName, InstanceSpec, Kind, Region};

const CONTENT: &[u8] = &[7; 3 * 1024 * 1024];

/// Bytes in an instance's images but those of memory.
pub const IMAGES: u64 = CONTENT.len() as u64;

/// The namespaces of all instances, and which instances have ended.
#[derive(Default)]
pub struct World {
    networks: Mutex<HashMap<InstanceName, OwnedFd>>,
    ended: Mutex<Vec<InstanceName>>,
    changed: Condvar,
}

impl World {
    pub fn network(&self, name: &str) -> OwnedFd {
        let name = InstanceName::new(name).unwrap();
        let mut networks = self.networks.lock().unwrap();
        networks.entry(name).or_insert_with(|| netns::create().unwrap()).try_clone().unwrap()
    }

    /// The instance's first process ends.
    pub fn end(&self, name: &str) {
        self.ended.lock().unwrap().push(InstanceName::new(name).unwrap());
        self.changed.notify_all();
    }

    /// Waits until the instance has ended; `false` if `timeout` came first.
    pub fn wait(&self, name: &InstanceName, timeout: Duration) -> bool {
        let ended = self.ended.lock().unwrap();
        let (ended, _) =
            self.changed.wait_timeout_while(ended, timeout, |ended| !ended.contains(name)).unwrap();
        ended.contains(name)
    }
}

/// Outlives the nodes that use it, as processes do.
pub struct FakeEngine {
    world: Arc<World>,
    directory: PathBuf,
    here: Mutex<HashMap<InstanceName, (InstanceSpec, State)>>,
    armed: Mutex<HashSet<InstanceName>>,
    pub fail_prepare: AtomicBool,
    pub fail_dump: AtomicBool,
    pub fail_restore: AtomicBool,
    /// It stays held.
    pub fail_release: AtomicBool,
    /// Instances do not start as long as it is locked.
    pub start_gate: Mutex<()>,
    /// No restore ends as long as it is locked.
    pub restore_gate: Mutex<()>,
    /// Restored instances are not let go as long as it is locked.
    pub release_gate: Mutex<()>,
    /// How long a restore takes, and a removal.
    pub delay: Mutex<Duration>,
}

impl FakeEngine {
    pub fn new(world: Arc<World>, directory: PathBuf) -> Arc<Self> {
        fs::create_dir_all(&directory).unwrap();
        Arc::new(Self {
            world,
            directory,
            here: Mutex::default(),
            armed: Mutex::default(),
            fail_prepare: AtomicBool::new(false),
            fail_dump: AtomicBool::new(false),
            fail_restore: AtomicBool::new(false),
            fail_release: AtomicBool::new(false),
            start_gate: Mutex::new(()),
            restore_gate: Mutex::new(()),
            release_gate: Mutex::new(()),
            delay: Mutex::default(),
        })
    }

    pub fn is_armed(&self, name: &str) -> bool {
        self.armed.lock().unwrap().contains(&InstanceName::new(name).unwrap())
    }

    fn take_time(&self) {
        let delay = *self.delay.lock().unwrap();
        std::thread::sleep(delay);
    }

    pub fn has(&self, name: &str) -> bool {
        self.here.lock().unwrap().contains_key(&InstanceName::new(name).unwrap())
    }

    fn change(&self, name: &InstanceName, from: State, to: State) -> Result<Running> {
        let mut here = self.here.lock().unwrap();
        let (_, state) = here.get_mut(name).ok_or_else(|| unknown(name))?;
        if *state != from {
            return Err(Error::Other(format!("instance `{name}` is {state:?}, and must be {from:?}")));
        }
        *state = to;
        // No process: whoever reaches the instance's socket may attach.
        Ok(Running { pid: None, phases: Phases::default(), outage: None })
    }

    fn images(&self, name: &InstanceName) -> PathBuf {
        self.directory.join(name.as_str())
    }

    fn destroy_here(&self, name: &InstanceName) {
        self.take_time();
        self.armed.lock().unwrap().remove(name);
        self.here.lock().unwrap().remove(name);
        let _ = fs::remove_dir_all(self.images(name));
    }
}

pub fn unknown(name: &InstanceName) -> Error {
    Error::Other(format!("there is no instance `{name}` on this host"))
}

fn refused_by_criu(what: &str) -> Error {
    let (reason, remedy) = ("CRIU says: the test says so".into(), "move it again".into());
    Error::Failed { what: what.into(), reason, remedy }
}

impl Engine for FakeEngine {
    fn capabilities(&self) -> Capabilities {
        Capabilities { kinds: &[Kind::Process, Kind::Container], precopy: Driver::Node }
    }

    fn create(&self, spec: &InstanceSpec) -> Result<()> {
        if self.fail_prepare.swap(false, Ordering::SeqCst) {
            return Err(Error::unusable("the test says so", "let it"));
        }
        fs::create_dir_all(self.images(&spec.name)).unwrap();
        self.here.lock().unwrap().insert(spec.name.clone(), (spec.clone(), State::Prepared));
        Ok(())
    }

    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>> {
        Ok(Box::new(Here::new(self, name, false)))
    }

    fn destroy(&self, name: &InstanceName) -> Result<()> {
        self.destroy_here(name);
        Ok(())
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        let mut here = self.here.lock().unwrap();
        let recovered = here.values_mut().map(|(spec, state)| {
            if *state == State::Held {
                *state = State::Prepared;
            }
            Recovered { spec: spec.clone(), state: *state, pid: None }
        });
        Ok(recovered.collect())
    }

    fn source(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Source>> {
        Ok(Box::new(Here::new(self, name, true)))
    }

    fn destination(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Destination>> {
        Ok(Box::new(Here::new(self, name, false)))
    }
}

/// An instance on its host, and either side of its moves.
struct Here {
    engine: Arc<FakeEngine>,
    name: InstanceName,
    /// Whether this is the source side, which takes back what it has got ready.
    is_source: bool,
}

impl Here {
    fn new(engine: Arc<FakeEngine>, name: &InstanceName, is_source: bool) -> Self {
        Self { engine, name: name.clone(), is_source }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let here = self.engine.here.lock().unwrap();
        if self.is_source && here.get(&self.name).is_some_and(|(_, state)| *state == State::Running) {
            self.engine.armed.lock().unwrap().remove(&self.name);
        }
    }
}

impl Local for Here {
    fn network_namespace(&self) -> Result<OwnedFd> {
        Ok(self.engine.world.network(self.name.as_str()))
    }

    fn start(&self) -> Result<Running> {
        drop(self.engine.start_gate.lock().unwrap());
        self.engine.change(&self.name, State::Prepared, State::Running)
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        Ok(self.engine.world.wait(&self.name, timeout))
    }

    fn shortage(&self) -> Shortage {
        Shortage::default()
    }
}

impl Source for Here {
    fn check(&self, intent: Intent) -> Result<Report> {
        if intent.leaves {
            self.engine.armed.lock().unwrap().insert(self.name.clone());
        }
        Ok(Report { blockers: Vec::new(), needs: Needs::default() })
    }

    fn precopy(&self, to: Outgoing<'_>, _: &Watch<'_>) -> Result<()> {
        show(to.memory).map_err(Error::NotTaken)
    }

    fn ready(&self, _: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    fn suspend(&self, memory: Option<&dyn MemorySink>, _: &Watch<'_>) -> Result<Dump> {
        if self.engine.fail_dump.swap(false, Ordering::SeqCst) {
            return Err(refused_by_criu("its processes could not be dumped"));
        }
        self.engine.change(&self.name, State::Running, State::Stopped)?;
        self.engine.armed.lock().unwrap().remove(&self.name);
        memory.map_or(Ok(()), show).map_err(Error::NotTaken)?;
        let directory = self.engine.images(&self.name);
        fs::write(directory.join("pages.img"), CONTENT).unwrap();
        fs::write(directory.join("empty.img"), []).unwrap();
        let image = |name: &str, size| ImageFile { name: name.into(), size };
        let images = vec![image("empty.img", 0), image("pages.img", CONTENT.len() as u64)];
        Ok(Dump { directory, images, phases: Phases::default(), outage: None })
    }

    fn resume(&self) -> Result<Running> {
        self.engine.change(&self.name, State::Stopped, State::Running)
    }

    fn stands_still(&self) -> bool {
        false
    }

    fn left_memory(&self) -> Result<Arc<dyn LeftMemory>> {
        Err(unknown(&self.name))
    }
}

/// Three pages, always the same.
fn show(memory: &dyn MemorySink) -> io::Result<()> {
    memory.begin()?;
    memory.take(Region(1), 0x1000, &[5; 3 * PAGE])?;
    memory.end()
}

impl Destination for Here {
    fn verify(&self, _: &Needs, is_postcopy: bool) -> Result<Vec<Blocker>> {
        let blocker = || Blocker::new("nothing is left behind here", "move it without --post-copy");
        Ok(is_postcopy.then(blocker).into_iter().collect())
    }

    fn prepare(&self, coming: Coming<'_>) -> Result<()> {
        self.engine.create(coming.spec)
    }

    fn sink(&self) -> Result<Box<dyn ImageSink>> {
        Ok(Box::new(Files { directory: self.engine.images(&self.name) }))
    }

    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>> {
        Ok(None)
    }

    fn restore(&self, _: &Watch<'_>) -> Result<Phases> {
        if self.engine.fail_restore.swap(false, Ordering::SeqCst) {
            return Err(refused_by_criu("it could not be restored"));
        }
        if self.engine.here.lock().unwrap().get(&self.name).is_some_and(|(_, state)| *state == State::Held) {
            return Ok(Phases::default());
        }
        self.engine.take_time();
        drop(self.engine.restore_gate.lock().unwrap());
        assert_eq!(fs::read(self.engine.images(&self.name).join("pages.img")).unwrap(), CONTENT);
        assert!(self.engine.images(&self.name).join("empty.img").exists());
        self.engine.change(&self.name, State::Prepared, State::Held)?;
        Ok(Phases(vec![Phase { name: "restore".into(), elapsed_us: 1 }]))
    }

    fn release(&self, _: &Watch<'_>) -> Result<Running> {
        if self.engine.fail_release.swap(false, Ordering::SeqCst) {
            return Err(Error::unusable("the test says so", "let it"));
        }
        drop(self.engine.release_gate.lock().unwrap());
        self.engine.change(&self.name, State::Held, State::Running)
    }

    fn abort(&self) -> Result<()> {
        self.engine.destroy_here(&self.name);
        Ok(())
    }
}

/// Keeps image files, and looks at no memory.
struct Files {
    directory: PathBuf,
}

impl ImageSink for Files {
    fn begin(&mut self) {}

    fn write(&mut self, region: Region, _: u64, pages: &[u8]) -> io::Result<()> {
        assert_eq!((region, pages), (Region(1), &[5; 3 * PAGE][..]));
        Ok(())
    }

    fn lay_out(&mut self, _: Region, _: &[(u64, u64)]) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: Region, _: &[(u64, u64)]) -> io::Result<()> {
        Ok(())
    }

    fn file(&mut self, name: &str) -> io::Result<File> {
        File::create_new(self.directory.join(name))
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
