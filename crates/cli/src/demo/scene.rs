//! The lab and the two instances, with their programs.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use api::{Client, Event, Request, RunRequest};
use fabric::FabricId;
use lab::network::namespace_file;
use lab::{Files, Lab, Place, Spec};
use probe::Prober;

use super::plan::{HOME, HOME_HOST, Options, START_HOST, TRAVELLER};
use super::traffic::{End, GAVE_UP, Traffic, Verdict, WRITE_ENDED};
use super::view::View;
use crate::failure::{Failure, Result, unexpected};
use crate::library;

/// How long programs may take to start, and to produce output after a move.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Running time of verbs-check per round: three moves, and the pauses between them.
const SECONDS_PER_ROUND: u64 = 18;

/// Additional running time.
const SECONDS_AROUND: u64 = 6;

const HOSTS: u16 = 3;
const CHECK_PORT: u16 = 18600;
const ECHO_PORT: u16 = 7790;

/// The demo's lab with its traffic.
pub struct Scene {
    /// The coordinator's socket.
    pub socket: PathBuf,
    /// The parsed output of the programs.
    pub traffic: Traffic,
    /// The external prober: from the coordinator's place to the traveller.
    pub prober: Prober,
    ends: Instant,
}

impl Scene {
    /// Creates the lab and starts all programs. Returns when traffic flows.
    pub fn set(options: &Options, view: &View) -> Result<Self> {
        let lab = Lab::up(&Spec {
            name: options.lab.clone(),
            hosts: HOSTS,
            program: env::current_exe()?,
            files: Files::own(),
        })?;
        let socket = lab.layout().socket();
        let traffic = Traffic::default();
        view.watch(&traffic);
        let deadline = Instant::now() + PATIENCE;

        view.say(&format!("starting `{HOME}` on {HOME_HOST}: the servers of ib_write_bw and verbs-check"));
        let home = start(&socket, HOME, HOME_HOST, home_script()?)?;
        follow(&socket, HOME, End::Home, &traffic)?;
        traffic.wait_for("the servers", deadline, |known| known.check_listens && known.write_listens)?;

        view.say(&format!("starting `{TRAVELLER}` on {START_HOST}: the clients"));
        let seconds = u64::from(options.rounds) * SECONDS_PER_ROUND + SECONDS_AROUND;
        let traveller = start(&socket, TRAVELLER, START_HOST, traveller_script(&home, seconds)?)?;
        let ends = Instant::now() + Duration::from_secs(seconds);
        follow(&socket, TRAVELLER, End::Traveller, &traffic)?;
        traffic.wait_for("traffic", deadline, |known| {
            !known.write_rates.is_empty()
                && known.intervals.iter().any(|interval| interval.counts.operations > 0)
        })?;
        let outside = namespace_file(&lab.layout().namespace(Place::Coordinator));
        let prober = Prober::start(&outside, socket_address(&traveller)?)?;
        Ok(Self { socket, traffic, prober, ends })
    }

    /// The verdicts of both verbs-check, after their end.
    pub fn finish(&self) -> Result<Vec<Verdict>> {
        let deadline = self.ends.max(Instant::now()) + PATIENCE;
        self.traffic.wait_for("the verdicts of verbs-check", deadline, |known| known.verdicts.len() == 2)?;
        Ok(self.traffic.known().verdicts.clone())
    }
}

/// verbs-check sleeps until a completion event arrives. With four busy-polling programs, the demo would measure the scheduling of a small
/// machine.
fn home_script() -> Result<String> {
    let check = quoted(&beside("verbs-check")?);
    Ok(format!(
        "{check} server --listen 0.0.0.0:{CHECK_PORT} --json --events & \
         while :; do stdbuf -oL ib_write_bw {WRITE}; sleep 0.1; done"
    ))
}

/// ib_write_bw from Debian aborts if it is preempted while it calibrates the clock, which it does for
/// each line of results. It is restarted for that reason only.
fn traveller_script(home: &str, seconds: u64) -> Result<String> {
    let (check, transhume) = (quoted(&beside("verbs-check")?), quoted(&env::current_exe()?));
    Ok(format!(
        r#"{transhume} echo --port {ECHO_PORT} &
        {check} client {home}:{CHECK_PORT} --qps 16 --events --seconds {seconds} --json --report-interval 0.25 &
        gave_up() {{
            reason=1
            while IFS= read -r line; do
                printf '%s\n' "$line"
                case $line in "{GAVE_UP}"*) reason=0 ;; esac
            done
            return $reason
        }}
        while stdbuf -oL ib_write_bw {WRITE} {home} 2>&1 | gave_up; do sleep 1; done
        echo '{WRITE_ENDED}'
        wait"#
    ))
}

/// Endless, with a line of results each second.
const WRITE: &str = "--run_infinitely -D 1";

/// Starts an instance that runs `script`, and returns its address.
fn start(socket: &Path, name: &str, host: &str, script: String) -> Result<String> {
    let request = RunRequest {
        group: None,
        labels: BTreeMap::new(),
        anti_affinity: BTreeSet::new(),
        cool_down_s: None,
        network: None,
        name: Some(name.into()),
        host: Some(host.into()),
        fabric: FabricId(1),
        command: vec!["/bin/sh".into(), "-c".into(), script],
        environment: library::add_to(
            vec![("PATH".into(), env::var("PATH").unwrap_or_default())],
            &library::folder()?,
        ),
        container: None,
        vm: None,
        directory: "/".into(),
        followed: false,
        stdin: false,
    };
    match Client::ask(socket, &Request::Run(request.into()))? {
        Event::Started(instance) => Ok(instance.address),
        Event::Failed(failure) => Err(failure.into()),
        event => Err(unexpected(&event)),
    }
}

fn follow(socket: &Path, name: &str, end: End, traffic: &Traffic) -> Result<()> {
    let events = Client::send(socket, &Request::Logs { name: name.into(), follow: true, after: None })?;
    let traffic = traffic.clone();
    thread::spawn(move || traffic.follow(end, events));
    Ok(())
}

fn socket_address(address: &str) -> Result<SocketAddr> {
    let address = address.parse().map_err(|_| Failure::new(format!("`{address}` is not an address"), ""))?;
    Ok(SocketAddr::new(address, ECHO_PORT))
}

/// A program of this project, in the same directory as this one.
fn beside(name: &str) -> Result<PathBuf> {
    let path = env::current_exe()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(format!("{} is missing", path.display()), "build it with `make build`"))
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
