//! An engine for a third kind of instance, as an emulator would be: a virtual machine whose memory and disk go over channels of its own,
//! with a return path, in as many rounds as it decides itself.
//!
//! ```text
//! source                        destination
//!   │ ══ ram ══ round, memory ══▶ │
//!   │ ◀═ return ══ round ════════ │    each round is acknowledged
//!   │ ══ disk ══ contents ══════▶ │
//!   │ ◀══════════ "mirrored" ════ │    on the same channel
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use engine_api::{
    Capabilities, Channels, Coming, Destination, Driver, Dump, Engine, Error, ImageSink, Intent, LeftMemory,
    Local, MemorySink, Needs, Outgoing, Phase, Phases, Postcopy, Recovered, Report, Result, Running,
    Shortage, Source, State, Watch,
};
use instance::{Blocker, InstanceName, InstanceSpec, Kind, Region, Workload};

use super::engine::{World, unknown};

/// The rounds before the machine stops.
const ROUNDS: u8 = 3;

/// The round that is sent when it has stopped.
const LAST: u8 = u8::MAX;

const DISK: &[u8] = &[3; 1 << 20];

/// Virtual machines of one host. Outlives the nodes that use it.
pub struct FakeVmEngine {
    world: Arc<World>,
    machines: Mutex<HashMap<InstanceName, Machine>>,
    /// A machine has arrived as a whole.
    changed: Condvar,
    pub fail_restore: AtomicBool,
    /// Nothing of a machine is taken as long as it is locked.
    pub gate: Mutex<()>,
}

struct Machine {
    spec: InstanceSpec,
    state: State,
    memory: Vec<u8>,
    disk: Vec<u8>,
    /// Memory and disk are here.
    is_whole: bool,
}

impl FakeVmEngine {
    pub fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world,
            machines: Mutex::default(),
            changed: Condvar::new(),
            fail_restore: AtomicBool::new(false),
            gate: Mutex::new(()),
        })
    }

    /// The guest writes to its memory.
    pub fn write(&self, name: &str, address: usize, byte: u8) {
        self.with(&InstanceName::new(name).unwrap(), |machine| machine.memory[address] = byte).unwrap();
    }

    /// The guest reads its memory, where it runs.
    pub fn read(&self, name: &str, address: usize) -> Option<u8> {
        let read = |machine: &mut Machine| (machine.state == State::Running).then(|| machine.memory[address]);
        self.with(&InstanceName::new(name).unwrap(), read).ok().flatten()
    }

    /// Whether the machine is known here.
    pub fn has(&self, name: &str) -> bool {
        self.lock().contains_key(&InstanceName::new(name).unwrap())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceName, Machine>> {
        self.machines.lock().unwrap()
    }

    fn with<T>(&self, name: &InstanceName, work: impl FnOnce(&mut Machine) -> T) -> Result<T> {
        self.lock().get_mut(name).map(work).ok_or_else(|| unknown(name))
    }

    fn change(&self, name: &InstanceName, from: State, to: State) -> Result<Running> {
        self.with(name, |machine| {
            if machine.state != from {
                return Err(Error::Other(format!("`{name}` is {:?}, and must be {from:?}", machine.state)));
            }
            machine.state = to;
            Ok(Running { pid: None, phases: Phases::default(), outage: None })
        })?
    }

    fn add(&self, spec: &InstanceSpec, disk: &[u8], is_whole: bool) -> Result<()> {
        let Workload::Vm(vm) = &spec.workload else { return Err(Error::Other("it is no machine".into())) };
        let memory = vec![0; usize::try_from(vm.memory).unwrap()];
        let (spec, disk) = (spec.clone(), disk.to_vec());
        let machine = Machine { spec, state: State::Prepared, memory, disk, is_whole };
        self.lock().insert(machine.spec.name.clone(), machine);
        Ok(())
    }
}

impl Engine for FakeVmEngine {
    fn capabilities(&self) -> Capabilities {
        Capabilities { kinds: &[Kind::Vm], precopy: Driver::Engine }
    }

    fn create(&self, spec: &InstanceSpec) -> Result<()> {
        self.add(spec, DISK, true)
    }

    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>> {
        Ok(Box::new(Here { engine: self, name: name.clone() }))
    }

