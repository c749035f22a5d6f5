//! The process tree of an instance on this host, and the steps of the engine's calls.
//!
//! * [`place`]: its network namespace, link and root file system;
//! * [`starting`], [`recovering`]: starts it, and finds it again after a restart of the node;
//! * [`arming`]: starts CRIU before the blackout;
//! * [`looking`]: inspects it while it runs;
//! * [`dumping`], [`cutting`], [`passing`], [`rollback`]: the source's part of a move;
//! * [`restoring`], [`releasing`], [`paging`]: the destination's part;
//! * [`ending`]: kills it, and deletes its files.

mod arming;
mod cutting;
mod dumping;
mod ending;
mod looking;
mod paging;
mod passing;
mod place;
mod recovering;
mod releasing;
mod restoring;
mod rollback;
mod starting;

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::criu::paging::Pager;
use crate::criu::root::RootFileSystem;
use crate::criu::run::Criu;
use crate::criu::turn::Turn;
use crate::engine::State;
use crate::error::{Doing, Error, Result};
use crate::linux::task::{self, Task};
use crate::process::network::link::Link;
use crate::process::record::Record;

/// The process tree of an instance, with its network, its CRIU and other resources that this process holds for it.
pub struct Tree {
    /// The record, as on disk.
    pub record: Record,
    /// Its network namespace, until the instance is removed.
    pub namespace: OwnedFd,
    link: Link,
    /// Its root file system.
    pub root: Box<dyn RootFileSystem>,
    /// Its first process, if it has any.
    pub first: Option<Task>,
    /// The CRIU that is armed, or that holds the restored tree.
    criu: Option<Criu>,
    /// The turn to dump, until the dump is complete.
    pub turn: Option<Turn>,
    /// The pager that fetches missing memory, until no page is missing.
    pub pager: Option<Pager>,
}

impl Tree {
    /// Refuses a call that needs another state.
    pub fn must_be(&self, state: State) -> Result<()> {
        if self.record.state == state {
            return Ok(());
        }
        let (name, is) = (self.record.spec.name.clone(), word(self.record.state));
        Err(Error::State { name, is, must: word(state) })
    }

    /// The first process, if it has not ended.
    pub fn first(&self) -> Result<&Task> {
        let alive = self.first.as_ref().filter(|task| !task.ended_within(Duration::ZERO));
        let name = &self.record.spec.name;
        alive.ok_or_else(|| Error::State { name: name.clone(), is: "ended", must: "alive" })
    }

    /// Whether a CRIU is armed or holds the tree.
    pub fn is_armed(&self) -> bool {
        self.criu.is_some()
    }

    pub(super) fn tree(&self) -> Result<Vec<i32>> {
        let pid = self.first()?.id().pid;
        task::tree(pid).doing(|| format!("listing the processes below {pid}"))
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Prepared => "prepared",
        State::Running => "running",
        State::Stopped => "stopped",
        State::Held => "held",
        State::Ended => "ended",
    }
}
