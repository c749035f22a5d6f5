//! `transhume run`

mod container;
mod machine;
mod placement;
mod seed;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use api::{Client, Container, Demand, Event, Instance, Position, Request, RunRequest};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fabric::{FabricId, NetworkKind};

use super::logs::Reading;
use super::target::Target;
use super::words;
use super::{input, lasting};
use crate::failure::{Failure, Result, unexpected};
use crate::{WRONG_USAGE, interrupt, library, output};

/// Starts an instance: a program that can move between hosts
///
/// The program runs on one of the hosts, in its own PID, network and UTS namespaces, with this working directory
/// and environment, and with an RDMA device behind the usual libibverbs. Its output is copied here, and
/// its exit code is returned; 127 means that the program was not found, and 126 that it is not executable.
/// Without `--stdin`, standard input is `/dev/null`.
///
/// Ctrl-C ends the instance as `transhume kill` does, as do SIGTERM, a closed terminal and a closed output; a second
/// Ctrl-C returns at once. If the coordinator fails, the program continues to run, and its output is copied when the
/// coordinator is back; its standard input ends.
#[derive(Args)]
#[command(override_usage = "transhume run [OPTIONS] -- <CMD>...\n       transhume run --vm [OPTIONS]")]
#[command(after_help = "Examples:\n  transhume run --name server --detach -- ib_write_bw\n  \
                        transhume run --host h2 -- ib_write_bw 10.77.1.1\n  \
                        zcat queries.gz | transhume run --stdin -- ./answer >answers\n  \
                        transhume run --label app=db --anti-affinity app -- /data/replica\n  \
                        transhume run --cool-down 15m --detach -- ./solver\n  \
                        transhume run --rootfs /srv/debian --volume /data:/data --memory 2G -- /data/job\n  \
                        transhume run --image oci:/srv/images/job:1.0 --volume /data:/data\n  \
                        transhume run --vm --kernel /srv/vmlinuz --initrd /srv/initrd --memory 512M --detach")]
pub struct Arguments {
    /// The host to start on [default: one that is up]
    #[arg(long, value_name = "H")]
    host: Option<String>,
    /// The instance's name [default: generated]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// The instance's group; groups can be moved together
    #[arg(long, value_name = "G")]
    group: Option<String>,
    /// A label of letters, digits and `-_./`; may be repeated up to 16 times
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = words::variable)]
    labels: Vec<(String, String)>,
    /// The cool-down: how long `transhume move` refuses to move it again without `--force`
    /// (a number with `s`, `m`, `h` or `d`) [default: the coordinator's]
    #[arg(long, value_name = "DURATION", value_parser = words::seconds)]
    cool_down: Option<u64>,
    /// The network of its device [default: the overlay if it is laid out, else the bridge]
    #[arg(long, value_name = "NETWORK", value_parser = network())]
    network: Option<NetworkKind>,
    /// The RDMA address space; instances in different fabrics cannot communicate
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    fabric: u32,
    /// Prints the instance's name and returns
    #[arg(short, long)]
    detach: bool,
    /// Prints the instance as JSON and returns
    #[arg(long)]
    json: bool,
    /// Forwards standard input until its end
    #[arg(short = 'i', long, conflicts_with_all = ["detach", "json"])]
    stdin: bool,
    #[command(flatten)]
    placement: placement::PlacementOptions,
    #[command(flatten)]
    container: container::Options,
    #[command(flatten)]
    machine: machine::MachineOptions,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", help_heading = "Arguments")]
    command: Vec<String>,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let (detach, json, stdin) = (self.detach, self.json, self.stdin);
        let errand = if detach || json { None } else { Some(Errand::begin(target.socket())?) };
        let host = self.placement.host(self.host.clone())?.unwrap_or_default();
        let suggest = |failure| target.suggest_host(failure, &host);
        let instance = match target.ask(&Request::Run(self.request()?.into())).map_err(suggest)? {
            Event::Started(instance) => instance,
            Event::NotStarted { code, failure } => return Err(Failure::from(failure).with_code(code)),
            event => return Err(unexpected(&event)),
        };
        if let Some(path) = &instance.vnc {
            let host = &instance.host;
            eprintln!("display: `ssh -L 5900:{path} root@{host}`, then a VNC viewer at localhost:5900");
        }
        match errand {
            Some(errand) => {
                if stdin {
                    input::feed(errand.socket.clone(), instance.name.clone());
                }
                return errand.attend(&instance);
            }
            None if json => output::json(&instance)?,
            None => output::line(&instance.name)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn request(self) -> Result<RunRequest> {
        let followed = !(self.detach || self.json);
        let labels = labels(self.labels)?;
        let limits = (self.container.memory(), self.container.cpus());
        let demand = self.placement.demand(limits.1, limits.0)?;
        let vm = self.machine.vm(&self.command, self.stdin, limits)?;
        let program = match (&vm, self.container.program(&self.command)?) {
            (Some(_), _) => Program::none(),
            (None, Some(program)) => program,
            (None, None) => Program::of_the_host(self.command)?,
        };
        Ok(RunRequest {
            name: self.name,
            host: self.placement.host(self.host)?,
            group: self.group,
            labels,
            // The size of a virtual machine says what it demands.
            demand: if vm.is_some() {
                Demand { cpu_milli: None, memory_bytes: None, ..demand }
            } else {
                demand
            },
            pin: self.placement.is_pinned(),
            anti_affinity: self.placement.anti_affinity.into_iter().collect(),
            affinity: self.placement.affinity.into_iter().collect(),
            cool_down_s: self.cool_down,
            network: self.network,
            fabric: FabricId(self.fabric),
            command: program.command,
            environment: program.environment,
            directory: program.directory,
            followed,
            container: program.container,
            vm,
            stdin: self.stdin,
        })
    }
}

