//! `transhume move --group`

use std::path::Path;
use std::process::ExitCode;

use api::{
    Client, Errand, Event, Failure as Obstacle, GroupMove, MoveGroupRequest, MoveReport, Outcome,
    PlannedMove, Request,
};

use super::lasting::tell;
use super::target::Target;
use super::transfer::{cancel_on_interrupt, follow_again};
use crate::failure::{Failure, Result, unexpected};
use crate::figures::{mebibytes, milliseconds};
use crate::{output, table};

/// Moves the instances of a group together: all arrive, or none.
pub struct GroupTransfer {
    /// The group.
    pub group: String,
    /// The destination hosts.
    pub hosts: Vec<String>,
    /// Only reports blockers.
    pub dry_run: bool,
    /// Ignores the cool-down.
    pub force: bool,
    /// Prints reports as JSON.
    pub json: bool,
}

impl GroupTransfer {
    pub fn make(&self, target: &Target) -> Result<ExitCode> {
        let (group, hosts) = (self.group.clone(), self.hosts.clone());
        let request = MoveGroupRequest { group, hosts, dry_run: self.dry_run, force: self.force };
        let mut events = target.send(&Request::MoveGroup(request))?;
        match first_of(&mut events, self.json, || self.not_begun())? {
            Event::GroupBegun { moves } => self.follow(target, events, &moves),
            Event::Plan(plan) => self.planned(&plan),
            Event::Failed(failure) => Err(self.suggest(target, failure)),
            event => Err(unexpected(&event)),
        }
    }

    fn not_begun(&self) -> Failure {
        Failure::new(
            format!(
                "connection to the coordinator lost before it confirmed the moves of group `{}`",
                self.group
            ),
            "when the coordinator is back, check with `transhume ps` and try again",
        )
    }

    fn suggest(&self, target: &Target, failure: Obstacle) -> Failure {
        self.hosts.iter().fold(failure.into(), |failure, host| target.suggest_host(failure, host))
    }

    fn follow(&self, target: &Target, events: Client, moves: &[GroupMove]) -> Result<ExitCode> {
        if let Some(first) = moves.first() {
            // Cancelling one move rolls the whole group back.
            let outlook = format!(
                "rolling back the moves of group {}: it continues to run on its source hosts",
                self.group
            );
            cancel_on_interrupt(target, first.name.clone(), outlook, self.json)?;
        }
        let Followed { reports, .. } = follow(target, self.json, events, moves)?;
        self.over(&reports)
    }

