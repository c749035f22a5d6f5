//! Finds a tree again after a restart of the node.

use std::thread;
use std::time::{Duration, Instant};

use super::Tree;
use super::place::Place;
use crate::criu::paging::{Pager, PagerId};
use crate::engine::State;
use crate::error::Result;
use crate::linux::task::{Task, TaskId, is_stopped};
use crate::process::record::{Record, Records};
use crate::process::site::Site;

/// How long a killed process may take to end.
const KILLED: Duration = Duration::from_secs(10);
/// How long a CRIU without its node may take to undo its work.
const ORPHANED: Duration = Duration::from_secs(5);
/// How long a stopping process may wait for a processor: as long as many others are busy.
const COMES_TO_A_STOP: Duration = Duration::from_secs(2);

impl Tree {
    /// Recovers an instance from its record, once its CRIU is gone.
    pub fn recover(mut record: Record, records: &Records, site: &Site) -> Result<Self> {
        outlive(record.criu.take());
        let first = record.first.take().and_then(Task::open);
        let (first, pager) = with_pager(first, record.pager.take());
        let state = match (record.state, &first) {
            (State::Running, Some(_)) => State::Running,
            (State::Stopped, Some(task)) if comes_to_a_stop(task.id().pid) => State::Stopped,
            (State::Stopped, Some(_)) => State::Running,
            (State::Held, Some(_)) if record.releasing => State::Running,
            (State::Held | State::Prepared, _) => State::Prepared,
            (State::Running | State::Stopped | State::Ended, _) => State::Ended,
        };
        let Place { namespace, link, root } = match (&first, state) {
            (Some(task), State::Running | State::Stopped) => Place::find(task, &record, site)?,
            _ => Place::make(&record.spec, site)?,
        };
        record.first = first.as_ref().map(Task::id);
        record.pager = pager.as_ref().map(Pager::id);
        (record.state, record.releasing) = (state, false);
        let mut live = Self { record, namespace, link, root, first, criu: None, turn: None, pager };
        match state {
            State::Prepared => live.drop_held(),
            // The engine had not decided to stop it: a crash in the middle of a dump left it stopped.
            State::Running => live.run_on(records)?,
            State::Ended => live.end_pager(),
            _ => {}
        }
        // The older record leads to the same result.
        let _older = records.save(&live.record);
        Ok(live)
    }
}

/// Waits until a CRIU whose node has died undoes its work, or kills it.
fn outlive(criu: Option<TaskId>) {
    if let Some(orphan) = criu.and_then(Task::open)
        && !orphan.ended_within(ORPHANED)
    {
        let _gone = orphan.signal(libc::SIGKILL);
        orphan.ended_within(KILLED);
    }
}

/// Returns the first process of an instance, and its pager if it has one. If the pager has ended, the missing memory never arrives:
/// the instance has ended with the pager, or this ends it.
fn with_pager(first: Option<Task>, pager: Option<PagerId>) -> (Option<Task>, Option<Pager>) {
    let Some(id) = pager else { return (first, None) };
    match (first, Pager::adopt(id)) {
        (Some(first), None) => {
            let _gone = first.signal(libc::SIGKILL);
            first.ended_within(KILLED);
            (None, None)
        }
        found => found,
    }
}

/// Whether a process that CRIU may have left stopped is stopped. A stopping process executes nothing more, but appears as stopped
/// only after it has had a processor once more.
fn comes_to_a_stop(pid: i32) -> bool {
    let end = Instant::now() + COMES_TO_A_STOP;
    loop {
        match is_stopped(pid) {
            false if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            is_stopped => return is_stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_is_about_to_stop_counts_as_stopped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let runs_on = comes_to_a_stop(pid);
        let stopped = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(50));
                // SAFETY: no memory is passed; the process is our own.
                unsafe { libc::kill(pid, libc::SIGSTOP) }
            });
            comes_to_a_stop(pid)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((runs_on, stopped), (false, true));
    }
}
