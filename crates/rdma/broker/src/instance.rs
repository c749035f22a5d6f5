//! A broker's state of an instance: seats, attached processes, and pending suspensions and resumptions.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::attach::{LinkRefusal, Role, ToProcess};
use fabric::session::Server;
use fabric::{Epoch, InstanceId, ProcessId};
use instance::Carried;
use pace::Pace;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::namespace::Namespace;
use crate::report::{SuspendError, SuspendedProcess};

/// A place in an instance that one process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seat {
    Init,
    Sessions,
    Console,
    Verbs(u8),
}

impl Seat {
    /// The seat of the process that serves sessions.
    fn of(server: Server) -> Self {
        match server {
            Server::Commands => Self::Sessions,
            Server::Console => Self::Console,
        }
    }

    /// The sessions that the process serves.
    pub fn server(self) -> Option<Server> {
        match self {
            Self::Sessions => Some(Server::Commands),
            Self::Console => Some(Server::Console),
            Self::Init | Self::Verbs(_) => None,
        }
    }
}

/// A queued message to a process.
#[derive(Debug)]
pub(crate) struct Outgoing {
    message: ToProcess,
    descriptors: Vec<OwnedFd>,
    /// Released when the descriptors have been sent.
    _room: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    /// A message without descriptors.
    pub fn bare(message: ToProcess) -> Self {
        Self { message, descriptors: Vec::new(), _room: None }
    }

    pub fn message(&self) -> &ToProcess {
        &self.message
    }

    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }
}

/// The limit of links to other hosts that are opened for an instance at a time. With fewer at a time, the first ones are ready
/// sooner, so that its processes can use them meanwhile (ADR 0033).
pub const MAX_OPENINGS: usize = 256;

/// Limits on the resources that a node holds for an instance beside its connections: a program that asks for links and never
/// reads must not exhaust the node's descriptors.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    /// Descriptors in the queues of processes.
    descriptors: Arc<Semaphore>,
    /// Links to other hosts that are being opened.
    pub openings: Arc<Semaphore>,
    /// Requests to the directory, which all hosts share.
    pub directory: Pace,
}

impl Allowance {
    const DESCRIPTORS: usize = 1024;
    const REQUESTS: u32 = 2048;
    const BETWEEN_REQUESTS: Duration = Duration::from_micros(125);
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            descriptors: Arc::new(Semaphore::new(Self::DESCRIPTORS)),
            openings: Arc::new(Semaphore::new(MAX_OPENINGS)),
            directory: Pace::new(Self::REQUESTS, Self::BETWEEN_REQUESTS, Instant::now()),
        }
    }
}

/// An attached process. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct Member {
    /// The connection's serial number: a process that attaches again has another.
    pub serial: u64,
    pub pid: i32,
    /// Whether it runs in a virtual machine, and shares no memory with processes of the host.
    is_inside: bool,
    pub queue: mpsc::Sender<Outgoing>,
    /// Ends the connection.
    cut_off: Arc<Notify>,
    suspended: Option<SuspendedProcess>,
    resumed: bool,
}

/// A connection of a process that wants to attach.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub serial: u64,
    pub pid: i32,
    /// The PID in its own PID namespace.
    pub number: i32,
    /// Whether it runs in a virtual machine.
    pub is_inside: bool,
    pub queue: mpsc::Sender<Outgoing>,
    pub cut_off: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Suspended,
    Listening(JoinHandle<()>),
    Suspending,
}

/// Why a process may not attach.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// The instance is being suspended: the process must try again when the broker listens.
    Later,
    /// Refused for this reason.
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Instance {
    pub id: InstanceId,
    pub epoch: Epoch,
    pub network: Arc<OwnedFd>,
    pub pids: Option<Namespace>,
    pub phase: Phase,
    /// Whether it has run here. Until an arriving instance has, requests for it go to its current host.
    pub here: bool,
    pub carried: Carried,
    pub members: HashMap<Seat, Member>,
    pub allowance: Allowance,
    pub suspended: Vec<SuspendedProcess>,
    pub back: Back,
    pub changed: Arc<Notify>,
}

/// The progress of a resumption since the broker listens.
#[derive(Debug, Default)]
pub(crate) struct Back {
    /// Raised each time the broker starts to listen.
    pub round: u64,
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    pub slowest_us: u64,
    pub missing: Vec<ProcessId>,
}

impl Instance {
    pub fn process(&self, index: u8) -> ProcessId {
        ProcessId { vid: self.id.vid, index }
    }

