//! The destination side of a move.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine_api::{
    Channels, Coming, Destination, Error, ImageSink, Needs, Outage, Phase, Phases, Postcopy, Result, Running,
    State, Watch,
};
use instance::{Blocker, InstanceName};

use crate::checkpoint;
use crate::command::Begin;
use crate::disks::LocalDisk;
use crate::engine::VmEngine;
use crate::error::{Doing, not_restored};
use crate::lock::lock;
use crate::machine::Machine;
use crate::migration;
use crate::mirror;
use crate::needs::Details;
use crate::qmp::Qmp;
use crate::record::{NBD, Record, SEED};
use crate::seed::travel;
use crate::sink::Sink;

/// A machine that comes to this host.
pub struct Arrival {
    /// The engine.
    pub engine: Arc<VmEngine>,
    /// The machine.
    pub name: InstanceName,
}

impl Arrival {
    fn machine(&self) -> Result<Arc<Mutex<Machine>>> {
        self.engine.find(&self.name)
    }

    /// Starts the emulator, which offers empty disks in the place of the local ones.
    fn launch(&self, machine: &mut Machine, local: &[LocalDisk]) -> Result<Arc<Mutex<Qmp>>> {
        let (emulator, records) = (self.engine.emulator()?, &self.engine.records);
        machine.make_disks(local, records)?;
        machine.launch(&self.engine.config, emulator, records, Begin::Incoming)?;
        let emulator = machine.emulator()?;
        if !local.is_empty() {
            let offered = mirror::offer(&mut lock(&emulator), &records.file(&self.name, NBD), local);
            offered.map_err(not_restored)?;
        }
        Ok(emulator)
    }

    /// Records that the disks which were made here are the machine's own from now on: the guest is about to write to them, and no
    /// restart may take them for remains of a move that has failed.
    fn keep_disks(&self, machine: &mut Machine) -> Result<()> {
        if machine.record.made.is_empty() {
            return Ok(());
        }
        let record = Record { made: Vec::new(), ..machine.record.clone() };
        self.engine.records.save(&record)?;
        machine.record = record;
        Ok(())
    }

    /// Waits for the whole machine, which comes from another host.
    fn take_over(machine: &Machine, watch: &Watch<'_>) -> Result<()> {
        Self::await_whole(&*machine.emulator()?, watch)?;
        if !machine.record.made.is_empty() {
            mirror::close(&mut lock(&*machine.emulator()?)).map_err(not_restored)?;
        }
        Ok(())
    }

    /// Starts the emulator of a machine that comes from a checkpoint, and lets it load the memory. If that fails, it may be repeated.
    fn load(&self, machine: &mut Machine, memory: &OwnedFd, watch: &Watch<'_>) -> Result<()> {
        let (emulator, records) = (self.engine.emulator()?, &self.engine.records);
        machine.launch(&self.engine.config, emulator, records, Begin::Incoming)?;
        let emulator = machine.emulator()?;
        let loaded = migration::load(&mut lock(&emulator), memory).map_err(not_restored);
        let loaded = loaded.and_then(|()| Self::await_whole(&emulator, watch));
        if loaded.is_err() {
            machine.kill();
        }
        loaded
    }

