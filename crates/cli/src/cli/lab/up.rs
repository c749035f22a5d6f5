//! `transhume lab up`

use std::env;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use lab::{Files, Lab, LabName, Progress, Spec};

use super::status;
use crate::cli::target::Target;
use crate::failure::{Failure, Result};
use crate::{interrupt, output};

/// Creates a lab and starts its coordinator and nodes
///
/// The lab is named `lab`, or as `--lab` says: 1 to 12 lower-case letters and digits.
///
/// Each host has its own `/tmp`, `/run`, `/dev/shm` and `/var/lib/transhume`, as on a machine of its own. All other
/// files are those of this machine.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume lab up --hosts 3\n  transhume lab up --hosts 2 --lab other --share /tmp/job"
)]
pub struct Arguments {
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 3)]
    hosts: u64,
    /// Shares a folder of this machine with all hosts; may be given again
    #[arg(long, value_name = "DIR", conflicts_with = "shared_files")]
    share: Vec<PathBuf>,
    /// Gives the hosts no files of their own: all share those of this machine
    #[arg(long)]
    shared_files: bool,
    /// Prints the lab's status as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let program = env::current_exe()?;
        let name = target.new_lab()?;
        let hosts = u16::try_from(self.hosts).map_err(|_| lab::Error::BadSize(self.hosts))?;
        remove_on_interrupt(&name, &program)?;
        let files = if self.shared_files { Files::Shared } else { Files::Own { shared: self.share } };
        let lab = Lab::up_telling(&Spec { name, hosts, program, files }, &show);
        clear();
        let lab = lab?;
        let status = lab.status()?;
        if self.json {
            output::json(&status)?;
        } else {
            output::write(status::render(&status))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Makes an interruption remove the partial lab. The removal replaces this process, which stops the creation.
fn remove_on_interrupt(name: &LabName, program: &Path) -> io::Result<()> {
    let mut remove = Command::new("/bin/sh");
    remove.args(["-c", "\"$0\" lab down --lab \"$1\"; exit 130"]).arg(program).arg(name.to_string());
    interrupt::on_first(move || {
        clear();
        eprintln!("interrupted: removing the partial lab");
        let error = remove.exec();
        eprintln!("{}", Failure::new(format!("/bin/sh: {error}"), "remove it with `transhume lab down`"));
    })
}

/// Shows progress on a line that is overwritten, on a terminal.
fn show(progress: Progress) {
    on_terminal(&match progress {
        Progress::Networks => "creating namespaces, links and keys …".to_owned(),
        Progress::Ready { hosts, of } => format!("waiting for nodes: {hosts} of {of} ready …"),
    });
}

fn clear() {
    on_terminal("");
}

fn on_terminal(text: &str) {
    let mut errors = io::stderr();
    if errors.is_terminal() {
        // Progress is not essential, so write errors are ignored.
        let _ = write!(errors, "\r{text}\x1b[K").and_then(|()| errors.flush());
    }
}
