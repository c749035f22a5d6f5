//! The source side of a move.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine_api::{
    Dump, Error, Intent, LeftMemory, MemorySink, Outage, Outgoing, Phase, Phases, Report, Result, Running,
    Source, State, Watch,
};
use instance::{Blocker, ImageFile};

use crate::checkpoint;
use crate::disks::LocalDisk;
use crate::engine::VmEngine;
use crate::error::{Doing, disks_not_moved, not_moved, not_saved, not_taken};
use crate::lock::lock;
use crate::machine::Machine;
use crate::migration::{self, Progress, Status, failed};
use crate::mirror;
use crate::needs::Details;
use crate::qmp::{Qmp, QmpError};
use crate::record::SEED;
use crate::seed::travel;

/// A machine that may leave this host.
pub struct Departure {
    engine: Arc<VmEngine>,
    machine: Arc<Mutex<Machine>>,
    /// Whether a migration that has not ended was begun by this side.
    is_sending: AtomicBool,
    /// The disks that this side mirrors.
    mirrored: Mutex<Vec<LocalDisk>>,
    /// Their channels.
    open: mirror::Open,
}

impl Departure {
    /// Opens the side. Nothing changes.
    pub fn new(engine: Arc<VmEngine>, machine: Arc<Mutex<Machine>>) -> Self {
        Self {
            engine,
            machine,
            is_sending: AtomicBool::new(false),
            mirrored: Mutex::default(),
            open: mirror::Open::default(),
        }
    }

    fn emulator(&self) -> Result<Arc<Mutex<Qmp>>> {
        lock(&self.machine).emulator()
    }

    /// Mirrors the local disks, until the destination has all their blocks.
    fn mirror(&self, to: Outgoing<'_>, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let local = lock(&self.machine).disks_coming_along(false)?;
        let qmp = self.emulator()?;
        if local.is_empty() {
            return Ok(());
        }
        self.is_sending.store(true, Ordering::SeqCst);
        lock(&self.mirrored).clone_from(&local);
        // What a move before this one has left, if its node was killed.
        mirror::abandon(&mut lock(&qmp), &local);
        mirror::begin(&qmp, (to.channels, &self.open), &local, goes_on)
            .map_err(|error| disks_not_moved(&error))
    }

    /// Gives up what this side mirrors.
    fn abandon_mirrors(&self, qmp: &mut Qmp) {
        let mirrored = std::mem::take(&mut *lock(&self.mirrored));
        if !mirrored.is_empty() {
            self.open.cut();
            mirror::abandon(qmp, &mirrored);
        }
    }

    /// Sends the image of the seed disk, which QEMU does not mirror.
    fn send_seed(&self, to: Outgoing<'_>, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let machine = lock(&self.machine);
        let image = machine.record.hardware.seed.map(|_| self.engine.records.file(machine.name(), SEED));
        drop(machine);
        let Some(image) = image else { return Ok(()) };
        let channel = to.channels.connect(travel::CHANNEL).map_err(not_taken)?;
        travel::send(channel, &image, goes_on).map_err(not_taken)
    }

    /// Sends the memory until the switchover is near.
    fn send(&self, channel: &OwnedFd, goes_on: &dyn Fn() -> bool) -> std::result::Result<Progress, QmpError> {
        let qmp = self.emulator().map_err(|error| QmpError::Refused(error.to_string()))?;
        self.is_sending.store(true, Ordering::SeqCst);
        migration::send(&mut lock(&qmp), channel)?;
        migration::converge(&qmp, goes_on)
    }

