//! `transhume checkpoint`, `transhume restore`

use std::path::{self, Path};
use std::process::ExitCode;

use api::{
    CheckpointRequest, Event, Failure as Obstacle, GroupMove, MoveReport, Outcome, Request, RestoreRequest,
};
use clap::Args;

use super::group::{Followed, first_of, follow};
use super::target::{Target, unexpected};
use super::transfer::cancel_on_interrupt;
use crate::failure::{Failure, Result};
use crate::output;

/// Saves a group of instances in files, all in one state, and lets it run on
///
/// All members are suspended, as for a move, before any of them is saved, and none runs on before all are: what one has sent, another has
/// received, or it is still to be sent. Their RDMA and TCP connections with each other are part of that; connections to others, and
/// files that the group writes, are not. `transhume restore` lets it run again from there, also on other hosts, when it has ended.
///
/// Each host writes what it has into DIR, and the coordinator what belongs together: let all share its file system, or copy it
/// together. A directory takes one checkpoint. Only root may make one, and read it: the memory of programs is in it.
///
/// Ctrl-C asks for the end of it, and the group runs on; it is also given up if any member cannot be saved, or the coordinator goes away
/// before all are. What a host has written then is removed, unless its node cannot be reached.
///
/// With --json there is a list of reports, as `transhume move --json` writes them.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume checkpoint --group job1 /shared/job1-monday\n  \
                        transhume restore /shared/job1-monday --to h3,h4")]
pub struct Checkpoint {
    /// The group
    #[arg(long, value_name = "G")]
    group: String,
    /// Where it is saved; made if it is not there
    #[arg(value_name = "DIR")]
    directory: String,
    /// Writes the reports as JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// Lets a group of instances run again from a checkpoint
///
/// All run again, or none: what stands in the way of one is said, and nothing of the others is left. They have the names, addresses and
/// RDMA identities that they had, so whatever has these now must have ended. Files that they have open must be there as they were.
/// A checkpoint can be restored any number of times, one after the other. An instance whose host cannot be reached has not ended: it may
/// run there.
///
/// With --json there is a list of reports, as `transhume move --json` writes them.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume restore /shared/job1-monday\n  \
                        transhume restore /shared/job1-monday --to h3,h4")]
pub struct Restore {
    /// Where the checkpoint is
    #[arg(value_name = "DIR")]
    directory: String,
    /// The hosts where they are to run, several with commas [default: all that are up and not drained]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    to: Vec<String>,
    /// Writes the reports as JSON, and no progress
    #[arg(long)]
    json: bool,
}

impl Checkpoint {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let json = self.json;
        self.make(target).map_err(|failure| if json { failure.in_json() } else { failure })
    }

    fn make(self, target: &Target) -> Result<ExitCode> {
        let Self { group, directory, json } = self;
        let directory = absolute(&directory)?;
        let request = CheckpointRequest { group: group.clone(), directory: directory.clone() };
        let outlook = format!("the checkpoint is given up: group {group} runs on");
        let not_saved = || {
            Failure::new(
                format!("the coordinator went away, and whether group {group} is saved is not known"),
                format!(
                    "the group runs on; it is saved if checkpoint.json is in {directory}, else what is there is of no use: remove it, \
                     and save it again when the coordinator is back"
                ),
            )
        };
        let reports = match together(target, &Request::Checkpoint(request), outlook, json, not_saved)? {
            Followed { was_lost: true, .. } => return Err(not_saved()),
            Followed { reports, .. } => reports,
        };
        let message = format!("group {group} is not saved, and runs on");
        over(&reports, json, Outcome::Saved, message)?;
        said(json, &format!("group {group} is saved in {directory}, and runs on"))
    }
}

impl Restore {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let json = self.json;
        let named = self.to.clone();
        let suggest =
            |failure| named.iter().fold(failure, |failure, host| target.suggest_host(failure, host));
        self.make(target).map_err(suggest).map_err(|failure| if json { failure.in_json() } else { failure })
    }

    fn make(self, target: &Target) -> Result<ExitCode> {
        let Self { directory, to, json } = self;
        let directory = absolute(&directory)?;
        let request = RestoreRequest { directory: directory.clone(), hosts: to };
        let outlook = "the restore is given up: nothing of it will run".to_owned();
        let not_begun = || {
            Failure::new(
                format!("the coordinator went away before it said anything of the restore of {directory}"),
                "`transhume ps` shows what runs when it is back; then try again",
            )
        };
        let reports = together(target, &Request::Restore(request), outlook, json, not_begun)?.reports;
        over(&reports, json, Outcome::Restored, format!("nothing of {directory} is restored"))?;
        let count = reports.len();
        said(
            json,
            &format!(
                "{count} {} of {directory} run again",
                if count == 1 { "instance" } else { "instances" }
            ),
        )
    }
}

fn absolute(directory: &str) -> Result<String> {
    let absolute = path::absolute(Path::new(directory))?;
    absolute.into_os_string().into_string().map_err(|_| {
        Failure::new(format!("the path of `{directory}` is no UTF-8"), "name a directory whose path is")
    })
}

/// Makes what `request` asks for, for all or none. A Ctrl-C ends it, of which comes `outlook`.
fn together(
    target: &Target,
    request: &Request,
    outlook: String,
    json: bool,
    not_begun: impl Fn() -> Failure,
) -> Result<Followed> {
    let mut events = target.send(request)?;
    match first_of(&mut events, json, not_begun)? {
        Event::GroupBegun { moves } => {
            if let Some(GroupMove { name, .. }) = moves.first() {
                cancel_on_interrupt(target, name.clone(), outlook, json)?;
            }
            follow(target, json, events, &moves)
        }
        Event::Failed(failure) => Err(failure.into()),
        event => Err(unexpected(&event)),
    }
}

/// Writes the reports, if they are wanted, and fails with `message` if not all have ended as `wanted`.
fn over(reports: &[MoveReport], json: bool, wanted: Outcome, message: String) -> Result<()> {
    if json {
        output::json(&reports)?;
    }
    if reports.iter().all(|report| report.outcome == wanted) {
        return Ok(());
    }
    let mut remedies: Vec<&str> = Vec::new();
    for report in reports {
        if let Outcome::RolledBack(why) | Outcome::Ended(why) = &report.outcome
            && !why.remedy.is_empty()
            && !remedies.contains(&why.remedy.as_str())
        {
            remedies.push(&why.remedy);
        }
    }
    let remedy = if remedies.is_empty() { "try again".into() } else { remedies.join("; ") };
    Err(Obstacle::new(message, remedy).into())
}

fn said(json: bool, what: &str) -> Result<ExitCode> {
    if !json {
        output::line(what)?;
    }
    Ok(ExitCode::SUCCESS)
}
