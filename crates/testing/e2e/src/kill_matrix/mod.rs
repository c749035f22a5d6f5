//! The kill matrix of virtual machines: each victim is struck at each moment of a move.
//!
//! A moment is held by stopping (SIGSTOP) the process that the move waits for, so that the strike comes neither before nor after it:
//!
//! | moment | the move waits for |
//! |---|---|
//! | prepare | the destination's emulator, which starts |
//! | pre-copy | the destination's emulator, which takes memory |
//! | switchover | the source's emulator, which is about to stop the guest |
//! | commit | the coordinator, when the destination holds the whole machine |
//! | resume | the destination's emulator, which is about to run the guest: the move is committed |
//! | release | the source's node, which is about to remove the old copy |
//!
//! * [`rig`]: a lab with one machine, whose guest counts and writes to a disk. [`remains`]: resources of hosts.

pub mod remains;
pub mod rig;

use std::fmt::{self, Display};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::{Client, Event, Outcome, Phase};
use lab::Place;

use self::rig::{NAME, Rig};
use crate::fault::Held;
use crate::testlab::{Followed, follow_to, report};

/// How long the network is cut for a while: longer than a time limit of the coordinator for an unreachable host.
const A_WHILE: Duration = Duration::from_secs(3);

/// How long a moment may take to come.
const LIMIT: Duration = Duration::from_secs(30);

/// Polling interval of a moment that no event announces. The next step of a move takes longer.
const LOOK: Duration = Duration::from_millis(1);

/// The part of a lab that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The QEMU that the machine leaves.
    SourceEmulator,
    /// The QEMU to which the machine goes.
    DestinationEmulator,
    /// The node that the machine leaves; its emulator runs on.
    SourceNode,
    /// The node to which the machine goes; its emulator runs on.
    DestinationNode,
    /// Node and emulator of the source.
    SourceHost,
    /// Node and emulator of the destination.
    DestinationHost,
    /// The coordinator.
    Coordinator,
    /// The network between the hosts, until the move has ended.
    Network,
    /// The network between the hosts, for [`A_WHILE`].
    NetworkForAWhile,
}

impl Victim {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::SourceEmulator,
        Self::DestinationEmulator,
        Self::SourceNode,
        Self::DestinationNode,
        Self::SourceHost,
        Self::DestinationHost,
        Self::Coordinator,
        Self::Network,
        Self::NetworkForAWhile,
    ];

    fn takes_source(self) -> bool {
        matches!(self, Self::SourceEmulator | Self::SourceHost)
    }

    fn takes_destination(self) -> bool {
        matches!(self, Self::DestinationEmulator | Self::DestinationHost)
    }
}

impl Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SourceEmulator => "source QEMU",
            Self::DestinationEmulator => "destination QEMU",
            Self::SourceNode => "source node",
            Self::DestinationNode => "destination node",
            Self::SourceHost => "source host",
            Self::DestinationHost => "destination host",
            Self::Coordinator => "coordinator",
            Self::Network => "network",
            Self::NetworkForAWhile => "network, 3 s",
        })
    }
}

/// When a victim is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// The destination's emulator starts.
    Prepare,
    /// Memory is sent.
    Precopy,
    /// The guest is about to stop.
    Switchover,
    /// The destination holds the machine, and the commit is not recorded.
    Commit,
    /// The commit is recorded, and the guest does not run yet.
    Resume,
    /// The guest runs at the destination, and the source still has its copy.
    Release,
}

impl Moment {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Prepare, Self::Precopy, Self::Switchover, Self::Commit, Self::Resume, Self::Release];
}

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prepare => "prepare",
            Self::Precopy => "pre-copy",
            Self::Switchover => "switchover",
            Self::Commit => "commit",
            Self::Resume => "resume",
            Self::Release => "release",
        })
    }
}

/// Where the machine is after a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It runs where it was.
    AtSource,
    /// It runs where it was to go.
    AtDestination,
    /// It has ended: its emulator was killed. Its disk is where it ran last.
    Nowhere,
}

