//! The source side of a move.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine_api::{
    Dump, Error, Intent, LeftMemory, MemorySink, Outage, Outgoing, Phase, Phases, Report, Result, Running,
    Source, State, Watch,
};
use engine_criu::shared::absent_is_fine;
use instance::{Blocker, ImageFile};

use crate::console;
use crate::disks::LocalDisk;
use crate::engine::VmEngine;
use crate::error::{Doing, disks_not_moved, not_moved, not_taken};
use crate::lock::lock;
use crate::machine::Machine;
use crate::migration::{self, Progress, Status, failed};
use crate::mirror;
use crate::needs::Details;
use crate::qmp::{Qmp, QmpError};
use crate::record::{CONSOLE, file_name};

/// A machine that may leave this host.
pub struct Departure {
    engine: Arc<VmEngine>,
    machine: Arc<Mutex<Machine>>,
    /// Whether a migration that has not ended was begun by this side.
    is_sending: AtomicBool,
    /// The disks that this side mirrors.
    mirrored: Mutex<Vec<LocalDisk>>,
}

impl Departure {
    /// Opens the side. Nothing changes.
    pub fn new(engine: Arc<VmEngine>, machine: Arc<Mutex<Machine>>) -> Self {
        Self { engine, machine, is_sending: AtomicBool::new(false), mirrored: Mutex::default() }
    }

    fn emulator(&self) -> Result<Arc<Mutex<Qmp>>> {
        lock(&self.machine).emulator()
    }

    /// Mirrors the local disks, until the destination has all their blocks.
    fn mirror(&self, to: Outgoing<'_>, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let local = lock(&self.machine).local_disks()?;
        let qmp = self.emulator()?;
        if local.is_empty() {
            return Ok(());
        }
        self.is_sending.store(true, Ordering::SeqCst);
        lock(&self.mirrored).clone_from(&local);
        // What a move before this one has left, if its node was killed.
        mirror::abandon(&mut lock(&qmp), &local);
        mirror::begin(&qmp, to.channels, &local, goes_on).map_err(|error| disks_not_moved(&error))
    }

    /// Gives up what this side mirrors.
    fn abandon_mirrors(&self, qmp: &mut Qmp) {
        let mirrored = std::mem::take(&mut *lock(&self.mirrored));
        if !mirrored.is_empty() {
            mirror::abandon(qmp, &mirrored);
        }
    }

    /// Sends the memory until the switchover is near.
    fn send(&self, channel: &OwnedFd, goes_on: &dyn Fn() -> bool) -> std::result::Result<Progress, QmpError> {
        let qmp = self.emulator().map_err(|error| QmpError::Refused(error.to_string()))?;
        self.is_sending.store(true, Ordering::SeqCst);
        migration::send(&mut lock(&qmp), channel)?;
        migration::converge(&qmp, goes_on)
    }

    /// Stops the guest and sends the rest. The image is the console's output that the node does not have.
    fn switch_over(&self, machine: &mut Machine, watch: &Watch<'_>) -> Result<Switched> {
        let began = Instant::now();
        let goes_on = || !(watch.cancelled)() && began.elapsed() < watch.timeout;
        let emulator = machine.emulator()?;
        let mut qmp = lock(&emulator);
        let stopped = migration::stop(&mut qmp, goes_on).map_err(|error| not_moved(&error))?;
        must_be(&stopped, Status::PreSwitchover, watch)?;
        let stopped = Instant::now();
        let mut phases = vec![phase("stop", began)];
        let since = Instant::now();
        machine.link.cut().doing(|| "cutting the link".into())?;
        phases.push(phase("cut", since));
        let cut = Instant::now();
        let since = cut;
        let mirrored = std::mem::take(&mut *lock(&self.mirrored));
        if !mirrored.is_empty() {
            let ended = mirror::finish(&mut qmp, &mirrored, &goes_on);
            if let Err(error) = ended {
                mirror::abandon(&mut qmp, &mirrored);
                return Err(disks_not_moved(&error));
            }
            phases.push(phase("disks", since));
        }
        let since = Instant::now();
        let completed = migration::complete(&mut qmp, goes_on).map_err(|error| not_moved(&error))?;
        must_be(&completed, Status::Completed, watch)?;
        phases.push(phase("memory", since));
        drop(qmp);
        let image = self.save_console(machine)?;
        Ok(Switched { image, phases: Phases(phases), stopped, cut })
    }

    fn save_console(&self, machine: &Machine) -> Result<ImageFile> {
        let pid = machine.emulator_pid()?;
        let bytes = console::waiting(pid).doing(|| format!("reading the console of `{}`", machine.name()))?;
        let path = machine.console(&self.engine.records);
        fs::write(&path, &bytes).doing(|| format!("writing {}", path.display()))?;
        Ok(ImageFile { name: file_name(machine.name(), CONSOLE), size: bytes.len() as u64 })
    }

    /// Lets the guest run on after a switchover that has failed.
    fn run_on(&self, machine: &Machine) -> Result<()> {
        let emulator = machine.emulator()?;
        let mut qmp = lock(&emulator);
        self.abandon_mirrors(&mut qmp);
        migration::cancel(&mut qmp).doing(|| "cancelling the migration".into())?;
        self.is_sending.store(false, Ordering::SeqCst);
        machine.link.mend().doing(|| "mending the link".into())?;
        migration::cont(&mut qmp).doing(|| "letting the guest run on".into())
    }
}

