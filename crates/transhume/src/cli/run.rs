//! `transhume run`

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use api::{Client, Event, Instance, Position, Request, RunRequest};
use clap::Args;
use fabric::FabricId;

use super::lasting;
use super::logs::Reading;
use super::target::{Target, unexpected};
use crate::failure::{Failure, Result};
use crate::{WRONG_USAGE, interrupt, library, output};

/// Starts a program that can be moved
///
/// The program runs in PID and network namespaces of its own on one of the hosts, with this
/// directory, this environment and an RDMA device, which it finds through the usual libibverbs.
/// Its output comes here, and its exit code is that of this command.
/// A program that cannot be started leaves no instance: the exit code is 127 if it was not found, and
/// 126 if it cannot be run, as shells have it.
/// Ctrl-C ends it (with SIGKILL, as `transhume kill` does); a second Ctrl-C leaves at once.
/// If the coordinator goes away, the program runs on, and its output comes when there is one again.
#[derive(Args)]
#[command(override_usage = "transhume run [OPTIONS] -- <CMD>...")]
#[command(after_help = "Examples:\n  transhume run --name server --detach -- ib_write_bw\n  \
                        transhume run --host h2 -- ib_write_bw 10.77.1.1")]
pub struct Arguments {
    /// The host to start on [default: one that is up]
    #[arg(long, value_name = "H")]
    host: Option<String>,
    /// The instance's name [default: made up]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// The RDMA address space; instances reach those of their own fabric only
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    fabric: u32,
    /// Writes the instance's name, and leaves it running
    #[arg(short, long)]
    detach: bool,
    /// Writes the instance as JSON, and leaves it running
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let (detach, json) = (self.detach, self.json);
        let host = self.host.clone().unwrap_or_default();
        let suggest = |failure| target.suggest(failure, &host);
        let instance = match target.ask(&Request::Run(self.request()?)).map_err(suggest)? {
            Event::Started(instance) => instance,
            Event::NotStarted { code, failure } => return Err(Failure::from(failure).with_code(code)),
            event => return Err(unexpected(&event)),
        };
        if json {
            output::json(&instance)?;
        } else if detach {
            output::line(&instance.name)?;
        } else {
            return attend(target, &instance);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn request(self) -> Result<RunRequest> {
        if self.command.first().is_none_or(String::is_empty) {
            let help = "give a program and its arguments after `--`: `transhume run -- ib_write_bw`";
            return Err(Failure::new("there is no command to run", help).with_code(WRONG_USAGE));
        }
        // First, since `PWD` names it too.
        let directory = directory()?;
        Ok(RunRequest {
            name: self.name,
            host: self.host,
            fabric: FabricId(self.fabric),
            command: self.command,
            environment: library::add_to(environment()?)?,
            directory,
            followed: !(self.detach || self.json),
        })
    }
}

/// Copies the command's output until it ends; an interruption ends it.
fn attend(target: &Target, instance: &Instance) -> Result<ExitCode> {
    let name = instance.name.clone();
    let socket = target.socket();
    interrupt::on_first(move || end(&socket, &name))?;
    let start = Position { vid: instance.vid, next: 0 };
    let reading = Reading { name: &instance.name, follow: true, after: Some(start), dropped: 0 };
    let socket = target.socket();
    let events = match Client::send(&socket, &reading.request()) {
        Err(error) if error.is_loss() => reading.again(&socket)?,
        answer => answer?,
    };
    reading.copy(&socket, events)
}

/// Ends the instance; the connection that follows its output hears of it.
fn end(socket: &Path, name: &str) {
    let kill = Request::Kill { name: name.to_owned() };
    match lasting::ask(socket, &kill, &format!("to end `{name}`; Ctrl-C again leaves it running")) {
        Ok(Event::Failed(failure)) => eprintln!("{}", Failure::from(failure)),
        Ok(_) => {}
        Err(failure) => eprintln!("{failure}"),
    }
}

fn directory() -> Result<String> {
    let help = "go to one that exists: the program starts in it on its host";
    let missing = |error| Failure::new(format!("the working directory is not there: {error}"), help);
    let path = env::current_dir().map_err(missing)?;
    path.into_os_string()
        .into_string()
        .map_err(|path| not_text(&format!("the working directory's name {path:?}")))
}

fn environment() -> Result<Vec<(String, String)>> {
    let text = |(name, value): (OsString, OsString)| {
        let name = name.into_string().map_err(|_| not_text("the name of an environment variable"))?;
        let value = value.into_string().map_err(|_| not_text(&format!("the environment variable {name}")))?;
        Ok((name, value))
    };
    env::vars_os().map(text).collect()
}

fn not_text(what: &str) -> Failure {
    Failure::new(format!("{what} is not UTF-8"), "change or remove it")
}