impl Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AtSource => "runs on at the source",
            Self::AtDestination => "runs at the destination",
            Self::Nowhere => "ends",
        })
    }
}

/// The places where a machine may be after a cell, by promise.
#[must_use]
pub fn promised(victim: Victim, moment: Moment) -> &'static [Left] {
    let is_committed = moment >= Moment::Resume;
    match moment {
        _ if victim.takes_source() && moment <= Moment::Switchover => &[Left::Nowhere],
        _ if victim.takes_destination() && is_committed => &[Left::Nowhere],
        _ if is_committed => &[Left::AtDestination],
        // The destination has the whole machine, and has said so.
        Moment::Commit if victim.takes_source() => &[Left::AtDestination],
        // The coordinator, which is stopped, finds that report first, and commits.
        Moment::Commit if victim.takes_destination() => &[Left::AtSource, Left::Nowhere],
        _ if victim.takes_destination() => &[Left::AtSource],
        _ => &[Left::AtSource, Left::AtDestination],
    }
}

/// Strikes `victim` at `moment` of a move, checks what is left, and moves the machine once more.
///
/// # Errors
/// If a promise is broken.
pub fn cell(rig: &mut Rig, victim: Victim, moment: Moment) -> Result<Left> {
    let before = rig.counts_on().context("before the fault")?;
    let roles = rig.roles()?;
    let mut moving = rig.lab.begin_move(NAME, &roles.destination.to_string())?;
    let held = hold(rig, &roles, &mut moving, moment).context("holding the moment")?;
    strike(rig, &roles, victim)?;
    drop(held);
    // A killed coordinator tells nothing more, and an outcome is told once.
    let tells = victim != Victim::Coordinator && moment != Moment::Release;
    let outcome = mend(rig, &roles, victim, tells.then_some(moving)).with_context(|| rig.lab.logs())?;
    let left = settle(rig, &roles, promised(victim, moment)).with_context(|| format!("{outcome:?}"))?;
    let has_moved = left == Left::AtDestination;
    ensure!(
        outcome
            .as_ref()
            .is_none_or(|outcome| (*outcome == Outcome::Moved) == has_moved || left == Left::Nowhere),
        "the machine {left}, but the outcome is {outcome:?}"
    );
    if left == Left::Nowhere {
        let at = if victim.takes_destination() { roles.destination } else { roles.source };
        rig.begin_again(at, before).context("after the end of the machine")?;
    }
    rig.check().context("after the fault")?;
    rig.move_on().context("the next move")?;
    rig.check().context("after the next move")?;
    Ok(left)
}

/// Waits until the machine is where it may be: the coordinator hears of the end of an emulator a moment later.
fn settle(rig: &Rig, roles: &Roles, promised: &[Left]) -> Result<Left> {
    let end = Instant::now() + LIMIT;
    loop {
        let left = match rig.settled()? {
            None => Left::Nowhere,
            Some(place) if place == roles.source => Left::AtSource,
            Some(_) => Left::AtDestination,
        };
        if promised.contains(&left) {
            return Ok(left);
        }
        ensure!(Instant::now() < end, "the machine {left}\n{}", rig.lab.logs());
        thread::sleep(LOOK);
    }
}

/// The hosts of a move.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    /// The host that the machine leaves.
    pub source: Place,
    /// The host to which it goes.
    pub destination: Place,
}