/// Labels by name.
fn labels(given: Vec<(String, String)>) -> Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for (name, value) in given {
        let before = labels.insert(name.clone(), value.clone()).filter(|before| *before != value);
        if let Some(before) = before {
            let what = format!("the label `{name}` has two values, `{before}` and `{value}`");
            return Err(Failure::new(what, "pass one value for it").with_code(WRONG_USAGE));
        }
    }
    Ok(labels)
}

/// Parses the name of a network.
fn network() -> impl TypedValueParser<Value = NetworkKind> {
    let all = [NetworkKind::Bridge, NetworkKind::Overlay];
    let names = all.map(NetworkKind::name);
    let named = move |name: String| all.into_iter().find(|kind| kind.name() == name);
    PossibleValuesParser::new(names).try_map(move |name| named(name).ok_or("unknown network"))
}

/// A program to run.
struct Program {
    command: Vec<String>,
    environment: Vec<(String, String)>,
    directory: String,
    container: Option<Container>,
}

impl Program {
    /// A virtual machine has none.
    fn none() -> Self {
        let (command, environment, directory) = (Vec::new(), Vec::new(), "/".to_owned());
        Self { command, environment, directory, container: None }
    }

    /// A program of the host, with the client's environment and directory.
    fn of_the_host(command: Vec<String>) -> Result<Self> {
        if command.first().is_none_or(String::is_empty) {
            let help = "pass a program and its arguments after `--`: `transhume run -- ib_write_bw`";
            return Err(Failure::new("no command was given", help).with_code(WRONG_USAGE));
        }
        // The directory comes first, because `PWD` contains it too.
        let directory = directory()?;
        let environment = library::add_to(environment()?, &library::folder()?);
        Ok(Self { command, environment, directory, container: None })
    }
}

/// An attached instance, which ends with this command.
struct Errand {
    socket: PathBuf,
    stage: Arc<Mutex<Stage>>,
}

/// The progress of the start.
enum Stage {
    /// The host has not answered yet.
    Starting,
    /// Likewise, and the user has cancelled the start.
    Unwanted,
    /// The instance runs, under this name.
    Running(String),
}

impl Errand {
    /// From now on, an interruption ends the instance as soon as it exists.
    fn begin(socket: PathBuf) -> Result<Self> {
        crate::outlive_the_reader();
        let stage = Arc::new(Mutex::new(Stage::Starting));
        let errand = Self { socket: socket.clone(), stage: Arc::clone(&stage) };
        interrupt::on_first(move || {
            if let Some(name) = interrupted(&stage) {
                end(&socket, &name);
            }
        })?;
        Ok(errand)
    }

    /// Copies the command's output until it ends.
    fn attend(&self, instance: &Instance) -> Result<ExitCode> {
        let name = &instance.name;
        let before = std::mem::replace(&mut *lock(&self.stage), Stage::Running(name.clone()));
        if matches!(before, Stage::Unwanted) {
            end(&self.socket, name);
        }
        let start = Position { vid: instance.vid, next: 0 };
        let reading = Reading { name, follow: true, after: Some(start), dropped: 0 };
        let events = match Client::send(&self.socket, &reading.request()) {
            Err(error) if error.is_loss() => reading.again(&self.socket)?,
            answer => answer?,
        };
        reading.copy(&self.socket, events, |failure| {
            end(&self.socket, name);
            crate::end_with_the_reader();
            failure.with_remedy(&format!("`{name}` ends with it; use `--detach` to run it without a reader"))
        })
    }
}

/// The instance to end, if it runs by now.
fn interrupted(stage: &Mutex<Stage>) -> Option<String> {
    let mut stage = lock(stage);
    if let Stage::Running(name) = &*stage {
        return Some(name.clone());
    }
    *stage = Stage::Unwanted;
    eprintln!(
        "the instance ends as soon as its host has started it; press Ctrl-C again to return at once, then check with `transhume ps`"
    );
    None
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().expect("no thread panics while it holds the lock")
}

/// Ends the instance, as soon as its host can be reached. The connection that follows its output reports the end.
fn end(socket: &Path, name: &str) {
    const AGAIN: Duration = Duration::from_secs(1);
    let kill = Request::Kill { name: name.to_owned(), grace_s: None };
    let mut said = None;
    loop {
        match lasting::ask(socket, &kill, &format!("to end `{name}`; press Ctrl-C again to leave it running"))
        {
            Ok(Event::Failed(failure)) if said.as_ref() == Some(&failure) => {}
            Ok(Event::Failed(failure)) => {
                eprintln!("{}", Failure::from(failure.clone()));
                eprintln!("  trying again; press Ctrl-C again to leave `{name}` running");
                said = Some(failure);
            }
            Ok(_) => return,
            Err(failure) => return eprintln!("{failure}"),
        }
        thread::sleep(AGAIN);
    }
}

fn directory() -> Result<String> {
    let help = "change to an existing directory: the program starts in it on its host";
    let missing = |error| Failure::new(format!("the working directory does not exist: {error}"), help);
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
