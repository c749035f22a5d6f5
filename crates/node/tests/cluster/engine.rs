//! An engine whose instances are network namespaces: processes are the test's own threads, which go
//! wherever their instance's node listens.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engines::{
    Blocker, Dump, Engine, Error, Host, LeftBehind, MemorySink, Needs, Owner, PAGE, Phase, Phases, Recovered,
    Report, Result, Running, Shortage, State, Watch,
};
use fabric::netns;
use instance::{ImageFile, InstanceName, InstanceSpec};

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
}

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

/// What a node gets; the engine itself outlives it, as processes do.
pub struct Handle(pub Arc<FakeEngine>);

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
        let (_, state) = here.get_mut(name).ok_or_else(|| Error::Unknown(name.clone()))?;
        if *state != from {
            return Err(Error::State { name: name.clone(), is: "something else", must: "ready for this" });
        }
        *state = to;
        // No process: whoever reaches the instance's socket may attach.
        Ok(Running { pid: 0, phases: Phases::default() })
    }

    fn images(&self, name: &InstanceName) -> PathBuf {
        self.directory.join(name.as_str())
    }
}

fn refused_by_criu(doing: &'static str, name: &InstanceName) -> Error {
    Error::Criu { doing, name: name.clone(), reason: "the test says so".into() }
}

impl Engine for Handle {
    fn host(&self) -> Result<Host> {
        Ok(Host {
            kernel: "6.18.0".into(),
            criu: (4, 2, 0),
            architecture: "x86_64".into(),
            cpu_features: Vec::new(),
            memory_available: 1 << 30,
            image_room: 1 << 30,
            layer_room: 1 << 30,
            containers: false,
            controllers: Vec::new(),
        })
    }

    fn prepare(&self, spec: &InstanceSpec, _: u64) -> Result<()> {
        if self.0.fail_prepare.swap(false, Ordering::SeqCst) {
            return Err(Error::unusable("the test says so", "let it"));
        }
        fs::create_dir_all(self.0.images(&spec.name)).unwrap();
        self.0.here.lock().unwrap().insert(spec.name.clone(), (spec.clone(), State::Prepared));
        Ok(())
    }

    fn network_namespace(&self, name: &InstanceName) -> Result<OwnedFd> {
        Ok(self.0.world.network(name.as_str()))
    }

    fn start(&self, name: &InstanceName) -> Result<Running> {
        drop(self.0.start_gate.lock().unwrap());
        self.0.change(name, State::Prepared, State::Running)
    }

    fn check(&self, _: &InstanceName, _: bool) -> Result<Report> {
        let (files, support, controllers) = (Vec::new(), Vec::new(), Vec::new());
        let needs = Needs {
            files,
            memory: 0,
            layer: 0,
            container: false,
            image: None,
            rootfs: None,
            support,
            controllers,
            host: self.host()?,
        };
        Ok(Report { blockers: Vec::new(), needs })
    }

    fn verify(&self, _: &Needs) -> Result<Vec<Blocker>> {
        Ok(Vec::new())
    }

    fn arm(&self, name: &InstanceName) -> Result<()> {
        self.0.armed.lock().unwrap().insert(name.clone());
        Ok(())
    }

    fn await_memory(&self, _: &InstanceName) -> Result<()> {
        Err(Error::unusable("nothing is left behind here", "move it as others are"))
    }

    fn pager(&self, _: &InstanceName) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn be_whole(&self, _: &InstanceName) -> Result<()> {
        Ok(())
    }

    fn left_behind(&self, name: &InstanceName) -> Result<LeftBehind> {
        Err(Error::Unknown(name.clone()))
    }

    fn disarm(&self, name: &InstanceName) -> Result<()> {
        self.0.armed.lock().unwrap().remove(name);
        Ok(())
    }

    fn await_turn(&self, _: &InstanceName, _: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    fn show_memory(&self, _: &InstanceName, memory: &dyn MemorySink, _: &Watch<'_>) -> Result<()> {
        let show = || {
            memory.begin()?;
            memory.take(Owner::Process(1), 0x1000, &[5; 3 * PAGE])?;
            memory.end()
        };
        show().map_err(Error::NotTaken)
    }

    fn suspend(
        &self,
        name: &InstanceName,
        memory: Option<&dyn MemorySink>,
        watch: &Watch<'_>,
    ) -> Result<Dump> {
        if self.0.fail_dump.swap(false, Ordering::SeqCst) {
            return Err(refused_by_criu("dump", name));
        }
        self.0.change(name, State::Running, State::Stopped)?;
        self.0.armed.lock().unwrap().remove(name);
        memory.map_or(Ok(()), |memory| self.show_memory(name, memory, watch))?;
        let directory = self.0.images(name);
        fs::write(directory.join("pages.img"), CONTENT).unwrap();
        fs::write(directory.join("empty.img"), []).unwrap();
        let image = |name: &str, size| ImageFile { name: name.into(), size };
        let images = vec![image("empty.img", 0), image("pages.img", CONTENT.len() as u64)];
        Ok(Dump { images, phases: Phases::default() })
    }

    fn image_directory(&self, name: &InstanceName) -> Result<PathBuf> {
        Ok(self.0.images(name))
    }

    fn restore(&self, name: &InstanceName, _: &Watch<'_>) -> Result<Phases> {
        if self.0.fail_restore.swap(false, Ordering::SeqCst) {
            return Err(refused_by_criu("restore", name));
        }
        if self.0.here.lock().unwrap().get(name).is_some_and(|(_, state)| *state == State::Held) {
            return Ok(Phases::default());
        }
        self.0.take_time();
        drop(self.0.restore_gate.lock().unwrap());
        assert_eq!(fs::read(self.0.images(name).join("pages.img")).unwrap(), CONTENT);
        assert!(self.0.images(name).join("empty.img").exists());
        self.0.change(name, State::Prepared, State::Held)?;
        Ok(Phases(vec![Phase { name: "restore".into(), elapsed_us: 1 }]))
    }

    fn release(&self, name: &InstanceName, _: &Watch<'_>) -> Result<Running> {
        if self.0.fail_release.swap(false, Ordering::SeqCst) {
            return Err(Error::unusable("the test says so", "let it"));
        }
        drop(self.0.release_gate.lock().unwrap());
        self.0.change(name, State::Held, State::Running)
    }

    fn resume(&self, name: &InstanceName) -> Result<Running> {
        self.0.change(name, State::Stopped, State::Running)
    }

    fn abort(&self, name: &InstanceName) -> Result<()> {
        self.destroy(name)
    }

    fn destroy(&self, name: &InstanceName) -> Result<()> {
        self.0.take_time();
        self.0.armed.lock().unwrap().remove(name);
        self.0.here.lock().unwrap().remove(name);
        let _ = fs::remove_dir_all(self.0.images(name));
        Ok(())
    }

    fn wait(&self, name: &InstanceName, timeout: Duration) -> Result<bool> {
        let world = &self.0.world;
        let ended = world.ended.lock().unwrap();
        let (ended, _) =
            world.changed.wait_timeout_while(ended, timeout, |ended| !ended.contains(name)).unwrap();
        Ok(ended.contains(name))
    }

    fn shortage(&self, _: &InstanceName) -> Shortage {
        Shortage::default()
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        let mut here = self.0.here.lock().unwrap();
        let recovered = here.values_mut().map(|(spec, state)| {
            if *state == State::Held {
                *state = State::Prepared;
            }
            Recovered { spec: spec.clone(), state: *state, pid: None }
        });
        Ok(recovered.collect())
    }
}
