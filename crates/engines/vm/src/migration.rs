//! QEMU's live migration, as both sides of a move follow it.
//!
//! ```text
//! active ──▶ pre-switchover ──▶ device ──▶ completed      the source is then in `postmigrate`
//!   │             │ stopped        │
//!   └─────────────┴────────────────┴──▶ failed, cancelled  the source runs on
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lock::lock;
use crate::qmp::{Qmp, QmpError, Result};
use crate::stall::Transfer;

/// The name of the channel, and of its descriptor in QEMU.
pub const CHANNEL: &str = "ram";

/// The downtime that a switchover may take for memory.
const DOWNTIME_MS: u64 = 300;

/// The first QEMU whose emulated processors report every page that they write while a migration runs. Earlier ones miss pages that a
/// processor has written before and keeps in its TLB, if changed pages are collected while it runs.
const COLLECTS_RUNNING: u64 = 9;

/// The bytes of the only round that are left for the switchover, so that the guest runs until then.
const LEFT: u64 = 8 << 20;

/// The bytes below which the only round is watched closely, so that it does not end unseen.
const CLOSE: u64 = 64 << 20;

/// The bytes of the only round that are left when the guest is stopped: few milliseconds' worth.
const LEFT_AT_STOP: u64 = 512 << 10;

/// No limit: the node limits the rate of channels.
const ANY_RATE: u64 = 1 << 40;

/// How long to wait for an event before the migration's state is asked for.
const LOOK: Duration = Duration::from_millis(10);

/// The same where a few milliseconds count.
const LOOK_CLOSELY: Duration = Duration::from_millis(1);

/// How a migration sends the memory of a running guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// In as many rounds as the downtime needs.
    Many,
    /// In one round. Changed pages are collected only when the guest is stopped.
    One,
}

impl Rounds {
    /// The rounds that this QEMU does without losing what the guest writes.
    fn of(qmp: &Qmp) -> Self {
        if qmp.major_version() < COLLECTS_RUNNING { Self::One } else { Self::Many }
    }

    /// Whether the rest can be left for the switchover.
    fn is_near(self, now: &Progress) -> bool {
        match self {
            // Before the second round, nothing is known about changes.
            Self::Many => now.rounds > 1 && now.remaining <= now.rate / 1000 * DOWNTIME_MS,
            Self::One => now.remaining <= LEFT,
        }
    }

    /// The rate, in bytes a second, from then until the switchover. Many rounds keep the memory up to date; one must not end.
    fn parked_rate(self) -> u64 {
        match self {
            Self::Many => 64 << 20,
            // QEMU shares it out in tenths of a second, and sends one page in each, be it empty or not. No rate at all is no limit.
            Self::One => 10,
        }
    }

    /// The downtime before the switchover, in milliseconds: QEMU stops the guest when the rest can be sent within it. With none, it
    /// stops the guest at the end of the round.
    fn downtime_ms(self) -> u64 {
        match self {
            Self::Many => 1,
            Self::One => 0,
        }
    }

    /// The bytes that are left when the guest is stopped for the switchover.
    fn left_at_stop(self) -> u64 {
        match self {
            // The rest fits into the downtime.
            Self::Many => u64::MAX,
            Self::One => LEFT_AT_STOP,
        }
    }

    /// The downtime at the switchover.
    fn last_downtime_ms(self) -> u64 {
        match self {
            Self::Many => DOWNTIME_MS,
            Self::One => 0,
        }
    }
}

/// A moment of a migration.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Its status.
    pub status: Status,
    /// The bytes that have been sent.
    pub transferred: u64,
    /// The bytes of memory that are still to be sent.
    pub remaining: u64,
    /// The rate of late, in bytes a second.
    pub rate: u64,
    /// How often changed pages have been collected.
    pub rounds: u64,
    /// Why it has failed.
    pub reason: String,
}

