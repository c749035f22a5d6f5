//! The engine of a host, and one machine there.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use engine_api::wiring::Wiring;
use engine_api::{
    Capabilities, Destination, Driver, Engine, Error, Guest, Local, Phases, Recovered, Result, Running,
    Shortage, Source, State,
};
use engine_criu::shared::{Bridge, Task, memory_available};
use fabric::NetworkKind;
use instance::{Blocker, InstanceName, InstanceSpec, Kind};

use crate::command::Begin;
use crate::config::Config;
use crate::destination::Arrival;
use crate::emulator::Emulator;
use crate::error::Doing;
use crate::lock::lock;
use crate::machine::{Machine, vm_of};
use crate::migration;
use crate::needs;
use crate::record::{Hardware, Record, Records};
use crate::source::Departure;

/// The engine; one for each state directory.
pub struct VmEngine {
    pub(crate) config: Config,
    pub(crate) records: Records,
    emulator: OnceLock<Emulator>,
    pub(crate) machines: Mutex<HashMap<InstanceName, Arc<Mutex<Machine>>>>,
}

impl VmEngine {
    /// Makes an engine that does not know its machines yet: see [`Engine::recover`]. The emulator may be missing until a machine needs it.
    ///
    /// # Errors
    /// If the state directory cannot be made, or other users can write to it.
    pub fn new(config: Config) -> Result<Self> {
        let records = Records::open(config.state.clone())?;
        Ok(Self { config, records, emulator: OnceLock::new(), machines: Mutex::default() })
    }

    /// A machine of this host.
    ///
    /// # Errors
    /// If it is unknown.
    pub(crate) fn find(&self, name: &InstanceName) -> Result<Arc<Mutex<Machine>>> {
        let unknown = || Error::Other(format!("`{name}` is not on this host"));
        lock(&self.machines).get(name).cloned().ok_or_else(unknown)
    }

    /// The installed emulator. It is inspected once.
    ///
    /// # Errors
    /// If it is not installed, or does not work.
    pub(crate) fn emulator(&self) -> Result<&Emulator> {
        if let Some(emulator) = self.emulator.get() {
            return Ok(emulator);
        }
        let emulator = Emulator::inspect(&self.config.emulator)?;
        Ok(self.emulator.get_or_init(|| emulator))
    }

    /// Makes a machine's namespace and devices, and records it. Nothing runs.
    ///
    /// # Errors
    /// If the host lacks something, or a machine of this name is here and has not ended.
    pub(crate) fn prepare(&self, spec: &InstanceSpec, hardware: Hardware) -> Result<Arc<Mutex<Machine>>> {
        let name = &spec.name;
        if let Ok(present) = self.find(name) {
            lock(&present).must_be(State::Ended)?;
            self.remove(name)?;
        }
        let record = Record {
            version: Record::VERSION,
            spec: spec.clone(),
            hardware,
            state: State::Prepared,
            first: None,
            made: Vec::new(),
        };
        let mut machine = Machine::make(record, self.wiring(spec.network_kind)?)?;
        if let Err(error) = self.records.save(&machine.record) {
            machine.remove()?;
            return Err(error);
        }
        let machine = Arc::new(Mutex::new(machine));
        lock(&self.machines).insert(name.clone(), machine.clone());
        Ok(machine)
    }

    /// The wiring for network devices of this kind.
    pub(crate) fn wiring(&self, kind: NetworkKind) -> Result<Arc<dyn Wiring>> {
        let missing = || {
            Error::unusable("this host is not part of an overlay", "choose another host, or use the bridge")
        };
        match kind {
            NetworkKind::Bridge => Ok(Arc::new(Bridge(self.config.bridge.clone()))),
            NetworkKind::Overlay => self.config.overlay.clone().ok_or_else(missing),
        }
    }