    /// Gives a process its seat and queues its welcome.
    pub fn admit(
        &mut self,
        Arrival { serial, pid, number, is_inside, queue, cut_off }: Arrival,
        role: Role,
        resume: Option<ProcessId>,
    ) -> Result<Seat, NotAdmitted> {
        if !matches!(self.phase, Phase::Listening(_)) {
            return Err(NotAdmitted::Later);
        }
        let seat = self.seat_for(pid, number, role, resume)?;
        let process = match seat {
            Seat::Init | Seat::Sessions | Seat::Console => ProcessId { vid: self.id.vid, index: 0 },
            Seat::Verbs(index) => self.process(index),
        };
        let welcome = ToProcess::Welcome { process, fabric: self.id.fabric, epoch: self.epoch };
        let _ = queue.try_send(Outgoing::bare(welcome));
        self.back.first.get_or_insert_with(Instant::now);
        let resumed = resume.is_none();
        self.members
            .insert(seat, Member { serial, pid, is_inside, queue, cut_off, suspended: None, resumed });
        self.changed.notify_waiters();
        Ok(seat)
    }

    fn seat_for(
        &mut self,
        pid: i32,
        number: i32,
        role: Role,
        resume: Option<ProcessId>,
    ) -> Result<Seat, NotAdmitted> {
        match (role, resume) {
            (Role::Init, _) => {
                self.carried.roster.init = true;
                self.free_seat(Seat::Init, pid)
            }
            (Role::Sessions, _) => self.free_seat(Seat::Sessions, pid),
            (Role::Console, _) => self.free_seat(Seat::Console, pid),
            (Role::Verbs, Some(process)) if process.vid != self.id.vid || process.index == 0 => {
                Err(NotAdmitted::Refused(format!("{process} is not a process of instance {}", self.id.vid)))
            }
            (Role::Verbs, Some(process)) => {
                let seat = self.free_seat(Seat::Verbs(process.index), pid)?;
                if !self.carried.roster.allot_again(process.index, number) {
                    return Err(NotAdmitted::Refused(format!(
                        "{process} belongs to another process of the instance"
                    )));
                }
                Ok(seat)
            }
            (Role::Verbs, None) => match self.carried.roster.allot(number) {
                Some(index) => Ok(Seat::Verbs(index)),
                None => Err(NotAdmitted::Refused(
                    "255 processes of this instance already use RDMA, which is the limit".into(),
                )),
            },
        }
    }

    /// `seat`, unless another process than `pid` is attached to it.
    fn free_seat(&self, seat: Seat, pid: i32) -> Result<Seat, NotAdmitted> {
        match self.members.get(&seat) {
            Some(member) if member.pid != pid => Err(NotAdmitted::Refused(format!(
                "process {} is already attached with this identity",
                member.pid
            ))),
            _ => Ok(seat),
        }
    }

    /// Handles the end of connection `serial` of `seat`. A suspended process keeps its seat.
    pub fn leave(&mut self, seat: Seat, serial: u64) -> bool {
        match self.members.get(&seat) {
            Some(member) if member.serial == serial => {}
            _ => return false,
        }
        let member = self.members.remove(&seat);
        let report = member.and_then(|member| member.suspended);
        let stays = report.is_some();
        if let Seat::Verbs(index) = seat {
            self.suspended.extend(report);
            if !stays {
                self.carried.roster.verbs.remove(&index);
            }
        }
        self.changed.notify_waiters();
        !stays
    }

    /// Records the report of a suspended process, which closes its connection next.
    pub fn has_let_go(&mut self, seat: Seat, report: SuspendedProcess) {
        if let Some(member) = self.members.get_mut(&seat) {
            member.suspended = Some(report);
        }
    }

    /// Records that a process has allocated its resources again.
    pub fn has_resumed(&mut self, seat: Seat, elapsed_us: u64) {
        if let Some(member) = self.members.get_mut(&seat) {
            member.resumed = true;
            self.back.last = Some(Instant::now());
            self.back.slowest_us = self.back.slowest_us.max(elapsed_us);
            self.changed.notify_waiters();
        }
    }

    /// Seats whose processes have not attached again and resumed.
    pub fn still_away(&self) -> Vec<Seat> {
        let verbs = self.carried.roster.verbs.keys().map(|&index| Seat::Verbs(index));
        let init = self.carried.roster.init.then_some(Seat::Init);
        let is_back = |seat: &Seat| match (seat, self.members.get(seat)) {
            (Seat::Init | Seat::Sessions | Seat::Console, member) => member.is_some(),
            (Seat::Verbs(_), member) => member.is_some_and(|member| member.resumed),
        };
        verbs.chain(init).filter(|seat| !is_back(seat)).collect()
    }

    /// An error if the instance runs and some process is not attached.
    pub fn must_be_whole(&self) -> Result<(), SuspendError> {
        match self.still_away().len() {
            processes @ 1.. if matches!(self.phase, Phase::Listening(_)) => {
                Err(SuspendError::Away { processes })
            }
            _ => Ok(()),
        }
    }