impl Source for Departure {
    fn check(&self, intent: Intent) -> Result<Report> {
        let machine = lock(&self.machine);
        let saved = || Blocker::new("a virtual machine cannot be saved as a checkpoint", "move it instead");
        let mut blockers: Vec<Blocker> = intent.is_saved.then(saved).into_iter().collect();
        if let Some(blocker) = blocked(&machine)? {
            blockers.push(blocker);
        }
        let vm = machine.vm()?;
        Ok(Report {
            blockers,
            needs: Details::of(vm, &machine.record.hardware, machine.local_disks()?).encode(vm),
        })
    }

    fn precopy(&self, to: Outgoing<'_>, watch: &Watch<'_>) -> Result<()> {
        if let Err(error) = self.mirror(to, &|| !(watch.cancelled)()) {
            return Err(if (watch.cancelled)() { Error::Cancelled } else { error });
        }
        let channel = to.channels.connect(migration::CHANNEL).map_err(not_taken)?;
        let sent = self.send(&channel, &|| !(watch.cancelled)()).map_err(|error| not_moved(&error))?;
        match sent.status {
            _ if (watch.cancelled)() => Err(Error::Cancelled),
            Status::Active | Status::PreSwitchover => Ok(()),
            _ => Err(not_moved(&failed(&sent))),
        }
    }

    fn ready(&self, _: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    fn suspend(&self, memory: Option<&dyn MemorySink>, watch: &Watch<'_>) -> Result<Dump> {
        if memory.is_none() {
            return Err(Error::Other("a virtual machine cannot be saved as a checkpoint".into()));
        }
        let mut machine = lock(&self.machine);
        machine.must_be(State::Running)?;
        let switched = self.switch_over(&mut machine, watch).and_then(|switched| {
            self.engine.enter(&mut machine, State::Stopped)?;
            Ok(switched)
        });
        match switched {
            Ok(Switched { image, phases, stopped, cut }) => {
                self.is_sending.store(false, Ordering::SeqCst);
                let directory = self.engine.records.directory().to_owned();
                let outage = Some(Outage { processors: stopped.elapsed(), link: cut.elapsed() });
                Ok(Dump { directory, images: vec![image], phases, outage })
            }
            Err(error) => {
                self.run_on(&machine)?;
                Err(error)
            }
        }
    }

    fn resume(&self) -> Result<Running> {
        let mut machine = lock(&self.machine);
        if machine.record.state != State::Running {
            machine.must_be(State::Stopped)?;
            if let Err(error) = self.run_on(&machine) {
                // An emulator that does not answer has no guest any more. Its end is what the node waits for.
                machine.kill();
                // It has not moved away, so its disks keep their names.
                self.engine.enter(&mut machine, State::Ended)?;
                return Err(error);
            }
            self.engine.enter(&mut machine, State::Running)?;
            let left = machine.console(&self.engine.records);
            absent_is_fine(fs::remove_file(&left)).doing(|| format!("deleting {}", left.display()))?;
        }
        Ok(Running { pid: Some(machine.first_pid()?), phases: Phases::default(), outage: None })
    }

    fn left_memory(&self) -> Result<Arc<dyn LeftMemory>> {
        Err(Error::Other("post-copy is not supported for virtual machines".into()))
    }
}

impl Drop for Departure {
    /// Lets the guest of a move that ends early run at full speed again.
    fn drop(&mut self) {
        if self.is_sending.load(Ordering::SeqCst)
            && let Ok(emulator) = self.emulator()
        {
            let mut qmp = lock(&emulator);
            self.abandon_mirrors(&mut qmp);
            let _ended = migration::cancel(&mut qmp);
        }
    }
}

/// A guest that is stopped, with all of it at the destination.
struct Switched {
    image: ImageFile,
    phases: Phases,
    /// When the processors had stopped.
    stopped: Instant,
    /// When the link was cut.
    cut: Instant,
}

/// The reason why QEMU cannot migrate the machine, such as a device.
fn blocked(machine: &Machine) -> Result<Option<Blocker>> {
    let emulator = machine.emulator()?;
    let answer = lock(&emulator).execute("query-migrate", serde_json::json!({}));
    let answer = answer.doing(|| format!("asking the emulator of `{}`", machine.name()))?;
    let reasons = answer["blocked-reasons"].as_array();
    let reason = reasons.and_then(|reasons| reasons.first()?.as_str());
    let blocker =
        |reason| Blocker::new(format!("QEMU says: {reason}"), "remove that device from the machine");
    Ok(reason.map(blocker))
}

/// Refuses a migration that is not where it should be.
fn must_be(now: &Progress, status: Status, watch: &Watch<'_>) -> Result<()> {
    match now.status {
        found if found == status => Ok(()),
        _ if (watch.cancelled)() => Err(Error::Cancelled),
        Status::Active | Status::PreSwitchover | Status::Device => Err(not_moved(&QmpError::Refused(
            "the guest writes to its memory faster than it can be sent".into(),
        ))),
        _ => Err(not_moved(&failed(now))),
    }
}

fn phase(name: &str, since: Instant) -> Phase {
    Phase { name: name.into(), elapsed_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX) }
}