    /// The blocker, if the host has less than `wanted` bytes of memory for one more machine. Memory of machines that are on their way
    /// counts as used.
    ///
    /// # Errors
    /// If the host does not say what it has.
    pub(crate) fn lacks_memory(&self, wanted: u64, own: &InstanceName) -> Result<Option<Blocker>> {
        let machines: Vec<_> = lock(&self.machines).values().cloned().collect();
        let promised = machines.iter().filter_map(|machine| {
            // A machine that is busy with its restore has most of its memory.
            let machine = machine.try_lock().ok()?;
            let comes = machine.record.state == State::Prepared && machine.name() != own;
            comes.then(|| machine.vm().map_or(0, needs::memory))
        });
        let free = memory_available()?.saturating_sub(promised.sum());
        Ok((free < wanted).then(|| {
            let what =
                format!("the machine needs {} MiB of memory, and {} MiB are free", wanted >> 20, free >> 20);
            Blocker::new(
                what,
                "end other programs there, give the machine less with --memory, or choose another host",
            )
        }))
    }

    /// Kills and deletes a machine, in any state.
    pub(crate) fn remove(&self, name: &InstanceName) -> Result<()> {
        let Ok(machine) = self.find(name) else { return Ok(()) };
        lock(&machine).remove()?;
        self.records.forget(name)?;
        lock(&self.machines).remove(name);
        Ok(())
    }

    /// Records another state. An older record leads to the same result after a restart, or the caller does not go on.
    pub(crate) fn enter(&self, machine: &mut Machine, state: State) -> Result<()> {
        let record = Record { state, ..machine.record.clone() };
        self.records.save(&record)?;
        machine.record = record;
        Ok(())
    }
}

impl Engine for VmEngine {
    fn capabilities(&self) -> Capabilities {
        Capabilities { kinds: &[Kind::Vm], precopy: Driver::Engine }
    }

    fn create(&self, spec: &InstanceSpec) -> Result<()> {
        let vm = vm_of(spec)?;
        let hardware = self.emulator()?.hardware(vm)?;
        needs::must_exist(vm)?;
        if let Some(Blocker { what, remedy }) = self.lacks_memory(needs::memory(vm), &spec.name)? {
            return Err(Error::unusable(what, remedy));
        }
        self.prepare(spec, hardware).map(drop)
    }

    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>> {
        let machine = self.find(name)?;
        Ok(Box::new(Here { engine: self, machine }))
    }

    fn destroy(&self, name: &InstanceName) -> Result<()> {
        self.remove(name)
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        self.recover_all()
    }

    fn source(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Source>> {
        let machine = self.find(name)?;
        Ok(Box::new(Departure::new(self, machine)))
    }

    fn destination(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Destination>> {
        Ok(Box::new(Arrival { engine: self, name: name.clone() }))
    }
}

/// A machine on this host.
struct Here {
    engine: Arc<VmEngine>,
    machine: Arc<Mutex<Machine>>,
}

impl Here {
    /// Its first process, if it runs; without the machine's lock, which other calls need.
    fn first(&self) -> Result<Option<Task>> {
        let machine = lock(&self.machine);
        machine.first.as_ref().map(Task::try_clone).transpose().doing(|| "finding the first process".into())
    }
}

impl Local for Here {
    fn network_namespace(&self) -> Result<OwnedFd> {
        let machine = lock(&self.machine);
        machine.namespace.try_clone().doing(|| format!("finding the namespace of `{}`", machine.name()))
    }

    fn start(&self) -> Result<Running> {
        let mut machine = lock(&self.machine);
        machine.must_be(State::Prepared)?;
        let emulator = self.engine.emulator()?;
        machine.launch(&self.engine.config, emulator, &self.engine.records, Begin::New)?;
        let started = machine.link.mend().doing(|| "mending the link".into()).and_then(|()| {
            self.engine.enter(&mut machine, State::Running)?;
            migration::cont(&mut lock(&*machine.emulator()?)).doing(|| "starting the processors".into())
        });
        if let Err(error) = started {
            machine.kill();
            return Err(error);
        }
        Ok(Running { pid: Some(machine.first_pid()?), phases: Phases::default(), outage: None })
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        const PART: Duration = Duration::from_secs(1);
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let ended = self.first()?.is_none_or(|first| first.ended_within(left.min(PART)));
            if ended || left.is_zero() {
                return Ok(ended);
            }
        }
    }

    fn shortage(&self) -> Shortage {
        Shortage::default()
    }

    fn guest(&self) -> Result<Option<Guest>> {
        lock(&self.machine).guest(&self.engine.records).map(Some)
    }
}
