//! A machine's resources on this host: network namespace, link, first process, and the connection to its emulator.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use engine_api::wiring::Wiring;
use engine_api::{Error, Guest, Result, State};
use engine_criu::shared::{self, Link, Task, TaskId, absent_is_fine};
use fabric::netns;
use instance::{DiskFormat, ImageFile, InstanceName, InstanceSpec, Kind, Program, VmSpec, Workload};
use serde_json::json;

use crate::command::{self, Begin};
use crate::config::Config;
use crate::console::{self, Stream};
use crate::dhcp::DhcpServer;
use crate::disks::{self, LocalDisk};
use crate::emulator::Emulator;
use crate::error::{Doing, not_started};
use crate::inbox::Inbox;
use crate::limits;
use crate::lock::lock;
use crate::memory::User;
use crate::network;
use crate::qmp::{Qmp, QmpError};
use crate::record::{CONSOLE, DISPLAY, ERRORS, KEYS, NBD, PORT, Record, Records, SOCKET, file_name};

/// How long an emulator may take to offer its socket.
const STARTED: Duration = Duration::from_secs(20);

/// How long a killed process may take to end.
const KILLED: Duration = Duration::from_secs(10);

/// A machine on this host.
pub struct Machine {
    /// The record, as on disk.
    pub record: Record,
    /// Its network namespace.
    pub namespace: OwnedFd,
    /// The wired device there.
    pub link: Link,
    /// Uses the memory that is reserved for it.
    memory: User,
    /// Tells the guest its address.
    _dhcp: DhcpServer,
    /// Its first process, the parent of the emulator.
    pub first: Option<Task>,
    /// The connection to the emulator. It has a lock of its own, so that a long call does not keep the machine.
    pub qmp: Option<Arc<Mutex<Qmp>>>,
}

impl Machine {
    /// Makes the namespace with its devices. The link is cut, and nothing runs.
    pub fn make(record: Record, wiring: Arc<dyn Wiring>, memory: User) -> Result<Self> {
        let spec = &record.spec;
        let namespace = netns::create().doing(|| "making a network namespace".into())?;
        let kind = spec.network_kind;
        let link = Link::create(namespace.as_fd(), spec, wiring)
            .doing(|| format!("making the link of `{}` to the {kind}", spec.name))?;
        let joined = network::join(namespace.as_fd(), &spec.network);
        joined.doing(|| format!("making the TAP of `{}`", spec.name))?;
        let dhcp = dhcp(namespace.as_fd(), spec)?;
        Ok(Self { record, namespace, link, memory, _dhcp: dhcp, first: None, qmp: None })
    }

    /// Takes over the devices of a machine whose first process runs.
    pub fn adopt(record: Record, first: Task, wiring: Arc<dyn Wiring>, memory: User) -> Result<Self> {
        let path = format!("/proc/{}/ns/net", first.id().pid);
        let namespace: OwnedFd = File::open(&path).doing(|| format!("opening {path}"))?.into();
        let link = Link::find(namespace.as_fd(), &record.spec, wiring);
        let link = link.doing(|| format!("finding the link of `{}`", record.spec.name))?;
        let dhcp = dhcp(namespace.as_fd(), &record.spec)?;
        memory.set(Some(first.id().pid));
        Ok(Self { record, namespace, link, memory, _dhcp: dhcp, first: Some(first), qmp: None })
    }

    /// Its name.
    pub fn name(&self) -> &InstanceName {
        &self.record.spec.name
    }

    /// Its specification as a virtual machine.
    ///
    /// # Errors
    /// If it is none.
    pub fn vm(&self) -> Result<&VmSpec> {
        vm_of(&self.record.spec)
    }

    /// Refuses a call that needs another state.
    pub fn must_be(&self, state: State) -> Result<()> {
        if self.record.state == state {
            return Ok(());
        }
        Err(Error::Other(format!("`{}` is {:?}, and must be {state:?}", self.name(), self.record.state)))
    }

