//! The connection to the node of the host, made when a program first asks for devices.
//!
//! The messages and their order are in [`fabric::attach`].

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{env, fmt, ptr, thread};

use fabric::attach::{
    CONTAINER_FOLDER, INSTANCE_VARIABLE, Role, SOCKET_NAME, ToNode, ToProcess, VERSION, decode, encode,
};
use fabric::{Epoch, FabricId, ProcessId, seqpacket};
use softhca::{Config, Device, Limits};
use verbs::{HandleSource, Policy};

use crate::debug;
use crate::process::Process;
use crate::thread::{self as runtime, Runtime};
use waiting::EventFd;

/// How long to wait between attempts while the node does not listen: the instance is about to be frozen, or
/// has just been thawed.
pub(crate) const RETRY: Duration = Duration::from_micros(500);

/// How often a starting program tries, for half a second at least: its instance may be about to move. These are attempts
/// rather than a time, which goes on while the program is frozen.
const FIRST_ATTEMPTS: u32 = 1000;

/// The same of a program of an instance, for a minute at least: the node of its host may be started again.
const ATTEMPTS_IN_AN_INSTANCE: u32 = 120_000;

/// How long a node may take to answer `Hello`.
const ANSWER_MS: libc::c_int = 10_000;

/// Why the process has no device.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No process listens.
    NoNode(io::Error),
    /// No process listens where an instance's node should.
    NodeAway,
    /// The instance is about to move, or has just moved: the node hung up.
    Later,
    /// The node does not want this process.
    Node(String),
    /// The connection broke, or something unexpected came over it.
    Broken(String),
    /// The process lacks descriptors or threads.
    Local(io::Error),
}

impl Refusal {
    /// The cause of the missing connection to the node.
    fn of_connection(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::Local(error),
            _ => Self::NoNode(error),
        }
    }

    /// Why the node got no greeting, or gave no answer.
    fn of_greeting(error: &io::Error) -> Self {
        match error.kind() {
            // It hung up, or the program moved, before it had the greeting or the program its answer.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected => Self::Later,
            _ => Self::Broken(format!("the connection to the node failed: {error}")),
        }
    }

    /// The `errno` for a program that gets an empty list of devices.
    pub(crate) fn errno(&self) -> libc::c_int {
        match self {
            Self::Local(error) => error.raw_os_error().unwrap_or(libc::ENOMEM),
            _ => libc::ENODEV,
        }
    }

    fn may_pass(&self) -> bool {
        match self {
            Self::NoNode(error) => error.kind() == ErrorKind::ConnectionRefused,
            Self::Later => true,
            Self::NodeAway | Self::Node(_) | Self::Broken(_) | Self::Local(_) => false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode(error) => {
                write!(
                    f,
                    "no RDMA device: this program does not run under `transhume run` ({error}); start it with `transhume run -- COMMAND`"
                )
            }
            Self::NodeAway => {
                write!(
                    f,
                    "no RDMA device: the node of this host does not answer; start the node, then restart the program"
                )
            }
            Self::Later => write!(f, "no RDMA device: the instance is being moved; restart the program"),
            Self::Node(reason) => write!(f, "no RDMA device: the node refused this process: {reason}"),
            Self::Broken(what) => {
                write!(f, "no RDMA device: {what}; does the node run the same version of transhume?")
            }
            Self::Local(error) => {
                write!(f, "no RDMA device: {error}; raise the limits of the process (ulimit -n, -u)")
            }
        }
    }
}

/// The node's answer to a process.
pub(crate) struct Welcome {
    pub(crate) process: ProcessId,
    pub(crate) fabric: FabricId,
    pub(crate) epoch: Epoch,
}

/// Attaches this process, and starts its thread.
pub(crate) fn attach() -> Result<&'static Process, Refusal> {
    headroom::check().map_err(Refusal::Local)?;
    let (socket, welcome) = first_connection()?;
    let wake = EventFd::new(libc::EFD_NONBLOCK).map_err(Refusal::Local)?;
    let incarnation = getrandom::u64().map_err(|error| Refusal::Local(error.into()))?;
    let mut device = Device::new(Config {
        process: welcome.process,
        fabric: welcome.fabric,
        incarnation,
        epoch: welcome.epoch,
        handles: handles(welcome.process),
        limits: Limits::default(),
    });
    device.allow_sharing(true);
    let process = Process::new(welcome.process, welcome.fabric, device, wake);
    process.node.store(socket.as_raw_fd(), Ordering::Relaxed);
    process.reserve.fill();
    let process = Box::into_raw(Box::new(process));
    // SAFETY: it is freed below alone, where no thread knows of it.
    let shared = unsafe { &*process };
    if let Err(error) = runtime::start(Runtime::new(shared, socket)) {
        // SAFETY: the pointer came from `Box`, and all its users have gone with the thread that was not started.
        drop(unsafe { Box::from_raw(process) });
        return Err(Refusal::Local(error));
    }
    shared.make_current();
    Ok(shared)
}

/// A program that starts while its instance moves finds no listening node for a moment, and for longer while its node is down.
fn first_connection() -> Result<(OwnedFd, Welcome), Refusal> {
    let is_in_an_instance = env::var_os(INSTANCE_VARIABLE).is_some() || Path::new(CONTAINER_FOLDER).exists();
    let most = if is_in_an_instance { ATTEMPTS_IN_AN_INSTANCE } else { FIRST_ATTEMPTS };
    let mut attempts = 0;
    loop {
        let fresh = seqpacket::unconnected().map_err(Refusal::of_connection);
        let welcome = fresh.and_then(|socket| connection(&socket, None).map(|welcome| (socket, welcome)));
        match welcome {
            Err(refusal) if refusal.may_pass() && attempts < most => {
                attempts += 1;
                if attempts == 2 * FIRST_ATTEMPTS {
                    debug::tell(
                        "waiting for the RDMA device: this instance is being moved, or the node of its host does not answer",
                    );
                }
                thread::sleep(RETRY);
            }
            Err(Refusal::NoNode(_)) if is_in_an_instance => return Err(Refusal::NodeAway),
            other => return other,
        }
    }
}

