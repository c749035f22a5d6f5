//! Commands that clients of the coordinator run in the guest: the agent serves their sessions, as init does in other instances.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use fabric::attach::Role;
use sessions::Sessions;
use sessions::attach::{Attachment, Way};
use sessions::launch::Launch;
use sessions::poll::poll;

/// How often to try to reach the node while it is away: the relay tells when it is back, the broker may listen a little later.
const RETRY: Duration = Duration::from_millis(50);

/// The search path of commands if the agent has none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Serves sessions in a thread of its own. `connect` makes a connection to the node.
///
/// # Errors
/// If the thread or the signal handler cannot be set up.
pub fn serve(connect: impl Fn() -> io::Result<OwnedFd> + Send + 'static) -> io::Result<()> {
    let (ended, notices) = UnixStream::pair()?;
    ended.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(libc::SIGCHLD, notices)?;
    let way = Way { connect: Box::new(connect), soon: RETRY, later: RETRY };
    let node = Attachment::new(Role::Sessions, way);
    let sessions = Sessions::new(node, Launch::in_guest(), environment, None);
    let serve = move || {
        if let Err(error) = run(sessions, &ended) {
            eprintln!("transhume-guest: commands cannot be run any more: {error}");
        }
    };
    thread::Builder::new().name("sessions".into()).spawn(serve).map(drop)
}

fn run(mut sessions: Sessions, mut ended: &UnixStream) -> io::Result<()> {
    let mut notices = [0; 64];
    loop {
        let own = [(ended.as_raw_fd(), libc::POLLIN)].into_iter();
        let ready = poll(own.chain(sessions.interest()), sessions.retry_after())?;
        while ended.read(&mut notices).is_ok_and(|count| count > 0) {}
        sessions.reap();
        sessions.step(|fd| ready.contains(&fd));
    }
}

/// The agent's environment, with a search path.
fn environment() -> Vec<(OsString, OsString)> {
    let path = env::var_os("PATH").is_none().then(|| ("PATH".into(), PATH.into()));
    env::vars_os().chain(path).collect()
}