    /// Starts the emulator with its processors stopped, and connects to it.
    pub fn launch(
        &mut self,
        config: &Config,
        emulator: &Emulator,
        records: &Records,
        begin: Begin,
    ) -> Result<()> {
        let (spec, errors) = (&self.record.spec, records.file(self.name(), ERRORS));
        for ending in [ERRORS, SOCKET, PORT, NBD, DISPLAY] {
            let stale = records.file(self.name(), ending);
            absent_is_fine(fs::remove_file(&stale)).doing(|| format!("deleting {}", stale.display()))?;
        }
        let arguments = command::arguments(emulator, spec, self.vm()?, &self.record.hardware, begin);
        let program = launcher(&emulator.program, arguments, records, self.name());
        let doors = limits::make(records.directory(), self.name(), self.vm()?)
            .doing(|| format!("making the cgroup of `{}`", self.name()))?;
        let own = vec![shared::descriptor_limit()];
        let pid = shared::start(&program, Kind::Vm, &config.init, self.namespace.as_fd(), doors, own);
        let pid = pid.doing(|| format!("starting `{}`", self.name()))?;
        self.memory.set(Some(pid));
        self.first = TaskId::of(pid).ok().and_then(Task::open);
        self.record.first = self.first.as_ref().map(Task::id);
        records.save(&self.record)?;
        match self.await_emulator(records) {
            Ok(qmp) => {
                self.qmp = Some(Arc::new(Mutex::new(qmp)));
                self.close_display(records)?;
            }
            Err(error) => {
                self.kill();
                self.record.first = None;
                let said = fs::read_to_string(&errors).unwrap_or_default();
                return Err(error.unwrap_or_else(|| not_started(last_line(&said))));
            }
        }
        Ok(())
    }

    /// Lets only root use the display. The emulator has made its socket as root, in a folder that is root's own.
    fn close_display(&self, records: &Records) -> Result<()> {
        if !self.vm()?.vnc {
            return Ok(());
        }
        let socket = records.file(self.name(), DISPLAY);
        let closed = fs::set_permissions(&socket, Permissions::from_mode(0o600));
        closed.doing(|| format!("protecting {}", socket.display()))
    }

    /// Connects to the emulator of a machine that has been started before.
    pub fn connect(&mut self, records: &Records) -> std::result::Result<(), QmpError> {
        let qmp = self.reach(records)?;
        self.qmp = Some(Arc::new(Mutex::new(qmp)));
        Ok(())
    }

