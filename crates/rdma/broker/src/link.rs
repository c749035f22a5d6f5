//! Makes links: the lower of two processes opens a link, and a request of the higher one becomes a nudge.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fabric::attach::{LinkRefusal, ToProcess, Transport};
use fabric::link::LinkRequest;
use fabric::{Epoch, InstanceId, ProcessId};
use rustix::net::sockopt;
use softhca::stream::create_shm_pair;
use tokio::time::sleep;
use tracing::debug;

use crate::broker::{LinkBegun, Shared};

/// How long a nudge may take to lead to a link.
const NUDGE_LIMIT: Duration = Duration::from_millis(50);

/// How long a link to another host may be idle before it is probed, and how often then.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long the other host may take to acknowledge what was sent, or a probe, in milliseconds.
const LOST_AFTER_MS: u32 = 10_000;

/// Starts to make a link from `from`, a process of `instance`, to `to`.
pub(crate) fn spawn(shared: &Arc<Shared>, instance: InstanceId, from: ProcessId, to: ProcessId) {
    let Some(epoch) = shared.epoch(instance) else { return };
    let request = LinkRequest { fabric: instance.fabric, from, epoch, to };
    match shared.begin_link(request) {
        LinkBegun::Yes => {}
        LinkBegun::Already => return,
        LinkBegun::TooMany => return refuse(shared, &request, LinkRefusal::Unreachable),
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut result = fulfil(&shared, request).await;
        if result.is_ok() && !request.opens() {
            // The nudged process may be refused, and need not retry for itself. So the process that needs
            // the link asks again; it ignores this refusal if it has the link by then.
            sleep(NUDGE_LIMIT).await;
            result = Err(LinkRefusal::Moving);
        }
        shared.end_link(request);
        if let Err(reason) = result {
            refuse(&shared, &request, reason);
        }
    });
}

fn refuse(shared: &Shared, request: &LinkRequest, reason: LinkRefusal) {
    debug!("refusing the link from {} to {}: {reason:?}", request.from, request.to);
    let message = ToProcess::LinkRefused { peer: request.to, reason };
    let _ = post(shared, request.from_instance(), request.from, message, Vec::new());
}

async fn fulfil(shared: &Shared, request: LinkRequest) -> Result<(), LinkRefusal> {
    // An instance that is stopped here may already run on another host: ask for its location.
    let place = shared.reachable(&request).filter(|found| *found != Err(LinkRefusal::Moving));
    match (place, request.opens()) {
        _ if request.from == request.to => Err(LinkRefusal::Gone),
        (Some(Err(reason)), _) => Err(reason),
        (Some(Ok(epoch)), true) => open_locally(shared, request, epoch),
        (Some(Ok(_)), false) => nudge(shared, &request),
        (None, true) => open_remotely(shared, request).await,
        (None, false) => shared.peers.nudge(request).await,
    }
}

/// Asks the process at the other end to open the link.
pub(crate) fn nudge(shared: &Shared, request: &LinkRequest) -> Result<(), LinkRefusal> {
    let message = ToProcess::Nudge { peer: request.from };
    post(shared, request.to_instance(), request.to, message, Vec::new())
}

/// Delivers its end of a link from another host to a process.
pub(crate) fn deliver(shared: &Shared, request: &LinkRequest, socket: TcpStream) -> Result<(), LinkRefusal> {
    prepare(&socket);
    let message =
        ToProcess::LinkUp { peer: request.from, epoch: request.epoch, transport: Transport::Stream };
    post(shared, request.to_instance(), request.to, message, vec![socket.into()])
}

async fn open_remotely(shared: &Shared, request: LinkRequest) -> Result<(), LinkRefusal> {
    let openings = shared.openings(request.from_instance()).ok_or(LinkRefusal::Gone)?;
    let _turn = openings.acquire().await.map_err(|_| LinkRefusal::Gone)?;
    let link = shared.peers.open(request).await?;
    prepare(&link.socket);
    let message = ToProcess::LinkUp { peer: request.to, epoch: link.epoch, transport: Transport::Stream };
    post(shared, request.from_instance(), request.from, message, vec![link.socket.into()])
}

/// Disables Nagle's algorithm for a connection to another host, and makes it fail when the host is lost. Without these options
/// a link still works.
fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, PROBE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL);
    let _ = sockopt::set_tcp_user_timeout(socket, LOST_AFTER_MS);
}

fn open_locally(shared: &Shared, request: LinkRequest, epoch: Epoch) -> Result<(), LinkRefusal> {
    let shares_memory = |instance, process: ProcessId| {
        shared.with(instance, |instance| instance.shares_memory(process.index)) == Some(true)
    };
    let in_memory = shares_memory(request.from_instance(), request.from)
        && shares_memory(request.to_instance(), request.to);
    let made = if in_memory { pair() } else { stream_pair() };
    let (transport, near, far) = made.map_err(|error| {
        debug!("creating a link on this host failed: {error}");
        LinkRefusal::Unreachable
    })?;
    let to_near = ToProcess::LinkUp { peer: request.to, epoch, transport };
    let to_far = ToProcess::LinkUp { peer: request.from, epoch: request.epoch, transport };
    post(shared, request.to_instance(), request.to, to_far, far)?;
    post(shared, request.from_instance(), request.from, to_near, near)
}

/// Both ends of a link on this host; the process with the lower ID gets the first.
fn pair() -> io::Result<(Transport, Vec<OwnedFd>, Vec<OwnedFd>)> {
    let (lower, higher) = create_shm_pair()?;
    Ok((Transport::SharedMemory, lower.into(), higher.into()))
}

/// Both ends of a link of which one is in a virtual machine.
fn stream_pair() -> io::Result<(Transport, Vec<OwnedFd>, Vec<OwnedFd>)> {
    let (near, far) = loopback_pair()?;
    Ok((Transport::Stream, vec![near.into()], vec![far.into()]))
}

/// Two connected TCP sockets of this host.
pub(crate) fn loopback_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, address) = listener.accept()?;
    if near.local_addr()? != address {
        return Err(io::Error::other("another process connected to the socket"));
    }
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

fn post(
    shared: &Shared,
    instance: InstanceId,
    to: ProcessId,
    message: ToProcess,
    descriptors: Vec<OwnedFd>,
) -> Result<(), LinkRefusal> {
    let posted = shared.with(instance, |instance| instance.post(to.index, message, descriptors));
    posted.unwrap_or(Err(LinkRefusal::Gone))
}