    fn destroy(&self, name: &InstanceName) -> Result<()> {
        self.lock().remove(name);
        self.changed.notify_all();
        Ok(())
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        let machines = self.lock();
        let recovered = machines.values().map(|machine| Recovered {
            spec: machine.spec.clone(),
            state: machine.state,
            pid: None,
        });
        Ok(recovered.collect())
    }

    fn source(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Source>> {
        Ok(Box::new(Leaving { here: Here { engine: self, name: name.clone() }, open: Mutex::default() }))
    }

    fn destination(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Destination>> {
        Ok(Box::new(Here { engine: self, name: name.clone() }))
    }
}

/// A machine on its host, or where it is to be.
struct Here {
    engine: Arc<FakeVmEngine>,
    name: InstanceName,
}

impl Local for Here {
    fn network_namespace(&self) -> Result<OwnedFd> {
        Ok(self.engine.world.network(self.name.as_str()))
    }

    fn start(&self) -> Result<Running> {
        self.engine.change(&self.name, State::Prepared, State::Running)
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        Ok(self.engine.world.wait(&self.name, timeout))
    }

    fn shortage(&self) -> Shortage {
        Shortage::default()
    }
}

/// The source side of a machine's move, with its channels.
struct Leaving {
    here: Here,
    open: Mutex<Option<Open>>,
}

struct Open {
    ram: UnixStream,
    back: UnixStream,
}

impl Leaving {
    /// Sends the memory as it is now, and waits until the destination has it.
    fn send_round(&self, open: &mut Open, round: u8) -> io::Result<()> {
        let name = &self.here.name;
        let memory = self.here.engine.with(name, |machine| machine.memory.clone());
        let memory = memory.map_err(|error| io::Error::other(error.to_string()))?;
        open.ram.write_all(&[round])?;
        open.ram.write_all(&memory)?;
        let mut acknowledged = [0];
        open.back.read_exact(&mut acknowledged)?;
        assert_eq!(acknowledged, [round]);
        Ok(())
    }

    fn mirror(&self, channels: &Arc<dyn Channels>) -> io::Result<()> {
        let mut disk = UnixStream::from(channels.connect("disk")?);
        let contents = self.here.engine.with(&self.here.name, |machine| machine.disk.clone());
        disk.write_all(&contents.map_err(|error| io::Error::other(error.to_string()))?)?;
        let mut answer = [0; 8];
        disk.read_exact(&mut answer)?;
        assert_eq!(&answer, b"mirrored");
        Ok(())
    }
}

impl Source for Leaving {
    fn check(&self, intent: Intent) -> Result<Report> {
        let blocker = || Blocker::new("a virtual machine cannot be saved", "move it instead");
        let memory = self.here.engine.with(&self.here.name, |machine| machine.memory.len() as u64)?;
        let needs = Needs { memory, details: Vec::new() };
        Ok(Report { blockers: intent.is_saved.then(blocker).into_iter().collect(), needs })
    }

    fn precopy(&self, to: Outgoing<'_>, watch: &Watch<'_>) -> Result<()> {
        let rounds = || {
            self.mirror(to.channels)?;
            let (ram, back) = (to.channels.connect("ram")?, to.channels.connect("return")?);
            let mut open = Open { ram: ram.into(), back: back.into() };
            for round in 0..ROUNDS {
                self.send_round(&mut open, round)?;
            }
            *self.open.lock().unwrap() = Some(open);
            Ok(())
        };
        rounds().map_err(|error| broken(&error, watch))
    }

    fn ready(&self, _: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    fn suspend(&self, memory: Option<&dyn MemorySink>, watch: &Watch<'_>) -> Result<Dump> {
        assert!(memory.is_some(), "it was to be saved");
        let (engine, name) = (&self.here.engine, &self.here.name);
        let mut open = self.open.lock().unwrap();
        let open = open.as_mut().ok_or_else(|| unknown(name))?;
        engine.change(name, State::Running, State::Stopped)?;
        if let Err(error) = self.send_round(open, LAST) {
            engine.change(name, State::Stopped, State::Running)?;
            return Err(broken(&error, watch));
        }
        Ok(Dump {
            directory: PathBuf::from("/"),
            images: Vec::new(),
            phases: Phases::default(),
            outage: None,
        })
    }

    fn resume(&self) -> Result<Running> {
        self.here.engine.change(&self.here.name, State::Stopped, State::Running)
    }

    fn stands_still(&self) -> bool {
        false
    }

    fn left_memory(&self) -> Result<Arc<dyn LeftMemory>> {
        Err(unknown(&self.here.name))
    }
}

fn broken(error: &io::Error, watch: &Watch<'_>) -> Error {
    if (watch.cancelled)() {
        return Error::Cancelled;
    }
    let (what, remedy) = ("its machine could not be sent", "check the other host, and move it again");
    Error::Failed { what: what.into(), reason: error.to_string(), remedy: remedy.into() }
}

impl Here {
    /// Takes rounds of memory until the last one.
    fn take_rounds(&self, channels: &Arc<dyn Channels>) -> io::Result<()> {
        let mut ram = UnixStream::from(channels.connect("ram")?);
        let mut back = UnixStream::from(channels.connect("return")?);
        let length = self.engine.with(&self.name, |machine| machine.memory.len());
        let mut memory = vec![0; length.map_err(|error| io::Error::other(error.to_string()))?];
        loop {
            let mut round = [0];
            ram.read_exact(&mut round)?;
            ram.read_exact(&mut memory)?;
            drop(self.engine.gate.lock().unwrap());
            let take = |machine: &mut Machine| {
                machine.memory.clone_from(&memory);
                machine.is_whole = round == [LAST] && machine.disk == DISK;
            };
            self.engine.with(&self.name, take).map_err(|error| io::Error::other(error.to_string()))?;
            self.engine.changed.notify_all();
            back.write_all(&round)?;
            if round == [LAST] {
                return Ok(());
            }
        }
    }

    fn take_disk(&self, channels: &Arc<dyn Channels>) -> io::Result<()> {
        let mut disk = UnixStream::from(channels.connect("disk")?);
        let mut contents = vec![0; DISK.len()];
        disk.read_exact(&mut contents)?;
        let taken = self.engine.with(&self.name, |machine| machine.disk = contents);
        taken.map_err(|error| io::Error::other(error.to_string()))?;
        disk.write_all(b"mirrored")
    }
}

impl Destination for Here {
    fn verify(&self, _: &Needs, is_postcopy: bool) -> Result<Vec<Blocker>> {
        let blocker =
            || Blocker::new("a machine runs with all its memory only", "move it without --post-copy");
        Ok(is_postcopy.then(blocker).into_iter().collect())
    }

    fn prepare(&self, coming: Coming<'_>) -> Result<()> {
        let Some(channels) = coming.channels else { return Err(unknown(&self.name)) };
        self.engine.add(coming.spec, &[], false)?;
        for take in [Self::take_rounds, Self::take_disk] {
            let (engine, name, channels) = (self.engine.clone(), self.name.clone(), channels.clone());
            // A channel that breaks is seen by the source.
            thread::spawn(move || take(&Self { engine, name }, &channels));
        }
        Ok(())
    }

    fn sink(&self) -> Result<Box<dyn ImageSink>> {
        Ok(Box::new(Nothing))
    }

    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>> {
        Ok(None)
    }

    fn restore(&self, watch: &Watch<'_>) -> Result<Phases> {
        if self.engine.fail_restore.swap(false, Ordering::SeqCst) {
            let (what, reason) = ("its machine could not be started", "the test says so".into());
            return Err(Error::Failed { what: what.into(), reason, remedy: "move it again".into() });
        }
        let is_coming = |machines: &mut HashMap<_, Machine>| {
            machines.get(&self.name).is_some_and(|machine| !machine.is_whole)
        };
        let machines = self.engine.lock();
        let waited = self.engine.changed.wait_timeout_while(machines, watch.timeout, is_coming);
        drop(waited.unwrap());
        if self.engine.with(&self.name, |machine| machine.state)? == State::Held {
            return Ok(Phases::default());
        }
        self.engine.change(&self.name, State::Prepared, State::Held)?;
        Ok(Phases(vec![Phase { name: "restore".into(), elapsed_us: 1 }]))
    }

    fn release(&self, _: &Watch<'_>) -> Result<Running> {
        self.engine.change(&self.name, State::Held, State::Running)
    }

    fn abort(&self) -> Result<()> {
        self.engine.destroy(&self.name)
    }
}

/// All of a machine comes over its channels.
struct Nothing;

impl ImageSink for Nothing {
    fn begin(&mut self) {}

    fn write(&mut self, _: Region, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn lay_out(&mut self, _: Region, _: &[(u64, u64)]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn leave(&mut self, _: Region, _: &[(u64, u64)]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn file(&mut self, _: &str) -> io::Result<File> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