/// QEMU's word for where a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Memory is sent, and the guest runs.
    Active,
    /// The guest is stopped, and QEMU waits for `migrate-continue`.
    PreSwitchover,
    /// The rest is sent.
    Device,
    /// The destination has everything.
    Completed,
    /// There is no migration, or it was cancelled.
    Idle,
    /// It has failed.
    Failed,
}

impl Status {
    /// Whether it goes on by itself or by a command.
    fn is_under_way(self) -> bool {
        matches!(self, Self::Active | Self::PreSwitchover | Self::Device)
    }
}

impl Progress {
    fn parse(answer: &Value) -> Self {
        let ram = |field: &str| answer["ram"][field].as_u64().unwrap_or(0);
        let megabits = answer["ram"]["mbps"].as_f64().unwrap_or(0.0);
        Self {
            status: status(answer["status"].as_str().unwrap_or("none")),
            transferred: ram("transferred"),
            remaining: ram("remaining"),
            rate: (megabits * 125_000.0) as u64,
            rounds: ram("dirty-sync-count"),
            reason: answer["error-desc"].as_str().unwrap_or("the other host did not take it").to_owned(),
        }
    }
}

fn status(word: &str) -> Status {
    match word {
        "setup" | "active" | "wait-unplug" | "cancelling" => Status::Active,
        "pre-switchover" => Status::PreSwitchover,
        "device" => Status::Device,
        "completed" => Status::Completed,
        "failed" => Status::Failed,
        _ => Status::Idle,
    }
}

/// Asks where the migration is.
pub fn progress(qmp: &mut Qmp) -> Result<Progress> {
    Ok(Progress::parse(&qmp.execute("query-migrate", json!({}))?))
}

/// Begins to send memory over `channel`, as fast as it takes it.
pub fn send(qmp: &mut Qmp, channel: &OwnedFd) -> Result<()> {
    capabilities(qmp, &["events", "return-path", "pause-before-switchover"])?;
    if Rounds::of(qmp) == Rounds::Many {
        // QEMU slows the processors down, more and more, if they change memory faster than it is sent.
        capabilities(qmp, &["auto-converge"])?;
    }
    limits(qmp, ANY_RATE, Rounds::of(qmp).downtime_ms())?;
    qmp.give(CHANNEL, channel.as_fd())?;
    qmp.execute("migrate", json!({ "uri": format!("fd:{CHANNEL}") })).map(drop)
}

/// Lets a QEMU that was started for it load what comes over `channel`.
pub fn receive(qmp: &mut Qmp, channel: &OwnedFd) -> Result<()> {
    capabilities(qmp, &["events", "return-path", "pause-before-switchover", "late-block-activate"])?;
    qmp.give(CHANNEL, channel.as_fd())?;
    qmp.execute("migrate-incoming", json!({ "uri": format!("fd:{CHANNEL}") })).map(drop)
}

/// Writes a stopped guest to a file, and waits until it is complete. It is read again by [`load`].
pub fn save(qmp: &mut Qmp, file: &OwnedFd, goes_on: impl Fn() -> bool) -> Result<Progress> {
    only(qmp, &["events"])?;
    limits(qmp, ANY_RATE, 0)?;
    qmp.give(CHANNEL, file.as_fd())?;
    qmp.execute("migrate", json!({ "uri": format!("fd:{CHANNEL}") }))?;
    wait(qmp, Status::is_under_way, goes_on)
}

/// Lets a QEMU that was started for it load what [`save`] has written.
pub fn load(qmp: &mut Qmp, file: &OwnedFd) -> Result<()> {
    only(qmp, &["events", "late-block-activate"])?;
    qmp.give(CHANNEL, file.as_fd())?;
    qmp.execute("migrate-incoming", json!({ "uri": format!("fd:{CHANNEL}") })).map(drop)
}