/// Connects `socket` to the node, which welcomes this process.
pub(crate) fn connection(socket: &OwnedFd, resume: Option<ProcessId>) -> Result<Welcome, Refusal> {
    seqpacket::connect_by(socket.as_fd(), SOCKET_NAME).map_err(Refusal::of_connection)?;
    greet(socket, resume)
}

/// Sends our identity, and waits for the answer.
fn greet(socket: &OwnedFd, resume: Option<ProcessId>) -> Result<Welcome, Refusal> {
    let hello = ToNode::Hello { version: VERSION, role: Role::Verbs, resume };
    seqpacket::send(socket.as_fd(), &encode(&hello), &[]).map_err(|error| Refusal::of_greeting(&error))?;
    if !readable_within(socket, ANSWER_MS) {
        return Err(Refusal::Broken("the node does not answer".to_owned()));
    }
    let packet = seqpacket::receive(socket.as_fd()).map_err(|error| Refusal::of_greeting(&error))?;
    if packet.bytes.is_empty() {
        return Err(Refusal::Later);
    }
    match decode::<ToProcess>(&packet.bytes) {
        Ok(ToProcess::Welcome { process, fabric, epoch }) => Ok(Welcome { process, fabric, epoch }),
        Ok(ToProcess::Refused { reason }) => Err(Refusal::Node(reason)),
        Ok(_) => Err(Refusal::Broken("malformed answer from the node".to_owned())),
        Err(error) => Err(Refusal::Broken(error.to_string())),
    }
}

/// Whether something is there to be received, or comes in time.
pub(crate) fn readable_within(socket: &OwnedFd, milliseconds: libc::c_int) -> bool {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one live pollfd is passed.
        match unsafe { libc::poll(&raw mut entry, 1, milliseconds) } {
            -1 => match io::Error::last_os_error().kind() {
                ErrorKind::Interrupted => {}
                _ => return readable_without_poll(socket, milliseconds),
            },
            ready => return ready == 1,
        }
    }
}

/// The same in a program that may have no descriptors any more (`RLIMIT_NOFILE` of 0), which may not poll either.
fn readable_without_poll(socket: &OwnedFd, milliseconds: libc::c_int) -> bool {
    let is_readable = || {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: no room is passed.
        let got = unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), 0, flags) };
        got != -1 || io::Error::last_os_error().kind() != ErrorKind::WouldBlock
    };
    let mut looks = (0..milliseconds).map(|_| thread::sleep(Duration::from_millis(1)));
    is_readable() || looks.any(|()| is_readable())
}

/// Tests ask for a device that hands out hostile handles.
fn handles(process: ProcessId) -> Box<dyn HandleSource> {
    let policy = match env::var("TRANSHUME_TEST_HANDLES").as_deref() {
        Ok("random") => Policy::Random,
        Ok("reused") => Policy::Reused,
        Ok("colliding") => Policy::Colliding,
        _ => Policy::Stable,
    };
    policy.source(u64::from(process.qpn(process.vid.lid())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_reported_as_such() {
        let refusal = |errno| Refusal::of_connection(io::Error::from_raw_os_error(errno)).to_string();
        assert!(refusal(libc::EMFILE).contains("ulimit") && !refusal(libc::EMFILE).contains("transhume run"));
        assert!(refusal(libc::ECONNREFUSED).contains("transhume run"));
    }

    #[test]
    fn the_node_answers_a_process_that_may_not_poll() {
        let (ours, node) = seqpacket::pair().unwrap();
        assert!(!readable_without_poll(&ours, 5));
        let speaks = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            seqpacket::send(node.as_fd(), b"word", &[]).unwrap();
            node
        });
        assert!(readable_without_poll(&ours, ANSWER_MS));
        assert_eq!(seqpacket::receive(ours.as_fd()).unwrap().bytes, b"word");
        drop(speaks.join().unwrap());
        assert!(readable_without_poll(&ours, 0), "so is its end");
    }

    #[test]
    fn a_node_that_closes_before_its_answer_is_asked_again() {
        let name = format!("transhume/test-{}", std::process::id());
        let listener = seqpacket::listen(name.as_bytes()).unwrap();
        let pair = || {
            let ours = seqpacket::connect(name.as_bytes()).unwrap();
            (ours, seqpacket::accept(listener.as_fd()).unwrap())
        };
        let is_asked_again = |ours| matches!(greet(ours, None), Err(Refusal::Later));

        let (ours, node) = pair();
        drop(node);
        assert!(is_asked_again(&ours));

        let (ours, node) = pair();
        let leaves_it_unread = thread::spawn(move || assert!(readable_within(&node, ANSWER_MS)));
        assert!(is_asked_again(&ours));
        leaves_it_unread.join().unwrap();

        let (ours, node) = pair();
        let reads_it = thread::spawn(move || {
            assert!(readable_within(&node, ANSWER_MS));
            seqpacket::receive(node.as_fd()).unwrap();
        });
        assert!(is_asked_again(&ours));
        reads_it.join().unwrap();
    }
}