    /// Removes the seats of processes that have not attached again.
    pub fn give_up_missing(&mut self) {
        for seat in self.still_away() {
            let Seat::Verbs(index) = seat else { continue };
            if !self.members.contains_key(&seat) {
                self.carried.roster.verbs.remove(&index);
                let process = self.process(index);
                self.back.missing.push(process);
            }
        }
        self.changed.notify_waiters();
    }

    /// Lets the first process end.
    pub fn dismiss(&mut self) {
        if let Some(member) = self.members.get(&Seat::Init) {
            let _ = member.queue.try_send(Outgoing::bare(ToProcess::Farewell));
        }
        self.changed.notify_waiters();
    }

    /// Queues a message for the process at `index`, if it can have links now.
    pub fn post(&self, index: u8, message: ToProcess, descriptors: Vec<OwnedFd>) -> Result<(), LinkRefusal> {
        let seat = Seat::Verbs(index);
        match (&self.phase, self.members.get(&seat)) {
            (Phase::Listening(_), Some(member)) => {
                let outgoing = self.with_descriptors(message, descriptors)?;
                member.queue.try_send(outgoing).map_err(|_| LinkRefusal::Unreachable)
            }
            _ => Err(self.absence(index)),
        }
    }

    /// Tells all processes that use verbs that the directory may have lost their publications and requests, and sessions that
    /// the coordinator may have missed their messages.
    pub fn ask_again(&self) {
        for (seat, member) in &self.members {
            if matches!(seat, Seat::Verbs(_)) {
                let _ = member.queue.try_send(Outgoing::bare(ToProcess::DirectoryBack));
            }
        }
        self.tell_sessions(Server::Commands, ToProcess::SayAgain);
        self.tell_sessions(Server::Console, ToProcess::SayAgain);
    }

    /// Queues a message for a session at the process that serves it. If the process is not attached, the message is repeated when it is.
    /// A process whose queue is full is disconnected, and attaches again.
    pub fn tell_sessions(&self, server: Server, message: ToProcess) {
        let Some(member) = self.members.get(&Seat::of(server)) else { return };
        if member.queue.try_send(Outgoing::bare(message)).is_err() {
            member.cut_off.notify_one();
        }
    }

    /// Whether it runs here, and no process runs its commands.
    pub fn lacks_sessions(&self) -> bool {
        matches!(self.phase, Phase::Listening(_)) && !self.members.contains_key(&Seat::Sessions)
    }

    /// Tells all processes to suspend. One with a full queue does not read; the time limit reports it. The agent in a machine keeps its
    /// sessions whatever happens to its connection, so it is disconnected: nothing in a machine is needed for that.
    pub fn tell_to_suspend(&mut self) {
        self.suspended.clear();
        for (seat, member) in &self.members {
            if member.is_inside && *seat == Seat::Sessions {
                member.cut_off.notify_one();
            } else {
                let _ = member.queue.try_send(Outgoing::bare(ToProcess::Suspend));
            }
        }
        self.changed.notify_waiters();
    }

    /// Ends the connections of processes in a virtual machine, as if they had suspended.
    pub fn part_without_word(&mut self) {
        let vid = self.id.vid;
        for (seat, member) in &mut self.members {
            let Seat::Verbs(index) = *seat else { continue };
            if member.is_inside && member.suspended.is_none() {
                let process = ProcessId { vid, index };
                member.suspended = Some(SuspendedProcess::without_word(process));
                member.cut_off.notify_one();
            }
        }
    }

    fn with_descriptors(
        &self,
        message: ToProcess,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Outgoing, LinkRefusal> {
        let count = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        let room = self.allowance.descriptors.clone().try_acquire_many_owned(count);
        let room = room.map_err(|_| LinkRefusal::Unreachable)?;
        Ok(Outgoing { message, descriptors, _room: Some(room) })
    }

    /// Whether the process at `index` can have links now.
    pub fn reachable(&self, index: u8) -> Result<Epoch, LinkRefusal> {
        match (&self.phase, self.members.contains_key(&Seat::Verbs(index))) {
            (Phase::Listening(_), true) => Ok(self.epoch),
            _ => Err(self.absence(index)),
        }
    }

    /// Whether the process at `index` can share memory with others of its host.
    pub fn shares_memory(&self, index: u8) -> bool {
        self.members.get(&Seat::Verbs(index)).is_none_or(|member| !member.is_inside)
    }

    /// The reason why the process at `index` cannot have links now. If the instance is stopped here, the process may be attached on
    /// another host.
    fn absence(&self, index: u8) -> LinkRefusal {
        let has_ended =
            matches!(self.phase, Phase::Listening(_)) && !self.carried.roster.verbs.contains_key(&index);
        if has_ended { LinkRefusal::Gone } else { LinkRefusal::Moving }
    }
}