/// Waits until the rest can be sent within the downtime, and keeps it so. A guest that hardly writes is stopped already. Between looks,
/// others may use the connection.
pub fn converge(qmp: &Mutex<Qmp>, goes_on: impl Fn() -> bool) -> Result<Progress> {
    let mut transfer = Transfer::new();
    loop {
        let mut qmp = lock(qmp);
        let now = progress(&mut qmp)?;
        match now.status {
            Status::Active if !is_near(&qmp, &now) && goes_on() => {
                transfer.moves(now.transferred)?;
                let is_close = now.rounds > 0 && now.remaining < CLOSE;
                qmp.next_event(if is_close { LOOK_CLOSELY } else { LOOK })?;
            }
            Status::Active => {
                let rounds = Rounds::of(&qmp);
                limits(&mut qmp, rounds.parked_rate(), rounds.downtime_ms())?;
                return Ok(now);
            }
            _ => return Ok(now),
        }
    }
}

/// Whether QEMU has stopped the guest for the switchover by itself. On a busy host, [`converge`] may look too late to prevent that.
pub fn has_stopped(qmp: &mut Qmp) -> bool {
    progress(qmp).is_ok_and(|now| now.status == Status::PreSwitchover)
}

/// Whether memory has begun to flow, and the rest can be left for the switchover.
fn is_near(qmp: &Qmp, now: &Progress) -> bool {
    now.rounds > 0 && Rounds::of(qmp).is_near(now)
}

/// Stops the guest when little is left, and waits until QEMU is ready for the switchover. Calls `hold` just before: no frame may reach a
/// guest that stops. QEMU would stop the guest by itself a little later, but announces that only afterwards.
pub fn stop(
    qmp: &mut Qmp,
    hold: impl FnOnce() -> io::Result<()>,
    goes_on: impl Fn() -> bool,
) -> Result<Progress> {
    let rounds = Rounds::of(qmp);
    limits(qmp, ANY_RATE, rounds.last_downtime_ms())?;
    let (mut now, mut transfer) = (progress(qmp)?, Transfer::new());
    while now.status == Status::Active && now.remaining > rounds.left_at_stop() && goes_on() {
        transfer.moves(now.transferred)?;
        qmp.next_event(LOOK_CLOSELY)?;
        now = progress(qmp)?;
    }
    if now.status != Status::Active {
        return Ok(now);
    }
    hold()?;
    halt(qmp)?;
    wait(qmp, |status| status == Status::Active, goes_on)
}

/// Sends the rest of a stopped guest, and waits until the destination has all of it.
pub fn complete(qmp: &mut Qmp, goes_on: impl Fn() -> bool) -> Result<Progress> {
    qmp.execute("migrate-continue", json!({ "state": "pre-switchover" }))?;
    wait(qmp, |status| matches!(status, Status::PreSwitchover | Status::Device), goes_on)
}

/// Cancels the migration, if there is one, and waits until it has ended. One that is complete stays as it is. A guest that [`stop`] has
/// stopped stays so.
pub fn cancel(qmp: &mut Qmp) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(10);
    let end = Instant::now() + LIMIT;
    if progress(qmp)?.status == Status::Completed {
        return Ok(());
    }
    qmp.execute("migrate_cancel", json!({}))?;
    while Instant::now() < end && progress(qmp)?.status.is_under_way() {
        qmp.next_event(Duration::from_millis(1))?;
    }
    Ok(())
}

/// QEMU's word for the state of the guest, such as `running`, `paused`, `inmigrate` or `postmigrate`.
pub fn run_state(qmp: &mut Qmp) -> Result<String> {
    let answer = qmp.execute("query-status", json!({}))?;
    Ok(answer["status"].as_str().unwrap_or_default().to_owned())
}

/// Lets the guest's processors run.
pub fn cont(qmp: &mut Qmp) -> Result<()> {
    qmp.execute("cont", json!({})).map(drop)
}

