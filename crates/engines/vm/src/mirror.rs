//! Local disks that move along: QEMU mirrors each one to the destination while the guest runs.
//!
//! ```text
//! source's QEMU                                     destination's QEMU
//! disk0 ── mirror0 ──▶ target0 ══ channel `disk0` ══▶ export `disk0` of its NBD server
//!     every block, then each write as the guest makes it
//! ```
//!
//! A write of the guest is complete when both disks have it, so there is nothing left to send when the guest stops.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use engine_api::Channels;
use serde_json::{Value, json};

use crate::disks::LocalDisk;
use crate::lock::lock;
use crate::qmp::{Qmp, QmpError, Result};
use crate::stall::Transfer;

/// How often the state of jobs is asked for.
const LOOK: Duration = Duration::from_millis(20);

/// How long the other host may take to greet.
const GREETING: Duration = Duration::from_secs(2);

/// The name under which QEMU gets the socket of its NBD server.
const SERVER: &str = "nbd";

/// Source: the channels of the mirrors.
///
/// A network that is cut closes no channel. QEMU waits for the mirrors' writes when it stops the guest, and answers nothing meanwhile.
#[derive(Default)]
pub struct Open(Mutex<Vec<UnixStream>>);

impl Open {
    /// Ends them, and with them whatever QEMU waits for.
    pub fn cut(&self) {
        for channel in lock(&self.0).drain(..) {
            let _closed = channel.shutdown(Shutdown::Both);
        }
    }
}

/// Source: begins to mirror the disks, and waits until the destination has all blocks. Between looks, others may use the connection.
///
/// # Errors
/// If a channel cannot be opened, or QEMU refuses or fails.
pub fn begin(
    qmp: &Mutex<Qmp>,
    (channels, open): (&Arc<dyn Channels>, &Open),
    disks: &[LocalDisk],
    goes_on: &dyn Fn() -> bool,
) -> Result<()> {
    for disk in disks {
        let channel = UnixStream::from(channels.connect(&disk.node())?);
        let (mut qmp, number) = (lock(qmp), disk.number);
        qmp.give(&disk.node(), channel.as_fd())?;
        lock(&open.0).push(channel.try_clone()?);
        let server = json!({ "type": "fd", "str": disk.node() });
        let target = target(number);
        let options =
            json!({ "driver": "nbd", "node-name": target, "server": server, "export": disk.node() });
        or_cut(&channel, || qmp.execute("blockdev-add", options))?;
        // Blocks of a base image are on both hosts.
        let sync = if disk.base.is_some() { "top" } else { "full" };
        qmp.execute(
            "blockdev-mirror",
            json!({
                "job-id": job(number), "device": disk.node(), "target": target, "sync": sync,
                "copy-mode": "write-blocking",
            }),
        )?;
    }
    let mut transfer = Transfer::new();
    while !are_ready(&mut lock(qmp), disks)? && goes_on() {
        transfer.moves(mirrored(&mut lock(qmp))?)?;
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Cuts the channel unless `greet` is done in time: QEMU does nothing else while it greets the other host, so the guest stands still.
fn or_cut<T>(channel: &UnixStream, greet: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(GREETING) == Err(RecvTimeoutError::Timeout) {
                let _closed = channel.shutdown(Shutdown::Both);
            }
        });
        let greeted = greet();
        drop(done);
        greeted
    })
}

/// Whether all mirrors have all blocks.
fn are_ready(qmp: &mut Qmp, disks: &[LocalDisk]) -> Result<bool> {
    let jobs = jobs(qmp)?;
    let state = |disk: &LocalDisk| jobs.iter().find(|found| found["device"] == job(disk.number));
    for disk in disks {
        match state(disk) {
            None => {
                return Err(QmpError::Refused(format!("the mirror of {} has ended", disk.path.display())));
            }
            Some(found) if found["ready"] != true => return Ok(false),
            Some(_) => {}
        }
    }
    Ok(true)
}

/// The bytes that all mirrors have dealt with.
fn mirrored(qmp: &mut Qmp) -> Result<u64> {
    Ok(jobs(qmp)?.iter().filter_map(|job| job["offset"].as_u64()).sum())
}