    /// Waits until the emulator has the whole machine.
    fn await_whole(qmp: &Mutex<Qmp>, watch: &Watch<'_>) -> Result<()> {
        let end = Instant::now() + watch.timeout;
        loop {
            let state = migration::run_state(&mut lock(qmp)).map_err(not_restored)?;
            match state.as_str() {
                "paused" => return Ok(()),
                _ if (watch.cancelled)() => return Err(Error::Cancelled),
                _ if Instant::now() > end => return Err(not_restored("its memory does not arrive")),
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Destination for Arrival {
    fn verify(&self, needs: &Needs, is_postcopy: bool) -> Result<Vec<Blocker>> {
        let mut blockers = Details::decode(needs)?.blockers(self.engine.emulator()?, &self.engine.kvm);
        blockers.extend(self.engine.memory.lack(&self.name, needs.memory)?);
        if is_postcopy {
            let what = "post-copy is not supported for virtual machines";
            blockers.push(Blocker::new(what, "move it without --post-copy"));
        }
        Ok(blockers)
    }

    fn prepare(&self, coming: Coming<'_>) -> Result<()> {
        let Details { hardware, local, .. } = Details::decode(coming.needs)?;
        let (seed, image) = (hardware.seed, self.engine.records.file(&self.name, SEED));
        let machine = self.engine.prepare(coming.spec, hardware)?;
        // The emulator of a machine in a checkpoint starts when its disks are there.
        let Some(channels) = coming.channels else { return Ok(()) };
        let made = seed.map_or(Ok(()), |size| travel::make(&image, size));
        let made = made.doing(|| format!("making {}", image.display()));
        let emulator = made.and_then(|()| self.launch(&mut lock(&machine), &local));
        match emulator {
            Ok(emulator) => {
                if let Some(size) = seed {
                    receive_seed(channels.clone(), image, size);
                }
                let socket = self.engine.records.file(&self.name, NBD);
                for disk in &local {
                    mirror::carry(channels.clone(), disk, socket.clone());
                }
                let emulator = Arc::downgrade(&emulator);
                thread::spawn(move || receive(&emulator, &channels));
                Ok(())
            }
            Err(error) => {
                self.engine.remove(&self.name)?;
                Err(error)
            }
        }
    }

    fn sink(&self) -> Result<Box<dyn ImageSink>> {
        Ok(Box::new(Sink { engine: self.engine.clone(), name: self.name.clone() }))
    }

    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>> {
        Ok(None)
    }

    fn restore(&self, watch: &Watch<'_>) -> Result<Phases> {
        let machine = self.machine()?;
        let mut machine = lock(&machine);
        match machine.record.state {
            // Its memory came once. What happens to its disks depends on the decision about the move.
            State::Held | State::Ended if !machine.has_emulator() => {
                self.engine.enter(&mut machine, State::Ended)?;
                return Err(lost());
            }
            State::Held => return Ok(Phases::default()),
            _ => machine.must_be(State::Prepared)?,
        }
        let began = Instant::now();
        match checkpoint::saved_memory(&self.name, &self.engine.records)? {
            Some(memory) => self.load(&mut machine, &memory, watch)?,
            None => Self::take_over(&machine, watch)?,
        }
        machine.restore_console(&self.engine.records)?;
        self.engine.enter(&mut machine, State::Held)?;
        let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(Phases(vec![Phase { name: "memory".into(), elapsed_us: elapsed_us.max(1) }]))
    }

    /// The link is mended first: frames wait in the TAP, and the guest's own first frames are not lost. A guest that was told to run is
    /// recorded as held until it is known to run, so the next node asks its emulator.
    fn release(&self, _: &Watch<'_>) -> Result<Running> {
        let machine = self.machine()?;
        let mut machine = lock(&machine);
        machine.must_be(State::Held)?;
        let pid = machine.first_pid()?;
        let began = Instant::now();
        self.keep_disks(&mut machine)?;
        machine.link.mend().doing(|| "mending the link".into())?;
        let mended = Instant::now();
        if let Err(error) =
            machine.emulator().and_then(|qmp| migration::cont(&mut lock(&qmp)).map_err(not_restored))
        {
            return Err(if machine.has_emulator() { error } else { lost() });
        }
        let outage = Outage { processors: began.elapsed(), link: mended - began };
        let phases =
            [("mend", outage.link), ("resume", outage.processors - outage.link)].map(|(name, elapsed)| {
                Phase {
                    name: name.into(),
                    elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
                }
            });
        machine.record.state = State::Running;
        // A reader of the older record asks the emulator.
        let _older = self.engine.records.save(&machine.record);
        // What is left goes with the machine.
        let _left = checkpoint::delete_images(&machine, &self.engine.records);
        Ok(Running { pid: Some(pid), phases: Phases(phases.into()), outage: Some(outage) })
    }

    fn abort(&self) -> Result<()> {
        let Ok(machine) = self.machine() else { return Ok(()) };
        let mut machine = lock(&machine);
        match machine.record.state {
            State::Prepared | State::Held => {}
            // It has ended before it came: its disks are no more than those of a machine that was prepared.
            State::Ended => self.engine.enter(&mut machine, State::Prepared)?,
            State::Running | State::Stopped => return Ok(()),
        }
        drop(machine);
        self.engine.remove(&self.name)
    }
}

/// The emulator has ended before the guest ran here.
fn lost() -> Error {
    Error::Lost("its emulator has ended".into())
}

/// Lets the emulator load what comes over the channel, once the source has opened it. If the move ends before, there is none; if the
/// emulator does not take it, the source sees a closed channel.
fn receive(emulator: &Weak<Mutex<Qmp>>, channels: &Arc<dyn Channels>) {
    let Ok(channel) = channels.connect(migration::CHANNEL) else { return };
    let Some(emulator) = emulator.upgrade() else { return };
    let _closed = migration::receive(&mut lock(&emulator), &channel);
}

/// Takes the image of a seed disk that comes over its channel. If it does not come, the source sees a closed channel.
fn receive_seed(channels: Arc<dyn Channels>, image: PathBuf, size: u64) {
    thread::spawn(move || {
        let Ok(channel) = channels.connect(travel::CHANNEL) else { return };
        let _closed = travel::receive(channel, &image, size);
    });
}
