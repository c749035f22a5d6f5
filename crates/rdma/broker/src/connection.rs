//! A connection with one process of an instance, from its `Hello` to its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::attach::{self, Role, ToNode, ToProcess};
use fabric::directory::{Answer, Member, Request};
use fabric::session::{Server, Word};
use fabric::{InstanceId, ProcessId, seqpacket};
use instance::Chunk;
use pace::Pace;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::broker::Shared;
use crate::instance::{Arrival, NotAdmitted, Outgoing, Seat};
use crate::link;
use crate::lock::lock;
use crate::namespace::{Namespace, own_number};
use crate::report::SuspendedProcess;

/// How long a process may take to send its `Hello`.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// The limit of messages in the queue of a process; the broker disconnects a process that lags further behind.
const QUEUE: usize = 1024;

/// The limit of an instance's connections without a `Hello` yet: as many as it has seats, since all its processes may connect at
/// once after a move. Further ones are closed, and their processes try again. A connection with a `Hello` has one of the 256 seats,
/// so this limits all connections of an instance.
const MAX_STRANGERS: usize = 256;

/// The pause after a connection that is one too many or could not be accepted; and the interval between connections once
/// as many have come as there are seats, so that a process that connects in a loop does not keep the node busy.
const PAUSE: Duration = Duration::from_millis(1);

/// The rate of session messages of a virtual machine, whose agent may be anybody's program: a burst, and then one in each interval. Each
/// carries at most 16 KiB.
const WORDS: u32 = 4096;
const BETWEEN_WORDS: Duration = Duration::from_micros(250);

/// The rate of reports of traffic, of which a process sends one a second, and further ones when it moves or ends.
const REPORTS: u32 = 16;
const BETWEEN_REPORTS: Duration = Duration::from_millis(100);

/// Accepts connections of `instance`'s processes for as long as it is polled. When it ends, it closes those without a `Hello`.
pub(crate) async fn accept(shared: Arc<Shared>, instance: InstanceId, listener: AsyncFd<OwnedFd>) {
    let mut strangers = JoinSet::new();
    let mut complained = false;
    let complaints = Arc::new(Mutex::new(pace::complaints()));
    let mut pace = Pace::new(MAX_STRANGERS as u32, PAUSE, Instant::now());
    loop {
        while strangers.try_join_next().is_some() {}
        while !pace.take(Instant::now()) {
            sleep(PAUSE).await;
        }
        match next(&listener).await {
            Ok(socket) if strangers.len() < MAX_STRANGERS => {
                strangers.spawn(serve(shared.clone(), instance, socket, complaints.clone()));
                // Lets other tasks run even if a process connects in a loop.
                yield_now().await;
            }
            refused => {
                if !complained {
                    complained = true;
                    warn!("instance {instance}: {}", why_refused(&refused));
                }
                drop(refused);
                sleep(PAUSE).await;
            }
        }
    }
}

async fn next(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        if let Ok(accepted) = ready.try_io(|listener| seqpacket::accept(listener.get_ref().as_fd())) {
            return accepted;
        }
    }
}

/// The text of a warning that is logged once, since there may be very many such connections.
fn why_refused(refused: &io::Result<OwnedFd>) -> String {
    match refused {
        Ok(_) => format!("refusing further connections: {MAX_STRANGERS} have not sent their Hello"),
        Err(error) => format!("accepting a connection failed: {error}"),
    }
}

/// Where a process runs.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// On this host, in the namespaces of its instance.
    Host,
    /// In the virtual machine that is its instance, with this PID there, and this role.
    Machine { pid: i32, role: Role },
}

/// Serves a process in the virtual machine `instance` over `socket`. The machine is trusted with its own processes: it gives their PIDs.
pub(crate) async fn serve_inside(
    shared: Arc<Shared>,
    instance: InstanceId,
    socket: OwnedFd,
    pid: i32,
    role: Role,
) {
    // Its programs do not fill the log.
    let complaints = Mutex::new(Pace::new(0, Duration::MAX, Instant::now()));
    let greeted = greet(&shared, instance, socket, Place::Machine { pid, role }, &complaints).await;
    if let Err(error) = greeted {
        debug!("instance {instance}: disconnecting a process in the machine: {error}");
    }
}

/// Reads the `Hello` of a process, and spawns a task for an admitted one.
async fn serve(shared: Arc<Shared>, instance: InstanceId, socket: OwnedFd, complaints: Arc<Mutex<Pace>>) {
    if let Err(error) = greet(&shared, instance, socket, Place::Host, &complaints).await {
        debug!("instance {instance}: disconnecting a process: {error}");
    }
}