/// Source: ends the mirrors of a stopped guest. Both disks are the same then.
///
/// # Errors
/// If QEMU refuses or fails, so that they may differ.
pub fn finish(qmp: &mut Qmp, disks: &[LocalDisk], goes_on: &dyn Fn() -> bool) -> Result<()> {
    if !are_ready(qmp, disks)? {
        return Err(QmpError::Refused("a mirror of a disk is not complete".into()));
    }
    qmp.forget_events()?;
    for disk in disks {
        // A ready mirror that is cancelled writes what it has, and leaves the target as a copy.
        qmp.execute("block-job-cancel", json!({ "device": job(disk.number) }))?;
    }
    let (mut left, mut transfer) = (disks.len(), Transfer::new());
    while left > 0 && goes_on() {
        let Some(event) = qmp.next_event(LOOK)? else {
            transfer.moves(mirrored(qmp)?)?;
            continue;
        };
        match event.name.as_str() {
            "BLOCK_JOB_COMPLETED" => left -= 1,
            "BLOCK_JOB_CANCELLED" | "BLOCK_JOB_ERROR" => {
                return Err(QmpError::Refused("a mirror of a disk has failed".into()));
            }
            _ => {}
        }
    }
    remove_targets(qmp, disks)
}

/// Source: gives the mirrors up, if there are any. The guest's own disks are as they were.
pub fn abandon(qmp: &mut Qmp, disks: &[LocalDisk]) {
    for disk in disks {
        let _none = qmp.execute("block-job-cancel", json!({ "device": job(disk.number), "force": true }));
    }
    // A job that does not end for lack of an answer of the other host ends with the channel.
    for _ in 0..100 {
        if jobs(qmp).is_ok_and(|jobs| jobs.is_empty()) {
            break;
        }
        thread::sleep(LOOK);
    }
    let _none = remove_targets(qmp, disks);
}

fn remove_targets(qmp: &mut Qmp, disks: &[LocalDisk]) -> Result<()> {
    for disk in disks {
        qmp.execute("blockdev-del", json!({ "node-name": target(disk.number) }))?;
    }
    Ok(())
}

fn jobs(qmp: &mut Qmp) -> Result<Vec<Value>> {
    let answer = qmp.execute("query-block-jobs", json!({}))?;
    Ok(answer.as_array().cloned().unwrap_or_default())
}

/// Destination: offers the disks to the source, over a server at `socket`.
///
/// # Errors
/// If the socket cannot be made, or QEMU refuses.
pub fn offer(qmp: &mut Qmp, socket: &Path, disks: &[LocalDisk]) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    qmp.give(SERVER, listener.as_fd())?;
    let address = json!({ "type": "fd", "data": { "str": SERVER } });
    qmp.execute("nbd-server-start", json!({ "addr": address }))?;
    for disk in disks {
        let node = disk.node();
        qmp.execute(
            "block-export-add",
            json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": true }),
        )?;
    }
    Ok(())
}

/// Destination: carries the bytes between a channel that the source opens and the server, until either ends.
pub fn carry(channels: Arc<dyn Channels>, disk: &LocalDisk, socket: PathBuf) {
    let node = disk.node();
    thread::spawn(move || {
        // If the move ends before, there is no channel.
        let Ok(channel) = channels.connect(&node) else { return };
        if let Err(error) = relay(channel.into(), &socket) {
            // The source sees a closed channel, and its mirror fails.
            drop(error);
        }
    });
}

fn relay(channel: UnixStream, socket: &Path) -> io::Result<()> {
    let server = UnixStream::connect(socket)?;
    let (from, to) = (channel.try_clone()?, server.try_clone()?);
    let inwards = thread::spawn(move || copy(&from, &to));
    copy(&server, &channel);
    let _ended = inwards.join();
    Ok(())
}

/// Copies until either side ends, and ends both.
fn copy(mut from: &UnixStream, mut to: &UnixStream) {
    let _ended = io::copy(&mut from, &mut to);
    for side in [from, to] {
        let _closed = side.shutdown(Shutdown::Both);
    }
}

/// Destination: ends the server, once the source has nothing more to send.
///
/// # Errors
/// If QEMU refuses.
pub fn close(qmp: &mut Qmp) -> Result<()> {
    qmp.execute("nbd-server-stop", json!({})).map(drop)
}

fn job(number: usize) -> String {
    format!("mirror{number}")
}

fn target(number: usize) -> String {
    format!("target{number}")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_silent_host_is_not_waited_for_and_a_prompt_one_keeps_its_channel() {
        let (mut near, far) = UnixStream::pair().unwrap();
        or_cut(&near, || ());
        near.set_nonblocking(true).unwrap();
        assert_eq!(near.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let begun = Instant::now();
        let mut silent = far.try_clone().unwrap();
        assert_eq!(or_cut(&far, || silent.read(&mut [0]).unwrap()), 0);
        assert!(begun.elapsed() >= GREETING);
    }
}
