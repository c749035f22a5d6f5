//! The scene with programs: the clients travel, and the servers stay.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use api::{Client, Event, Request, RunRequest};
use fabric::FabricId;
use lab::Place;
use lab::network::namespace_file;
use probe::Prober;

use super::{CHECK_PORT, ECHO_PORT, PATIENCE, Stage, beside, quoted, socket_address};
use crate::demo::plan::{HOME, HOME_HOST, Options, START_HOST, TRAVELLER};
use crate::demo::traffic::{End, GAVE_UP, WRITE_ENDED};
use crate::demo::view::View;
use crate::failure::{Result, unexpected};
use crate::library;

/// Running time of verbs-check per round: three moves, and the pauses between them.
const SECONDS_PER_ROUND: u64 = 18;

/// Additional running time.
const SECONDS_AROUND: u64 = 6;

/// Starts both instances, and returns when traffic flows, with the time at which it ends.
pub fn start(stage: &Stage, options: &Options, view: &View) -> Result<(Prober, Instant)> {
    let socket = stage.lab.layout().socket();
    let deadline = Instant::now() + PATIENCE;
    view.say(&format!("starting `{HOME}` on {HOME_HOST}: the servers of ib_write_bw and verbs-check"));
    let home = start_one(&socket, HOME, HOME_HOST, home_script()?)?;
    stage.follow(HOME, End::Home)?;
    stage.traffic.wait_for("the servers", deadline, |known| known.check_listens && known.write_listens)?;

    view.say(&format!("starting `{TRAVELLER}` on {START_HOST}: the clients"));
    let seconds = u64::from(options.rounds) * SECONDS_PER_ROUND + SECONDS_AROUND;
    let traveller = start_one(&socket, TRAVELLER, START_HOST, traveller_script(&home, seconds)?)?;
    let ends = Instant::now() + Duration::from_secs(seconds);
    stage.follow(TRAVELLER, End::Traveller)?;
    stage.await_traffic(deadline)?;
    let outside = namespace_file(&stage.lab.layout().namespace(Place::Coordinator));
    Ok((Prober::start(&outside, socket_address(&traveller)?)?, ends))
}

/// Waits for the verdicts of both verbs-check, which end by themselves.
pub fn finish(stage: &Stage, ends: Instant) -> Result<()> {
    let deadline = ends.max(Instant::now()) + PATIENCE;
    stage.traffic.wait_for("the verdicts of verbs-check", deadline, |known| known.verdicts.len() == 2)
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
fn start_one(socket: &Path, name: &str, host: &str, script: String) -> Result<String> {
    let request = RunRequest {
        group: None,
        labels: BTreeMap::new(),
        anti_affinity: BTreeSet::new(),
        affinity: BTreeSet::new(),
        demand: api::Demand::default(),
        cool_down_s: None,
        pin: false,
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