async fn greet(
    shared: &Arc<Shared>,
    instance: InstanceId,
    socket: OwnedFd,
    place: Place,
    complaints: &Mutex<Pace>,
) -> io::Result<()> {
    let (pid, number) = match place {
        Place::Host => {
            let pid = seqpacket::peer_credentials(socket.as_fd())?.pid;
            (pid, own_number(pid)?)
        }
        Place::Machine { pid, .. } => (pid, pid),
    };
    let socket = watch(socket)?;
    let hello = timeout(HELLO_LIMIT, receive(&socket)).await??;
    let Some(ToNode::Hello { version, role, resume }) = hello else {
        return Err(io::Error::other("the first message is not a Hello"));
    };
    let (queue, waiting) = mpsc::channel(QUEUE);
    let (serial, cut_off) = (shared.next_serial(), Arc::new(Notify::new()));
    let is_inside = matches!(place, Place::Machine { .. });
    let arrival = Arrival { serial, pid, number, is_inside, queue, cut_off: cut_off.clone() };
    let admitted = check_version(version)
        .and_then(|()| check_identity(shared, instance, &arrival, role, place))
        .and_then(|()| shared.admit(instance, arrival, role, resume));
    match admitted {
        Ok(seat) => {
            let shared = shared.clone();
            tokio::spawn(async move {
                let result = tokio::select! {
                    result = converse(&shared, instance, seat, place, waiting, &socket) => result,
                    () = cut_off.notified() => Err(io::Error::other("it does not read its messages")),
                };
                if let Err(error) = result {
                    debug!("instance {instance}: disconnecting a process: {error}");
                }
                shared.leave(instance, seat, serial);
            });
            Ok(())
        }
        Err(NotAdmitted::Later) => Ok(()),
        Err(NotAdmitted::Refused(reason)) => {
            if lock(complaints).take(Instant::now()) {
                warn!("instance {instance}: refusing process {pid}: {reason}");
            }
            send(&socket, &ToProcess::Refused { reason }, &[]).await
        }
    }
}

/// Exchanges messages with a process until either side closes.
async fn converse(
    shared: &Arc<Shared>,
    instance: InstanceId,
    seat: Seat,
    place: Place,
    waiting: mpsc::Receiver<Outgoing>,
    socket: &AsyncFd<OwnedFd>,
) -> io::Result<()> {
    let parting = AtomicBool::new(false);
    let part = || {
        parting.store(true, Ordering::Relaxed);
        shared.with(instance, |instance| instance.changed.notify_waiters());
    };
    tokio::select! {
        result = hear(shared, instance, seat, place, socket, &parting) => result,
        result = tell(seat, waiting, socket, part) => result,
    }
}

fn check_version(version: u16) -> Result<(), NotAdmitted> {
    if (attach::OLDEST_VERSION..=attach::VERSION).contains(&version) {
        return Ok(());
    }
    Err(NotAdmitted::Refused(format!(
        "the process uses version {version} of the attach protocol, and this node version {}: start the instance again",
        attach::VERSION
    )))
}

/// Checks that the process belongs to `instance`, since an instance may speak only for itself.
fn check_identity(
    shared: &Shared,
    instance: InstanceId,
    arrival: &Arrival,
    role: Role,
    place: Place,
) -> Result<(), NotAdmitted> {
    let Arrival { pid, number, .. } = *arrival;
    if let Place::Machine { role: own, .. } = place {
        // The machine's first process, which runs on the host, has the other roles.
        let refused = || {
            NotAdmitted::Refused(format!("in a virtual machine, only another process has the role {role:?}"))
        };
        return if role == own { Ok(()) } else { Err(refused()) };
    }
    let (network, pids) = shared.namespaces(instance).ok_or(NotAdmitted::Later)?;
    let found = || -> io::Result<Option<&str>> {
        let Some(pids) = pids else { return Ok(None) };
        if Namespace::of_process(pid, "net")? != Namespace::of(network.as_fd())? {
            return Ok(Some("the process is in another network namespace"));
        }
        if Namespace::of_process(pid, "pid")? != pids {
            return Ok(Some("the process is in another PID namespace"));
        }
        let claims_init = role != Role::Verbs && number != 1;
        Ok(claims_init.then_some("the process is not the instance's first process"))
    };
    match found() {
        Ok(None) => Ok(()),
        Ok(Some(difference)) => Err(NotAdmitted::Refused(difference.into())),
        Err(error) => {
            Err(NotAdmitted::Refused(format!("the namespaces of the process cannot be read: {error}")))
        }
    }
}

/// Handles the messages of a process until it closes.
async fn hear(
    shared: &Arc<Shared>,
    instance: InstanceId,
    seat: Seat,
    place: Place,
    socket: &AsyncFd<OwnedFd>,
    parting: &AtomicBool,
) -> io::Result<()> {
    let mut pace = Pace::new(WORDS, BETWEEN_WORDS, Instant::now());
    let mut reports = Pace::new(REPORTS, BETWEEN_REPORTS, Instant::now());
    loop {
        if seat == Seat::Init {
            shared.room_for_output(instance, parting).await;
        }
        match receive(socket).await? {
            Some(ToNode::Sessions(word)) if word.is_within_limits() && seat.server().is_some() => {
                let server = seat.server().unwrap_or(Server::Commands);
                if matches!(place, Place::Machine { .. }) {
                    slow_down(&mut pace, &word).await;
                }
                shared.peers.sessions_say(instance, server, word).await;
            }
            Some(ToNode::Traffic { instances })
                if matches!(seat, Seat::Verbs(_)) && instances.len() <= attach::MAX_INSTANCES =>
            {
                wait_for(&mut reports).await;
                shared.count(instance, &instances);
            }
            Some(message) => handle(shared, instance, seat, message)?,
            None => return Ok(()),
        }
    }
}

