//! Errors of labs, each with its remedy.

use std::io;
use std::path::PathBuf;

/// Why an operation on a lab failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller is not root.
    #[error("creating network namespaces requires root: run this with sudo")]
    NotRoot,
    /// An invalid name of a lab.
    #[error("`{0}` is not a valid lab name: use 1 to 12 lower-case letters and digits")]
    BadName(String),
    /// An invalid name of a host or coordinator.
    #[error("`{0}` is not a place in a lab: use h1, h2, … or coordinator")]
    BadPlace(String),
    /// An invalid number of hosts.
    #[error("a lab has 1 to {max} hosts, not {0}", max = crate::layout::MAX_HOSTS)]
    BadSize(u64),
    /// No lab has that name.
    #[error("no lab `{name}` exists: start it with `transhume lab up --lab {name}`")]
    NoSuchLab {
        /// The name asked for.
        name: String,
    },
    /// The creation of the lab was interrupted.
    #[error("lab `{name}` is incomplete: remove it with `transhume lab down --lab {name}`")]
    Incomplete {
        /// The lab's name.
        name: String,
    },
    /// The lab exists already.
    #[error("lab `{name}` already exists: remove it with `transhume lab down --lab {name}`")]
    AlreadyUp {
        /// The lab's name.
        name: String,
    },
    /// The lab runs, so it is not removed.
    #[error(
        "lab `{name}` is running: choose another name with `--lab`, or remove it with `transhume lab down --lab {name}`"
    )]
    Alive {
        /// The lab's name.
        name: String,
    },
    /// Another command is changing the lab.
    #[error("another command is changing lab `{name}`: try again when it has ended")]
    Busy {
        /// The lab's name.
        name: String,
    },
    /// The lab has no such host.
    #[error("lab `{lab}` has no host {host}: it has h1 to h{hosts}")]
    NoSuchHost {
        /// The lab's name.
        lab: String,
        /// The host asked for.
        host: String,
        /// How many hosts the lab has.
        hosts: u16,
    },
    /// A partition between a place and itself.
    #[error("{0} cannot be cut from itself: pass two places")]
    SamePlace(String),
    /// The daemon is already running.
    #[error("{0} is already running: restart it with `transhume lab restart`")]
    AlreadyRunning(String),
    /// A command that the lab needs is not installed.
    #[error("`{tool}` is not installed: run `scripts/setup.sh`, or `apt-get install {package}`")]
    MissingTool {
        /// The command.
        tool: &'static str,
        /// Debian's package of it.
        package: &'static str,
    },
    /// A command failed.
    #[error("`{command}` failed: {output}")]
    Tool {
        /// The command line.
        command: String,
        /// The tool's standard error.
        output: String,
    },
    /// A daemon ended or did not become ready.
    #[error("{what} {problem}; last lines of {}:\n{tail}", log.display())]
    Daemon {
        /// Which daemon.
        what: String,
        /// The daemon's fault.
        problem: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A node was started without a coordinator.
    #[error(
        "the node of {0} runs, but the coordinator does not: start it with `transhume lab start coordinator`"
    )]
    NoCoordinator(String),
    /// Processes of the lab did not end.
    #[error(
        "{count} processes of the lab did not end, among them PID {pid}: check what blocks it, then try again"
    )]
    WillNotEnd {
        /// How many are left.
        count: usize,
        /// One of them.
        pid: i32,
    },
    /// A file operation failed.
    #[error("{what}")]
    Io {
        /// The operation and its file.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// Names the failed I/O operation.
pub(crate) trait Doing<T> {
    /// Wraps the error, described by `what`.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}