    /// Waits until the emulator offers its socket. It has ended without a better reason than its own message if the error is `None`.
    fn await_emulator(&self, records: &Records) -> std::result::Result<Qmp, Option<Error>> {
        let end = Instant::now() + STARTED;
        loop {
            match self.reach(records) {
                Ok(qmp) => return Ok(qmp),
                Err(_) if self.has_failed(records) => return Err(None),
                Err(error) if Instant::now() > end => return Err(Some(not_started(&error.to_string()))),
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Whether the emulator has started and is gone. The file for its errors is made first.
    fn has_failed(&self, records: &Records) -> bool {
        let has_begun = records.file(self.name(), ERRORS).exists();
        let Some(first) = &self.first else { return true };
        has_begun && !self.has_emulator() || first.ended_within(Duration::ZERO)
    }

    /// Connects to the control socket, and makes sure that it is this machine's.
    fn reach(&self, records: &Records) -> std::result::Result<Qmp, QmpError> {
        let mut qmp = Qmp::over(self.socket(records, SOCKET)?)?;
        let answer = qmp.execute("query-name", json!({}))?;
        match answer["name"].as_str() {
            Some(name) if name == self.name().as_str() => Ok(qmp),
            _ => Err(QmpError::Refused("it is another machine".into())),
        }
    }

    /// The host's side of the agent in the machine.
    ///
    /// # Errors
    /// If the emulator does not offer its port, or the network is gone.
    pub fn guest(&self, records: &Records) -> Result<Guest> {
        let doing = || format!("connecting to the agent in `{}`", self.name());
        let port = self.socket(records, PORT).doing(doing)?;
        let links = network::listen(self.namespace.as_fd()).doing(doing)?;
        Ok(Guest { port, links, mac: self.record.spec.network.mac })
    }

    /// Connects to a socket of the emulator, whose path may be longer than an address of a socket.
    fn socket(&self, records: &Records, ending: &str) -> io::Result<UnixStream> {
        let directory = File::open(records.directory())?;
        UnixStream::connect(format!(
            "/proc/self/fd/{}/{}",
            directory.as_raw_fd(),
            file_name(self.name(), ending)
        ))
    }

    /// The emulator.
    ///
    /// # Errors
    /// If it has ended.
    pub fn emulator(&self) -> Result<Arc<Mutex<Qmp>>> {
        let gone = || Error::Other(format!("the emulator of `{}` has ended", self.name()));
        self.qmp.clone().ok_or_else(gone)
    }

    /// Keeps frames for the guest from now on, and lets it take those that have come before.
    pub fn hold(&self, emulator: i32) -> io::Result<()> {
        self.link.hold()?;
        Inbox::of(emulator)?.await_empty();
        Ok(())
    }

    /// Whether the emulator has not ended. The first process outlives it until the node knows its exit code.
    pub fn has_emulator(&self) -> bool {
        let Some(first) = &self.first else { return false };
        !first.ended_within(Duration::ZERO) && shared::tree(first.id().pid).is_ok_and(|tree| tree.len() > 1)
    }

    /// The PID of the emulator.
    pub fn emulator_pid(&self) -> Result<i32> {
        let qmp = self.emulator()?;
        lock(&qmp).peer().doing(|| format!("finding the emulator of `{}`", self.name()))
    }

    /// The first process's PID.
    ///
    /// # Errors
    /// If it has ended.
    pub fn first_pid(&self) -> Result<i32> {
        let alive = self.first.as_ref().filter(|task| !task.ended_within(Duration::ZERO));
        alive.map(|task| task.id().pid).ok_or_else(|| Error::Other(format!("`{}` has ended", self.name())))
    }

    /// Kills the emulator: when its first process dies, the kernel kills it too.
    pub fn kill(&mut self) {
        self.qmp = None;
        self.memory.set(None);
        if let Some(first) = self.first.take() {
            let _gone = first.signal(libc::SIGKILL);
            first.ended_within(KILLED);
        }
    }

    /// The disks that come along in a move, or to a checkpoint, as the emulator describes them.
    ///
    /// # Errors
    /// If it does not.
    pub fn disks_coming_along(&self, is_saved: bool) -> Result<Vec<LocalDisk>> {
        let emulator = self.emulator()?;
        let nodes = lock(&emulator).execute("query-named-block-nodes", json!({ "flat": false }));
        let nodes = nodes.doing(|| format!("asking for the disks of `{}`", self.name()))?;
        disks::coming_along(self.vm()?, &nodes, is_saved)
    }

    /// Makes the files of local disks that come with the machine.
    ///
    /// # Errors
    /// If one cannot be made. The ones before it are recorded.
    pub fn make_disks(&mut self, local: &[LocalDisk], records: &Records) -> Result<()> {
        for disk in local {
            let format = self.record.hardware.disks.get(disk.number).copied().unwrap_or(DiskFormat::Raw);
            disk.make(format).doing(|| format!("making the disk {}", disk.path.display()))?;
            self.record.made.push(disk.path.clone());
            records.save(&self.record)?;
        }
        Ok(())
    }

    /// Deletes the disks of a machine that does not come, and puts those of one that has moved away aside.
    fn part_with_disks(&self) -> Result<()> {
        match self.record.state {
            State::Prepared | State::Held => self.record.made.iter().try_for_each(|path| {
                absent_is_fine(fs::remove_file(path)).doing(|| format!("deleting {}", path.display()))
            }),
            State::Stopped => self.vm()?.disks.iter().filter(|disk| !disk.is_shared).try_for_each(|disk| {
                LocalDisk::retire(&disk.path).doing(|| format!("renaming {}", disk.path.display()))
            }),
            State::Running | State::Ended => Ok(()),
        }
    }

    /// Kills and deletes everything but the record.
    pub fn remove(&mut self, records: &Records) -> Result<()> {
        self.kill();
        limits::remove(records.directory(), self.name())
            .doing(|| format!("removing the cgroup of `{}`", self.name()))?;
        self.part_with_disks()?;
        self.link.delete().doing(|| format!("deleting the link of `{}`", self.name()))
    }

    /// Copies the console's output that has not reached the node into a file, which travels along.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn save_output(&self, records: &Records) -> Result<ImageFile> {
        let bytes = console::waiting(self.emulator_pid()?);
        self.save(records, CONSOLE, &bytes.doing(|| format!("reading the console of `{}`", self.name()))?)
    }

    /// Moves the console's input that the emulator has not read into a file, which travels along.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn save_keys(&self, records: &Records) -> Result<ImageFile> {
        let bytes = console::take_keys(self.emulator_pid()?);
        self.save(records, KEYS, &bytes.doing(|| format!("reading the input of `{}`", self.name()))?)
    }

    fn save(&self, records: &Records, ending: &str, bytes: &[u8]) -> Result<ImageFile> {
        let path = records.file(self.name(), ending);
        fs::write(&path, bytes).doing(|| format!("writing {}", path.display()))?;
        Ok(ImageFile { name: file_name(self.name(), ending), size: bytes.len() as u64 })
    }

    /// Gives a restored machine what the console has not delivered at the source.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn restore_console(&self, records: &Records) -> Result<()> {
        let (pid, output) = (self.emulator_pid()?, records.file(self.name(), CONSOLE));
        let restored = console::put_back(pid, Stream::Output, &output);
        restored.doing(|| format!("writing the console of `{}`", self.name()))?;
        self.return_keys(records)
    }