    /// Stops the guest and sends the rest. The images are output and input of the console that have not arrived.
    fn switch_over(&self, machine: &mut Machine, watch: &Watch<'_>) -> Result<Stopped> {
        let began = Instant::now();
        let goes_on = || !(watch.cancelled)() && began.elapsed() < watch.timeout;
        let emulator = machine.emulator()?;
        let mut qmp = lock(&emulator);
        let emulator_pid = qmp.peer().doing(|| "finding the emulator".into())?;
        let held = Cell::new(None);
        let hold = || {
            let held_now = machine.hold(emulator_pid);
            held.set(Some(Instant::now()));
            held_now
        };
        let stopped = migration::stop(&mut qmp, hold, goes_on).map_err(|error| not_moved(&error))?;
        must_be(&stopped, Status::PreSwitchover, watch)?;
        // A guest that hardly writes may have stopped by itself.
        let stopped = held.get().unwrap_or_else(Instant::now);
        let mut phases = vec![phase("stop", began)];
        let since = Instant::now();
        machine.link.cut().doing(|| "cutting the link".into())?;
        phases.push(phase("cut", since));
        drop(qmp);
        let keys = machine.save_keys(&self.engine.records)?;
        let mut qmp = lock(&emulator);
        let since = Instant::now();
        let mirrored = std::mem::take(&mut *lock(&self.mirrored));
        if !mirrored.is_empty() {
            let ended = mirror::finish(&mut qmp, &mirrored, &goes_on);
            self.open.cut();
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
        let images = vec![machine.save_output(&self.engine.records)?, keys];
        Ok(Stopped { images, phases: Phases(phases), since: stopped })
    }

    /// Stops the guest, and writes its memory to a file. The images are those of its console, memory and disks.
    fn save(&self, machine: &Machine, watch: &Watch<'_>) -> Result<Stopped> {
        let began = Instant::now();
        let goes_on = || !(watch.cancelled)() && began.elapsed() < watch.timeout;
        let emulator = machine.emulator()?;
        let mut qmp = lock(&emulator);
        let file = checkpoint::memory(machine, &self.engine.records)?;
        migration::halt(&mut qmp).doing(|| "stopping the guest".into())?;
        let stopped = Instant::now();
        machine.link.cut().doing(|| "cutting the link".into())?;
        drop(qmp);
        let keys = machine.save_keys(&self.engine.records)?;
        let mut qmp = lock(&emulator);
        let mut phases = vec![phase("stop", began)];
        let since = Instant::now();
        let saved = migration::save(&mut qmp, &file, goes_on).map_err(|error| not_saved(&error))?;
        match saved.status {
            Status::Completed => {}
            _ if (watch.cancelled)() => return Err(Error::Cancelled),
            _ => return Err(not_saved(&failed(&saved))),
        }
        phases.push(phase("memory", since));
        drop(qmp);
        let mut images = vec![machine.save_output(&self.engine.records)?, keys];
        images.extend(checkpoint::images(machine, &self.engine.records)?);
        Ok(Stopped { images, phases: Phases(phases), since: stopped })
    }

    /// Lets the guest run on after a switchover that has failed.
    fn run_on(&self, machine: &Machine) -> Result<()> {
        let emulator = machine.emulator()?;
        let mut qmp = lock(&emulator);
        self.abandon_mirrors(&mut qmp);
        migration::cancel(&mut qmp).doing(|| "cancelling the migration".into())?;
        self.is_sending.store(false, Ordering::SeqCst);
        machine.link.mend().doing(|| "mending the link".into())?;
        migration::cont(&mut qmp).doing(|| "letting the guest run on".into())?;
        drop(qmp);
        machine.return_keys(&self.engine.records)
    }
}

impl Source for Departure {
    fn check(&self, intent: Intent) -> Result<Report> {
        let machine = lock(&self.machine);
        let (vm, hardware) = (machine.vm()?, &machine.record.hardware);
        let mut blockers: Vec<Blocker> = blocked(&machine)?.into_iter().collect();
        let disks = machine.disks_coming_along(intent.is_saved)?;
        let details = if intent.is_saved {
            blockers.extend(checkpoint::blockers(vm, &self.engine.records));
            Details::of_saved(vm, hardware, disks)
        } else {
            Details::of(vm, hardware, disks)
        };
        Ok(Report { blockers, needs: details.encode(vm) })
    }

    fn precopy(&self, to: Outgoing<'_>, watch: &Watch<'_>) -> Result<()> {
        let goes_on = || !(watch.cancelled)();
        if let Err(error) = self.send_seed(to, &goes_on).and_then(|()| self.mirror(to, &goes_on)) {
            return Err(if (watch.cancelled)() { Error::Cancelled } else { error });
        }
        let channel = to.channels.connect(migration::CHANNEL).map_err(not_taken)?;
        let sent = self.send(&channel, &goes_on).map_err(|error| not_moved(&error))?;
        match sent.status {
            _ if (watch.cancelled)() => Err(Error::Cancelled),
            Status::Active | Status::PreSwitchover => Ok(()),
            _ => Err(not_moved(&failed(&sent))),
        }
    }

    fn stands_still(&self) -> bool {
        let emulator = self.emulator().ok();
        emulator.is_some_and(|qmp| migration::has_stopped(&mut lock(&qmp)))
    }

    fn ready(&self, _: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    fn suspend(&self, memory: Option<&dyn MemorySink>, watch: &Watch<'_>) -> Result<Dump> {
        let mut machine = lock(&self.machine);
        machine.must_be(State::Running)?;
        let dumped = match memory {
            Some(_) => self.switch_over(&mut machine, watch),
            None => self.save(&machine, watch),
        };
        let dumped = dumped.and_then(|dumped| {
            self.engine.enter(&mut machine, State::Stopped)?;
            Ok(dumped)
        });
        match dumped {
            Ok(Stopped { images, phases, since }) => {
                self.is_sending.store(false, Ordering::SeqCst);
                let directory = self.engine.records.directory().to_owned();
                let outage = Some(Outage { processors: since.elapsed(), link: since.elapsed() });
                Ok(Dump { directory, images, phases, outage })
            }
            Err(error) => {
                self.run_on(&machine)?;
                checkpoint::delete_images(&machine, &self.engine.records)?;
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
                return Err(Error::Lost(error.to_string()));
            }
            self.engine.enter(&mut machine, State::Running)?;
            checkpoint::delete_images(&machine, &self.engine.records)?;
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

/// A guest that is stopped, and whose images are complete.
struct Stopped {
    images: Vec<ImageFile>,
    phases: Phases,
    /// When its processors stopped, and its link kept frames.
    since: Instant,
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