/// Waits until the moment comes, and holds the processes that would end it.
fn hold(rig: &Rig, roles: &Roles, moving: &mut Client, moment: Moment) -> Result<Vec<Held>> {
    let begin = |place| Ok::<_, anyhow::Error>(Held::process(rig.emulator_soon(place)?));
    match moment {
        Moment::Prepare => {
            let held = begin(roles.destination)?;
            moving.set_limit(Some(Duration::from_millis(200)))?;
            let next = loop {
                match moving.next_event() {
                    Ok(Event::Phase { phase: Phase::Prepare, .. } | Event::Begun { .. }) => {}
                    next => break next,
                }
            };
            ensure!(next.is_err(), "the move went on: {next:?}");
            moving.set_limit(Some(LIMIT))?;
            Ok(vec![held])
        }
        Moment::Precopy => {
            reach(moving, Phase::Precopy)?;
            Ok(vec![begin(roles.destination)?])
        }
        Moment::Switchover => {
            reach(moving, Phase::Suspend)?;
            Ok(vec![begin(roles.source)?])
        }
        Moment::Commit => Ok(vec![before_commit(rig, roles, moving)?]),
        Moment::Resume => {
            let uncommitted = before_commit(rig, roles, moving)?;
            let held = begin(roles.destination)?;
            drop(uncommitted);
            reach(moving, Phase::Resume)?;
            Ok(vec![held])
        }
        Moment::Release => {
            let uncommitted = before_commit(rig, roles, moving)?;
            let held = Held::new(&rig.lab, roles.source)?;
            drop(uncommitted);
            let outcome = report(moving)?.outcome;
            ensure!(outcome == Outcome::Moved, "{outcome:?}");
            Ok(vec![held])
        }
    }
}

/// Stops the coordinator when the nodes need it only for the commit, and waits until the destination holds the machine.
fn before_commit(rig: &Rig, roles: &Roles, moving: &mut Client) -> Result<Held> {
    reach(moving, Phase::Dump)?;
    let held = Held::new(&rig.lab, Place::Coordinator)?;
    let end = Instant::now() + LIMIT;
    while !rig.is_held(roles.destination) {
        ensure!(Instant::now() < end, "the destination does not hold the machine\n{}", rig.lab.logs());
        thread::sleep(LOOK);
    }
    Ok(held)
}

fn reach(moving: &mut Client, phase: Phase) -> Result<()> {
    match follow_to(moving, phase)? {
        Followed::Reached => Ok(()),
        Followed::Ended(outcome) => bail!("the move ended before: {outcome:?}"),
    }
}

fn strike(rig: &Rig, roles: &Roles, victim: Victim) -> Result<()> {
    let Roles { source, destination } = *roles;
    let kill = |place| rig.lab.lab.kill(place).map_err(anyhow::Error::from);
    // The node is stopped, so that it does not see the end of its emulator.
    let kill_both = |place| {
        let _held = Held::new(&rig.lab, place)?;
        rig.kill_emulator(place).and_then(|()| kill(place))
    };
    match victim {
        Victim::SourceEmulator => rig.kill_emulator(source),
        Victim::DestinationEmulator => rig.kill_emulator(destination),
        Victim::SourceNode => kill(source),
        Victim::DestinationNode => kill(destination),
        Victim::SourceHost => kill_both(source),
        Victim::DestinationHost => kill_both(destination),
        Victim::Coordinator => kill(Place::Coordinator),
        Victim::Network | Victim::NetworkForAWhile => Ok(rig.lab.lab.cut(source, destination)?),
    }
}

/// Repairs the fault, and returns the outcome of the move, if it is still to come.
fn mend(rig: &Rig, roles: &Roles, victim: Victim, moving: Option<Client>) -> Result<Option<Outcome>> {
    let outcome = || moving.map(|mut moving| report(&mut moving).map(|report| report.outcome)).transpose();
    match victim {
        Victim::SourceEmulator | Victim::DestinationEmulator => {}
        Victim::SourceNode | Victim::SourceHost => rig.lab.lab.start(roles.source)?,
        Victim::DestinationNode | Victim::DestinationHost => rig.lab.lab.start(roles.destination)?,
        Victim::Coordinator => rig.lab.lab.start(Place::Coordinator)?,
        Victim::Network => {
            let outcome = outcome();
            rig.lab.lab.heal_all()?;
            return outcome;
        }
        Victim::NetworkForAWhile => {
            thread::sleep(A_WHILE);
            rig.lab.lab.heal_all()?;
        }
    }
    outcome()
}