    /// Gives the emulator the console's input that was taken from it, or from the one at the source.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn return_keys(&self, records: &Records) -> Result<()> {
        let returned =
            console::put_back(self.emulator_pid()?, Stream::Input, &records.file(self.name(), KEYS));
        returned.doing(|| format!("writing to the console of `{}`", self.name()))
    }
}

fn dhcp(namespace: BorrowedFd<'_>, spec: &InstanceSpec) -> Result<DhcpServer> {
    let started = DhcpServer::start(namespace, network::TAP, spec.network);
    started.doing(|| format!("starting the DHCP server of `{}`", spec.name))
}

/// The specification as a virtual machine.
///
/// # Errors
/// If it is none.
pub fn vm_of(spec: &InstanceSpec) -> Result<&VmSpec> {
    match &spec.workload {
        Workload::Vm(vm) => Ok(vm),
        other => Err(Error::unusable(format!("this engine runs no {}", other.kind()), "choose another host")),
    }
}

/// The program that becomes the emulator. Its errors go to a file, since its output and input are the guest's console.
fn launcher(emulator: &Path, arguments: Vec<String>, records: &Records, name: &InstanceName) -> Program {
    const WITH_ERRORS: &str = "exec \"$@\" 2>\"$0\"";
    let first = ["/bin/sh".into(), "-c".into(), WITH_ERRORS.into(), file_name(name, ERRORS)];
    let command = first.into_iter().chain([emulator.display().to_string()]).chain(arguments);
    Program { directory: records.directory().to_owned(), stdin: true, ..Program::new(command) }
}

/// QEMU's own message, without its program's name.
pub fn last_line(said: &str) -> &str {
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.split_once(": ").map_or(line, |(_, rest)| rest).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_an_emulator_is_its_last_line() {
        let said = "qemu-system-x86_64: warning: odd\nqemu-system-x86_64: -m 7: too little\n\n";
        assert_eq!(last_line(said), "-m 7: too little");
        assert_eq!(last_line(""), "");
    }
}