/// Waits until the rate allows this message: the coordinator may answer for each session in it.
async fn slow_down(pace: &mut Pace, word: &Word) {
    let answers = if let Word::All(sessions) = word { sessions.len().max(1) } else { 1 };
    for _ in 0..answers {
        wait_for(pace).await;
    }
}

async fn wait_for(pace: &mut Pace) {
    while !pace.take(Instant::now()) {
        sleep(PAUSE).await;
    }
}

fn handle(shared: &Arc<Shared>, instance: InstanceId, seat: Seat, message: ToNode) -> io::Result<()> {
    match (seat, message) {
        (Seat::Verbs(index), ToNode::OpenLink { peer }) => {
            let from = ProcessId { vid: instance.vid, index };
            link::spawn(shared, instance, from, peer);
        }
        (Seat::Verbs(index), ToNode::Directory { number, request }) => {
            let process = ProcessId { vid: instance.vid, index };
            ask_directory(shared, Member { fabric: instance.fabric, process }, number, request);
        }
        (_, ToNode::Suspended { elapsed_us, queue_pairs, memory_regions, active_peers }) => {
            let index = if let Seat::Verbs(index) = seat { index } else { 0 };
            let process = ProcessId { vid: instance.vid, index };
            let report = SuspendedProcess { process, elapsed_us, queue_pairs, memory_regions, active_peers };
            shared.with(instance, |instance| instance.has_let_go(seat, report));
        }
        (Seat::Verbs(_), ToNode::Resumed { elapsed_us }) => {
            shared.with(instance, |instance| instance.has_resumed(seat, elapsed_us));
        }
        (Seat::Init | Seat::Sessions | Seat::Console, ToNode::Resumed { .. }) => {}
        (Seat::Init, ToNode::Output { stream, bytes }) if bytes.len() <= attach::MAX_OUTPUT => {
            shared.keep_output(instance, Chunk { stream, bytes });
        }
        (Seat::Init, ToNode::Exited { code }) => shared.exited(instance, code),
        (Seat::Init, ToNode::Started) => shared.started(instance, Ok(())),
        (Seat::Init, ToNode::NotStarted(why)) => shared.started(instance, Err(why)),
        (_, message) => {
            return Err(io::Error::other(format!("its role does not allow the message {message:?}")));
        }
    }
    Ok(())
}

fn ask_directory(shared: &Shared, asker: Member, number: u64, request: Request) {
    if !request.is_within_limits() {
        shared.answer(asker.instance(), asker.process, number, Answer::Full);
    } else if !shared.may_ask(asker.instance()) {
        shared.answer(asker.instance(), asker.process, number, Answer::Busy);
    } else {
        shared.peers.ask_directory(asker, number, request);
    }
}

/// Sends the queued messages to a process until the queue closes. Calls `part` after a `Suspend`. One that serves sessions gets nothing
/// afterwards: it closes its connection then, and its last messages would not be read if a message to it failed.
async fn tell(
    seat: Seat,
    mut waiting: mpsc::Receiver<Outgoing>,
    socket: &AsyncFd<OwnedFd>,
    part: impl Fn(),
) -> io::Result<()> {
    while let Some(outgoing) = waiting.recv().await {
        send(socket, outgoing.message(), outgoing.descriptors()).await?;
        if matches!(outgoing.message(), ToProcess::Suspend) {
            part();
            if seat.server().is_some() {
                break;
            }
        }
    }
    while waiting.recv().await.is_some() {}
    Ok(())
}

async fn receive(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<ToNode>> {
    loop {
        let mut ready = socket.readable().await?;
        let Ok(packet) = ready.try_io(|socket| seqpacket::receive(socket.get_ref().as_fd())) else {
            continue;
        };
        let packet = match packet {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            packet => packet?,
        };
        if packet.bytes.is_empty() {
            return Ok(None);
        }
        return attach::decode(&packet.bytes).map(Some).map_err(io::Error::other);
    }
}

async fn send(socket: &AsyncFd<OwnedFd>, message: &ToProcess, descriptors: &[OwnedFd]) -> io::Result<()> {
    let bytes = attach::encode(message);
    let beside: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    loop {
        let mut ready = socket.writable().await?;
        match ready.try_io(|socket| seqpacket::send(socket.get_ref().as_fd(), &bytes, &beside)) {
            Ok(sent) => return sent,
            Err(_would_block) => {}
        }
    }
}

/// Registers `socket` with tokio.
pub(crate) fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` refers to the same open file until it is dropped, which the `AsyncFd` does last.
    Ok(unsafe { AsyncFd::register(socket) }?)
}
