//! The instance's first process: runs the command, and carries its output and its end to the node.
//!
//! ```text
//!  command ──stdout, stderr──▶ init ──Started, Output, Exited──▶ node      over the attach socket
//! ```
//!
//! It travels with the instance. On `Suspend` it closes its socket, and then asks for the node
//! again and again: the source's after a rollback, the destination's after a move. Meanwhile it
//! reads at most one more packet of output, so that a command that writes a lot waits in its pipe.
//! Each byte is sent once, in order; what a node took and did not record before it crashed is lost.
//!
//! Single-threaded, and a signal comes through a descriptor, so that nothing happens in between.

mod attach;
mod child;
mod signals;

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use fabric::attach::ToNode;

use self::attach::Attachment;
use self::child::{Child, Order};
use self::signals::Signals;
use crate::guard;
use crate::instance::InstanceSpec;

/// Before names of the command's environment that must not have an effect on init itself.
const SHIELD: &str = "TRANSHUME_COMMAND_";

/// Where init itself works: on every host, and writable, since CRIU mounts the instance's `/proc`
/// in there for a moment.
pub(crate) const DIRECTORY: &str = "/tmp";

/// The environment for init, from which it makes `environment` for the command: what tells the
/// dynamic linker to load the drop-in library is meant for the command alone.
pub(crate) fn shield(environment: &[(String, String)]) -> impl Iterator<Item = (String, String)> + '_ {
    environment.iter().map(|(name, value)| {
        let name = if name.starts_with("LD_") { format!("{SHIELD}{name}") } else { name.clone() };
        (name, value.clone())
    })
}

fn unshielded() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().map(|(name, value)| match name.to_str().and_then(|name| name.strip_prefix(SHIELD)) {
        Some(plain) => (plain.into(), value),
        None => (name, value),
    })
}

/// The arguments from which [`run`] knows what to do: user, group, groups, directory, command.
pub(crate) fn arguments(spec: &InstanceSpec) -> Vec<String> {
    let groups: Vec<String> = spec.groups.iter().map(u32::to_string).collect();
    let directory = spec.directory.display().to_string();
    let mut arguments = vec![spec.user.to_string(), spec.group.to_string(), groups.join(","), directory];
    arguments.extend(spec.command.iter().cloned());
    arguments
}

/// Runs a command as the first process of an instance, and returns its exit code once the node
/// has recorded it. `arguments` are those that the engine adds to
/// [`Config::init`](crate::Config::init); they may also tell it to guard a CRIU.
///
/// # Errors
/// If signals cannot be set up, or the arguments are not the engine's. A command that does not
/// start is reported to the node, with the code that a shell would give.
pub fn run(arguments: &[OsString]) -> io::Result<i32> {
    if let Some((_, rest)) = arguments.split_first().filter(|(first, _)| *first == guard::WORD) {
        return guard::run(rest).map(|()| 0);
    }
    let signals = Signals::block()?;
    let child = Child::start(&Order::parse(arguments)?, unshielded());
    let mut init = Init { signals, child, node: Attachment::new(), told_end: false };
    while !init.node.dismissed() {
        init.step()?;
    }
    Ok(init.child.code())
}

struct Init {
    signals: Signals,
    child: Child,
    node: Attachment,
    /// The command's end is on its way in the present connection.
    told_end: bool,
}

impl Init {
    fn step(&mut self) -> io::Result<()> {
        self.wait()?;
        for signal in self.signals.take()? {
            self.child.signalled(signal);
        }
        if self.node.step() {
            self.told_end = false;
        }
        self.carry_output();
        Ok(())
    }

    /// Takes a packet of output from the pipes, if the node takes it from us. One at a time: the node's word to suspend
    /// must not wait behind a command that writes without end.
    fn carry_output(&mut self) {
        if !self.node.has_room() {
            return;
        }
        if let Some(output) = self.child.read_output() {
            self.node.send(&output);
        } else if let Some(end) = untold(&self.child, self.told_end) {
            self.told_end = true;
            self.node.send(end);
        }
    }

    /// Sleeps until something can be done.
    fn wait(&self) -> io::Result<()> {
        let mut polls = vec![interest(self.signals.as_fd().as_raw_fd(), libc::POLLIN)];
        polls.extend(self.node.interest().map(|(fd, events)| interest(fd, events)));
        if self.node.has_room() {
            polls.extend(self.child.pipes().map(|pipe| interest(pipe.as_raw_fd(), libc::POLLIN)));
        }
        // Nothing else tells of an end that came together with output.
        let timeout = if self.node.has_room() && untold(&self.child, self.told_end).is_some() {
            0
        } else {
            self.node.retry_after().map_or(-1, |time| time.as_millis() as libc::c_int)
        };
        // SAFETY: `polls` is live and as long as said.
        let result = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
        match io::Error::last_os_error() {
            error if result == -1 && error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// The command's end, unless it was told.
fn untold(child: &Child, told: bool) -> Option<&ToNode> {
    child.end().filter(|_| !told)
}

fn interest(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_linker_reads_is_kept_from_init() {
        let environment = [("LD_PRELOAD".to_owned(), "x".to_owned()), ("HOME".to_owned(), "/".to_owned())];
        let names: Vec<String> = shield(&environment).map(|(name, _)| name).collect();
        assert_eq!(names, ["TRANSHUME_COMMAND_LD_PRELOAD", "HOME"]);
    }
}
