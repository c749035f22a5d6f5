//! `transhume checkpoint`, `transhume restore`

use std::path::{self, Path};
use std::process::ExitCode;

use api::{
    CheckpointRequest, Event, Failure as Obstacle, GroupMove, MoveReport, Outcome, Request, RestoreRequest,
};
use clap::Args;

use super::group::{Followed, first_of, follow};
use super::target::Target;
use super::transfer::cancel_on_interrupt;
use crate::failure::{Failure, Result, unexpected};
use crate::output;

/// Saves a group of running instances to files
///
/// All members are suspended, saved at one consistent point, and then continue to run. RDMA and TCP
/// connections between members are saved, and so are the disks of virtual machines; connections to other programs, and files that
/// the members write, are not. `transhume restore` starts the group again from DIR after it has ended, also on other hosts.
///
/// Each host writes the images of its members to DIR, and the coordinator writes a manifest: put DIR on a
/// shared file system, or copy its parts together. DIR holds one checkpoint. Only root can checkpoint,
/// because the files contain the memory of the programs.
///
/// Ctrl-C cancels the checkpoint, and the group continues to run. The checkpoint also fails if one member
/// cannot be saved, or if the coordinator fails before all are. Nodes then delete what they have written.
///
/// --json prints a list of reports in the format of `transhume move --json`.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume checkpoint --group job1 /shared/job1-monday\n  \
                        transhume restore /shared/job1-monday --to h3,h4")]
pub struct Checkpoint {
    /// The group
    #[arg(long, value_name = "G")]
    group: String,
    /// The directory of the checkpoint; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: String,
    /// Prints the reports as JSON, without progress
    #[arg(long)]
    json: bool,
}

/// Starts the instances of a checkpoint again
///
/// All instances start, or none. They keep their names, addresses and RDMA identities, so instances that use
/// the same ones must have ended. An instance on an unreachable host has not ended: it may still run there.
/// Files that the instances had open must exist with the same contents. The disks of virtual machines are
/// new files, and must not exist. A checkpoint can be restored any
/// number of times, but not while its instances run.
///
/// --json prints a list of reports in the format of `transhume move --json`.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume restore /shared/job1-monday\n  \
                        transhume restore /shared/job1-monday --to h3,h4")]
pub struct Restore {
    /// The directory of the checkpoint
    #[arg(value_name = "DIR")]
    directory: String,
    /// Hosts for the instances, separated by commas [default: all that are up and not drained]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    to: Vec<String>,
    /// Prints the reports as JSON, without progress
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
        let outlook = format!("the checkpoint is cancelled; group {group} continues to run");
        let not_saved = || {
            Failure::new(
                format!("connection to the coordinator lost; it is unknown whether group {group} was saved"),
                format!(
                    "the group continues to run; if {directory} contains checkpoint.json, it is saved, else delete the directory \
                     and try again when the coordinator is back"
                ),
            )
        };
        let reports = match together(target, &Request::Checkpoint(request), outlook, json, not_saved)? {
            Followed { was_lost: true, .. } => return Err(not_saved()),
            Followed { reports, .. } => reports,
        };
        let message = format!("group {group} was not saved and continues to run");
        over(&reports, json, Outcome::Saved, message)?;
        said(json, &format!("group {group} was saved in {directory} and continues to run"))
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
        let outlook = "the restore is cancelled; no instance of the checkpoint will run".to_owned();
        let not_begun = || {
            Failure::new(
                format!("connection to the coordinator lost before it confirmed the restore of {directory}"),
                "when the coordinator is back, check with `transhume ps` and try again",
            )
        };
        let reports = together(target, &Request::Restore(request), outlook, json, not_begun)?.reports;
        over(&reports, json, Outcome::Restored, format!("no instance of {directory} was restored"))?;
        let count = reports.len();
        said(
            json,
            &format!("{count} {} of {directory} restored", if count == 1 { "instance" } else { "instances" }),
        )
    }
}

fn absolute(directory: &str) -> Result<String> {
    let absolute = path::absolute(Path::new(directory))?;
    absolute.into_os_string().into_string().map_err(|_| {
        Failure::new(
            format!("the path of `{directory}` is not UTF-8"),
            "choose a directory with a UTF-8 path",
        )
    })
}

/// Sends `request` for a group and follows it. Ctrl-C cancels it; `outlook` tells the user the consequence.
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

/// Prints the reports as JSON if requested. Fails with `message` unless all outcomes are `wanted`.
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
