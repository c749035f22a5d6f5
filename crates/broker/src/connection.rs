//! A connection with one process of an instance, from its `Hello` to its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fabric::attach::{self, Role, ToNode, ToProcess};
use fabric::{ProcessId, seqpacket};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::broker::Shared;
use crate::instance::{InstanceId, NotAdmitted, Outgoing, Seat};
use crate::link;
use crate::namespace::{Namespace, is_first_process};
use crate::output::Chunk;
use crate::report::SuspendedProcess;

/// How long a process may take to say who it is.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// The most messages that wait for a process; one that lags further behind is cut off.
const QUEUE: usize = 1024;

/// Accepts connections of `instance`'s processes for as long as it is polled.
pub(crate) async fn accept(shared: Arc<Shared>, instance: InstanceId, listener: AsyncFd<OwnedFd>) {
    loop {
        let accepted = match listener.readable().await {
            Ok(mut ready) => ready.try_io(|listener| seqpacket::accept(listener.get_ref().as_fd())),
            Err(error) => Ok(Err(error)),
        };
        match accepted {
            Ok(Ok(socket)) => {
                tokio::spawn(serve(shared.clone(), instance, socket));
            }
            Ok(Err(error)) => {
                warn!("instance {instance}: no connection accepted: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(_would_block) => {}
        }
    }
}

async fn serve(shared: Arc<Shared>, instance: InstanceId, socket: OwnedFd) {
    if let Err(error) = converse(&shared, instance, socket).await {
        debug!("instance {instance}: a process is cut off: {error}");
    }
}

async fn converse(shared: &Arc<Shared>, instance: InstanceId, socket: OwnedFd) -> io::Result<()> {
    let pid = seqpacket::peer_credentials(socket.as_fd())?.pid;
    let socket = watch(socket)?;
    let hello = timeout(HELLO_LIMIT, receive(&socket)).await??;
    let Some(ToNode::Hello { version, role, resume }) = hello else {
        return Err(io::Error::other("the first message is no Hello"));
    };
    let (queue, waiting) = mpsc::channel(QUEUE);
    let serial = shared.next_serial();
    let admitted = check_version(version)
        .and_then(|()| check_identity(shared, instance, pid, role))
        .and_then(|()| shared.admit(instance, (serial, pid), role, resume, queue));
    let seat = match admitted {
        Ok(seat) => seat,
        Err(NotAdmitted::Later) => return Ok(()),
        Err(NotAdmitted::Refused(reason)) => {
            warn!("instance {instance}: process {pid} is refused: {reason}");
            return send(&socket, &ToProcess::Refused { reason }, &[]).await;
        }
    };
    let result = tokio::select! {
        result = hear(shared, instance, seat, &socket) => result,
        result = tell(waiting, &socket) => result,
    };
    shared.leave(instance, seat, serial);
    result
}

fn check_version(version: u16) -> Result<(), NotAdmitted> {
    if version == attach::VERSION {
        return Ok(());
    }
    Err(NotAdmitted::Refused(format!(
        "it speaks version {version} of the attach protocol, this node version {}: start the instance again",
        attach::VERSION
    )))
}

/// Whether process `pid` belongs to `instance`: an instance speaks for itself only.
fn check_identity(shared: &Shared, instance: InstanceId, pid: i32, role: Role) -> Result<(), NotAdmitted> {
    let (network, pids) = shared.namespaces(instance).ok_or(NotAdmitted::Later)?;
    let found = || -> io::Result<Option<&str>> {
        let Some(pids) = pids else { return Ok(None) };
        if Namespace::of_process(pid, "net")? != Namespace::of(network.as_fd())? {
            return Ok(Some("it is in another network namespace"));
        }
        if Namespace::of_process(pid, "pid")? != pids {
            return Ok(Some("it is in another PID namespace"));
        }
        let claims_init = role == Role::Init && !is_first_process(pid)?;
        Ok(claims_init.then_some("it is not the instance's first process"))
    };
    match found() {
        Ok(None) => Ok(()),
        Ok(Some(difference)) => Err(NotAdmitted::Refused(difference.into())),
        Err(error) => Err(NotAdmitted::Refused(format!("who it is cannot be found out: {error}"))),
    }
}

/// Handles what the process says until it closes.
async fn hear(
    shared: &Arc<Shared>,
    instance: InstanceId,
    seat: Seat,
    socket: &AsyncFd<OwnedFd>,
) -> io::Result<()> {
    while let Some(message) = receive(socket).await? {
        handle(shared, instance, seat, message)?;
    }
    Ok(())
}

fn handle(shared: &Arc<Shared>, instance: InstanceId, seat: Seat, message: ToNode) -> io::Result<()> {
    match (seat, message) {
        (Seat::Verbs(index), ToNode::OpenLink { peer }) => {
            let from = ProcessId { vid: instance.vid, index };
            link::spawn(shared, instance, from, peer);
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
        (Seat::Init, ToNode::Resumed { .. }) => {}
        (Seat::Init, ToNode::Output { stream, bytes }) if bytes.len() <= attach::MAX_OUTPUT => {
            shared.keep_output(instance, Chunk { stream, bytes });
        }
        (Seat::Init, ToNode::Exited { code }) => shared.exited(instance, code),
        (_, message) => {
            return Err(io::Error::other(format!("{message:?} is not for it to say")));
        }
    }
    Ok(())
}

/// Sends what waits for the process until nobody can want to tell it anything more.
async fn tell(mut waiting: mpsc::Receiver<Outgoing>, socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
    while let Some(outgoing) = waiting.recv().await {
        send(socket, &outgoing.message, &outgoing.descriptors).await?;
    }
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

/// `socket` with tokio told when it is ready.
pub(crate) fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` refers to the same open file until it is dropped, which the `AsyncFd` does last.
    Ok(unsafe { AsyncFd::register(socket) }?)
}
