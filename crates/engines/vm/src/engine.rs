//! The engine of a host, and one machine there.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use engine_api::wiring::Wiring;
use engine_api::{
    Capabilities, Destination, Driver, Engine, Error, Guest, Local, MachineSupport, Phases, Recovered,
    Result, Running, Shortage, Source, State,
};
use engine_criu::shared::{Bridge, Task};
use fabric::NetworkKind;
use instance::{InstanceName, InstanceSpec, Kind};
use tracing::warn;

use crate::checkpoint;
use crate::command::Begin;
use crate::config::Config;
use crate::destination::Arrival;
use crate::emulator::Emulator;
use crate::error::Doing;
use crate::kvm::Probe;
use crate::limits;
use crate::lock::lock;
use crate::machine::{Machine, vm_of};
use crate::memory::Reservations;
use crate::migration;
use crate::needs;
use crate::record::{Hardware, Record, Records, SEED};
use crate::seed::{self, SeedFile, contents};
use crate::source::Departure;

/// The engine; one for each state directory.
pub struct VmEngine {
    pub(crate) config: Config,
    pub(crate) records: Records,
    pub(crate) memory: Reservations,
    pub(crate) kvm: Probe,
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
        let kvm = match config.kvm {
            true => Probe::begin(config.emulator.clone(), records.directory()),
            false => Probe::known(Err("the node was started with `--without-kvm`".into())),
        };
        let (memory, machines) = (Reservations::default(), Mutex::default());
        Ok(Self { config, records, memory, kvm, emulator: OnceLock::new(), machines })
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

    /// Reserves a machine's memory, makes its namespace and devices, and records it. Nothing runs.
    ///
    /// # Errors
    /// If the host lacks something such as memory, or a machine of this name is here and has not ended.
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
        let wiring = self.wiring(spec.network_kind)?;
        let memory = self.memory.reserve(name, needs::memory(vm_of(spec)?))?;
        let made = Machine::make(record, wiring, memory);
        let mut machine = made.inspect_err(|_| self.memory.release(name))?;
        if let Err(error) = self.records.save(&machine.record) {
            machine.remove(&self.records)?;
            self.memory.release(name);
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

    /// Kills and deletes a machine, in any state.
    pub(crate) fn remove(&self, name: &InstanceName) -> Result<()> {
        let Ok(machine) = self.find(name) else { return Ok(()) };
        {
            let mut machine = lock(&machine);
            machine.remove(&self.records)?;
            checkpoint::delete_images(&machine, &self.records)?;
        }
        self.memory.release(name);
        self.records.forget(name)?;
        lock(&self.machines).remove(name);
        Ok(())
    }

    /// Makes the seed disk of a new machine.
    fn make_seed(&self, machine: &mut Machine, files: &[SeedFile]) -> Result<()> {
        let image = self.records.file(machine.name(), SEED);
        let size = seed::build(&image, files).doing(|| format!("writing {}", image.display()))?;
        machine.record.hardware.seed = Some(size);
        self.records.save(&machine.record)
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

    fn machines(&self) -> Option<MachineSupport> {
        let emulator = self.emulator().map(|emulator| emulator.name()).map_err(|error| error.to_string());
        let displays = self.records.directory().to_owned();
        Some(MachineSupport { emulator, kvm: self.kvm.verdict().clone(), displays })
    }

    fn create(&self, spec: &InstanceSpec) -> Result<()> {
        let vm = vm_of(spec)?;
        let hardware = self.emulator()?.hardware(vm, &self.kvm)?;
        needs::must_exist(vm)?;
        let tools = self.config.tools.as_deref();
        let files = vm.seed.as_ref().map(|seed| contents::files(spec, seed, tools)).transpose()?;
        let machine = self.prepare(spec, hardware)?;
        let Some(files) = files else { return Ok(()) };
        let made = self.make_seed(&mut lock(&machine), &files);
        if made.is_err() {
            self.remove(&spec.name)?;
        }
        made
    }

    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>> {
        let machine = self.find(name)?;
        Ok(Box::new(Here { engine: self, name: name.clone(), machine }))
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
    name: InstanceName,
    machine: Arc<Mutex<Machine>>,
}

impl Here {
    /// Its first process, if it runs; without the machine's lock, which other calls need.
    fn first(&self) -> Result<Option<Task>> {
        let machine = lock(&self.machine);
        machine.first.as_ref().map(Task::try_clone).transpose().doing(|| "finding the first process".into())
    }
}

impl Here {
    /// Lets a guest go on that QEMU has stopped because a file system of the host was full: its writes are repeated, and stop it again if there is
    /// still no room. Returns whether there was such a guest. A call that has the machine or its emulator now is not waited for.
    fn retries_writes(&self) -> bool {
        let emulator = match self.machine.try_lock() {
            Ok(machine) if machine.must_be(State::Running).is_ok() => machine.emulator(),
            _ => return false,
        };
        let Ok(emulator) = emulator else { return false };
        let Ok(mut qmp) = emulator.try_lock() else { return false };
        // A connection that fails is noticed by the next call of a user.
        qmp.take_events("BLOCK_IO_ERROR").unwrap_or(false)
            && migration::run_state(&mut qmp).is_ok_and(|state| state == "io-error")
            && migration::cont(&mut qmp).is_ok()
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
        let mut has_warned = false;
        loop {
            if self.retries_writes() && !has_warned {
                has_warned = true;
                warn!("`{}` stands still until there is room for its disks", self.name);
            }
            let left = end.saturating_duration_since(Instant::now());
            let ended = self.first()?.is_none_or(|first| first.ended_within(left.min(PART)));
            if ended || left.is_zero() {
                return Ok(ended);
            }
        }
    }

    /// Presses the power button of a guest that runs.
    fn power_down(&self) -> Result<bool> {
        let emulator = lock(&self.machine).emulator()?;
        migration::power_down(&mut lock(&emulator)).doing(|| "pressing the power button".into())?;
        Ok(true)
    }

    fn shortage(&self) -> Shortage {
        let engine_criu::shared::Shortage { kills, limit } =
            limits::shortage(self.engine.records.directory(), &self.name);
        Shortage { kills, limit }
    }

    fn guest(&self) -> Result<Option<Guest>> {
        lock(&self.machine).guest(&self.engine.records).map(Some)
    }
}
