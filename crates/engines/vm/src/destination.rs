//! The destination side of a move.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine_api::{
    Channels, Coming, Destination, Error, ImageSink, Needs, Outage, Phase, Phases, Postcopy, Result, Running,
    State, Watch,
};
use instance::{Blocker, InstanceName, Region};

use crate::command::Begin;
use crate::console;
use crate::disks::LocalDisk;
use crate::engine::VmEngine;
use crate::error::{Doing, not_restored};
use crate::lock::lock;
use crate::machine::Machine;
use crate::migration;
use crate::mirror;
use crate::needs::Details;
use crate::qmp::Qmp;
use crate::record::{CONSOLE, NBD, Record, file_name};

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
        let mut blockers = Details::decode(needs)?.blockers(self.engine.emulator()?);
        blockers.extend(self.engine.lacks_memory(needs.memory, &self.name)?);
        if is_postcopy {
            let what = "post-copy is not supported for virtual machines";
            blockers.push(Blocker::new(what, "move it without --post-copy"));
        }
        Ok(blockers)
    }

    fn prepare(&self, coming: Coming<'_>) -> Result<()> {
        let Some(channels) = coming.channels else {
            return Err(Error::unusable(
                "a virtual machine cannot be restored from a checkpoint",
                "start it again",
            ));
        };
        let Details { hardware, local, .. } = Details::decode(coming.needs)?;
        let machine = self.engine.prepare(coming.spec, hardware)?;
        let emulator = self.launch(&mut lock(&machine), &local);
        match emulator {
            Ok(emulator) => {
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
        let path = lock(&*self.machine()?).console(&self.engine.records);
        Ok(Box::new(ConsoleSink { name: file_name(&self.name, CONSOLE), path }))
    }

    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>> {
        Ok(None)
    }

    fn restore(&self, watch: &Watch<'_>) -> Result<Phases> {
        let machine = self.machine()?;
        let mut machine = lock(&machine);
        if machine.record.state == State::Held {
            return Ok(Phases::default());
        }
        machine.must_be(State::Prepared)?;
        let began = Instant::now();
        Self::await_whole(&*machine.emulator()?, watch)?;
        if !machine.record.made.is_empty() {
            mirror::close(&mut lock(&*machine.emulator()?)).map_err(not_restored)?;
        }
        let left = console::put_back(machine.emulator_pid()?, &machine.console(&self.engine.records));
        left.doing(|| format!("writing the console of `{}`", self.name))?;
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
        migration::cont(&mut lock(&*machine.emulator()?)).map_err(not_restored)?;
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
        Ok(Running { pid: Some(pid), phases: Phases(phases.into()), outage: Some(outage) })
    }

    fn abort(&self) -> Result<()> {
        let Ok(machine) = self.machine() else { return Ok(()) };
        let state = lock(&machine).record.state;
        match state {
            State::Prepared | State::Held => self.engine.remove(&self.name),
            State::Running | State::Stopped | State::Ended => Ok(()),
        }
    }
}

/// Lets the emulator load what comes over the channel, once the source has opened it. If the move ends before, there is none; if the
/// emulator does not take it, the source sees a closed channel.
fn receive(emulator: &Weak<Mutex<Qmp>>, channels: &Arc<dyn Channels>) {
    let Ok(channel) = channels.connect(migration::CHANNEL) else { return };
    let Some(emulator) = emulator.upgrade() else { return };
    let _closed = migration::receive(&mut lock(&emulator), &channel);
}

/// Takes the one image of a machine: console output. All else comes over channels.
struct ConsoleSink {
    name: String,
    path: std::path::PathBuf,
}

impl ImageSink for ConsoleSink {
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

    fn file(&mut self, name: &str) -> io::Result<File> {
        if name == self.name { File::create_new(&self.path) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