/// Presses the guest's power button.
pub fn power_down(qmp: &mut Qmp) -> Result<()> {
    qmp.execute("system_powerdown", json!({})).map(drop)
}

/// Stops the guest's processors. What it has written reaches its disks.
pub fn halt(qmp: &mut Qmp) -> Result<()> {
    qmp.execute("stop", json!({})).map(drop)
}

/// A migration that has ended otherwise than it should, as QEMU says it.
pub fn failed(progress: &Progress) -> QmpError {
    QmpError::Refused(progress.reason.clone())
}

/// Waits as long as the status is one of `these`. QEMU announces each change.
///
/// # Errors
/// If the connection fails, or the other host takes nothing.
fn wait(qmp: &mut Qmp, these: impl Fn(Status) -> bool, goes_on: impl Fn() -> bool) -> Result<Progress> {
    let mut transfer = Transfer::new();
    loop {
        let now = progress(qmp)?;
        if !these(now.status) || !goes_on() {
            return Ok(now);
        }
        transfer.moves(now.transferred)?;
        qmp.next_event(LOOK)?;
    }
}

fn capabilities(qmp: &mut Qmp, wanted: &[&str]) -> Result<()> {
    let on = |name: &&str| json!({ "capability": name, "state": true });
    let wanted: Vec<Value> = wanted.iter().map(on).collect();
    qmp.execute("migrate-set-capabilities", json!({ "capabilities": wanted })).map(drop)
}

/// Switches these capabilities on, and all others off, which an earlier migration may have needed.
fn only(qmp: &mut Qmp, wanted: &[&str]) -> Result<()> {
    let known = qmp.execute("query-migrate-capabilities", json!({}))?;
    let set = |known: &Value| {
        let name = known["capability"].as_str()?;
        let (is_on, state) = (known["state"] == true, wanted.contains(&name));
        (is_on != state).then(|| json!({ "capability": name, "state": state }))
    };
    let changes: Vec<Value> = known.as_array().into_iter().flatten().filter_map(set).collect();
    qmp.execute("migrate-set-capabilities", json!({ "capabilities": changes })).map(drop)
}

fn limits(qmp: &mut Qmp, rate: u64, downtime_ms: u64) -> Result<()> {
    let limits = json!({ "max-bandwidth": rate, "downtime-limit": downtime_ms });
    qmp.execute("migrate-set-parameters", limits).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switchover_is_near_when_the_rest_fits_into_the_downtime() {
        let now = |rounds: u64, remaining: u64| {
            Progress::parse(&json!({
                "status": "active",
                "ram": { "remaining": remaining, "mbps": 800.0, "dirty-sync-count": rounds },
            }))
        };
        assert!(Rounds::Many.is_near(&now(2, 30_000_000)) && !Rounds::Many.is_near(&now(2, 30_000_001)));
        assert!(!Rounds::Many.is_near(&now(1, 0)), "the first round says nothing about changes");
    }

    #[test]
    fn a_single_round_does_not_end_before_the_switchover() {
        let now = |remaining: u64| {
            let ram = json!({ "remaining": remaining, "mbps": 800.0, "dirty-sync-count": 1 });
            Progress::parse(&json!({ "status": "active", "ram": ram }))
        };
        assert!(Rounds::One.is_near(&now(LEFT)) && !Rounds::One.is_near(&now(LEFT + 1)));
        assert_eq!(Rounds::One.parked_rate() / 10, 1, "one page in each tenth of a second");
        assert_eq!(LEFT / 4096 / 10, 204, "seconds until the rest is sent");
    }

    #[test]
    fn a_failure_has_qemus_reason_if_it_gives_one() {
        let said = Progress::parse(&json!({ "status": "failed", "error-desc": "Unable to write" }));
        assert_eq!((said.status, said.reason.as_str()), (Status::Failed, "Unable to write"));
        assert_eq!(Progress::parse(&json!({})).status, Status::Idle);
    }
}