    fn over(&self, reports: &[MoveReport]) -> Result<ExitCode> {
        let all_moved = reports.iter().all(|report| report.outcome == Outcome::Moved);
        let code = if all_moved { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        if self.json {
            return output::json(&reports).map(|()| code);
        }
        if !all_moved {
            let message = format!("group {} was not moved", self.group);
            return Err(Failure::new(message, "fix the causes above and move it again"));
        }
        output::line(&match reports.len() {
            0 => self.is_there(),
            1 => format!("group {}: 1 instance moved", self.group),
            count => format!("group {}: {count} instances moved", self.group),
        })?;
        Ok(code)
    }

    fn is_there(&self) -> String {
        format!("all instances of group {} are already there", self.group)
    }

    fn planned(&self, plan: &[PlannedMove]) -> Result<ExitCode> {
        let is_possible = plan.iter().all(|planned| planned.to.is_some());
        let code = if is_possible { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        if self.json {
            return output::json(&plan).map(|()| code);
        }
        if plan.is_empty() {
            return output::line(&self.is_there()).map(|()| code);
        }
        let rows: Vec<_> = plan.iter().map(|planned| [planned.name.clone(), destination(planned)]).collect();
        output::write(table::render(["INSTANCE", "TO"], &rows))?;
        say_obstacles(plan);
        Ok(code)
    }
}

/// The first event other than a waiting message; `not_begun` if the connection is lost before it.
pub fn first_of(events: &mut Client, json: bool, not_begun: impl Fn() -> Failure) -> Result<Event> {
    loop {
        match events.next_event() {
            Ok(waiting @ Event::Waiting { .. }) => tell_in(json, &waiting),
            Ok(event) => return Ok(event),
            Err(error) if error.is_loss() => return Err(not_begun()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The results of moves that were made together.
pub struct Followed {
    /// In the order in which the moves ended.
    pub reports: Vec<MoveReport>,
    /// The connection to the coordinator was lost meanwhile.
    pub was_lost: bool,
}

/// Follows moves that have begun together, and prints the result of each.
pub fn follow(target: &Target, json: bool, mut events: Client, moves: &[GroupMove]) -> Result<Followed> {
    let mut reports = Vec::new();
    loop {
        match events.next_event() {
            Ok(Event::MoveOver(report)) => {
                say(&report, json)?;
                reports.push(*report);
            }
            Ok(Event::Done) => return Ok(Followed { reports, was_lost: false }),
            Ok(Event::Failed(failure)) => return Err(failure.into()),
            Ok(event) if event.is_last() => return Err(unexpected(&event)),
            Ok(event) => tell_in(json, &event),
            Err(error) if error.is_loss() => {
                let socket = target.socket();
                let left = &moves[reports.len()..];
                // The first request waits for the coordinator and reports that; the others follow silently.
                let mut next = left.first().map(|first| again(json, &socket, first)).transpose()?;
                for left in left {
                    let events = next.take().map_or_else(|| ask(json, &socket, left), Ok)?;
                    let report = outcome(json, &socket, left, events)?;
                    say(&report, json)?;
                    reports.push(report);
                }
                return Ok(Followed { reports, was_lost: true });
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Follows a move with the restarted coordinator.
fn again(json: bool, socket: &Path, left: &GroupMove) -> Result<Client> {
    follow_again(json, socket, left.name.clone(), left.id)
}

/// Follows a move with a coordinator that was reachable a moment ago.
fn ask(json: bool, socket: &Path, left: &GroupMove) -> Result<Client> {
    let request = Request::FollowMove { name: left.name.clone(), id: left.id };
    match Client::send(socket, &request) {
        Err(error) if error.is_loss() => again(json, socket, left),
        sent => Ok(sent?),
    }
}

/// The report of such a move.
fn outcome(json: bool, socket: &Path, left: &GroupMove, mut events: Client) -> Result<MoveReport> {
    loop {
        match events.next_event() {
            Ok(Event::Moved(report)) => return Ok(*report),
            Ok(Event::Failed(failure)) => return Err(failure.into()),
            Ok(event) if event.is_last() => return Err(unexpected(&event)),
            Ok(event) => tell_in(json, &event),
            Err(error) if error.is_loss() => events = again(json, socket, left)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn say(report: &MoveReport, json: bool) -> Result<()> {
    if json { Ok(()) } else { output::line(&in_words(report)) }
}

/// Prints a waiting message, as JSON or as text.
pub fn tell_in(json: bool, event: &Event) {
    if json { output::json_aside(event) } else { tell(event) }
}

/// A completed move on one line.
pub fn in_words(report: &MoveReport) -> String {
    let MoveReport { name, from, to, outcome, total_us, blackout_us, .. } = report;
    let outcome = match outcome {
        Outcome::Moved if report.restarted => "moved; figures lost because the coordinator restarted".into(),
        Outcome::Restored => format!("restored, {} in all", milliseconds(*total_us)),
        Outcome::Moved => {
            format!("{} in all, blackout {}", milliseconds(*total_us), milliseconds(*blackout_us))
        }
        Outcome::Saved => {
            format!(
                "saved, {}, blackout {}",
                mebibytes(report.engine.image_bytes),
                milliseconds(*blackout_us)
            )
        }
        Outcome::RolledBack(why) => match report.errand {
            Errand::Move => format!("not moved, continues to run: {why}"),
            Errand::Save => format!("not saved, continues to run: {why}"),
            Errand::Restore => format!("not restored: {why}"),
        },
        Outcome::Ended(why) => match report.errand {
            Errand::Move => format!("not moved: {why}"),
            Errand::Save => format!("not saved: {why}"),
            Errand::Restore => format!("not restored: {why}"),
        },
    };
    format!("{name} {from} → {to}: {outcome}")
}

/// Prints the blockers to standard error.
pub fn say_obstacles(plan: &[PlannedMove]) {
    for PlannedMove { name, obstacles, .. } in plan {
        for obstacle in obstacles {
            let message = format!("{name} cannot be moved: {}", obstacle.message);
            eprintln!("{}", Failure::from(Obstacle::new(message, &obstacle.remedy)));
        }
    }
}

/// The destination of a planned move.
pub fn destination(planned: &PlannedMove) -> String {
    planned.to.clone().unwrap_or_else(|| "stays".into())
}
