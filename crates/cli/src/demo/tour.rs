//! The moves, with external measurements of each.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::{Client, Event, MoveReport, MoveRequest, Outcome, Request};
use probe::{Prober, Requester};

use super::measured::{MachineFigures, MeasuredMove, pause};
use super::plan::{HOME_HOST, Options, TRAVELLER};
use super::scene::{PATIENCE, Scene};
use super::traffic::Known;
use super::view::View;
use crate::failure::{Result, unexpected};
use crate::figures::phase_name;

/// Time before each move in which the traffic is shown.
const PAUSE: Duration = Duration::from_secs(2);

/// Moves the traveller around.
pub fn go_around(scene: &Scene, options: &Options, view: &View) -> Result<Vec<MeasuredMove>> {
    let mut seen = Vec::new();
    for stop in (0..options.rounds).flat_map(|_| options.stops()) {
        // This pause is for the viewer only.
        thread::sleep(PAUSE);
        seen.push(watch_move(scene, stop, view)?);
    }
    thread::sleep(PAUSE);
    Ok(seen)
}

fn watch_move(scene: &Scene, host: &str, view: &View) -> Result<MeasuredMove> {
    let (begin, begin_1970) = (Instant::now(), since_1970());
    view.say(&format!("moving `{TRAVELLER}` to {host}"));
    let report = make_move(scene, host, view)?;
    let (end, end_1970) = (Instant::now(), since_1970());
    let before = scene.traffic().known().rates.len();
    // The first rate after the move may average the second of the move.
    let speaks = |known: &Known| {
        known.intervals.iter().any(|interval| interval.at > end_1970 && interval.counts.operations > 0)
            && known.rates.iter().skip(before + 1).any(|rate| *rate > 0.0)
    };
    scene.traffic().wait_for("traffic after the move", end + PATIENCE, speaks)?;
    let gap = scene.prober.gaps().longest_within(begin, Instant::now());
    let probe_us = gap.map_or(0, |gap| microseconds(gap.duration()));
    let seen = MeasuredMove {
        machine: scene.requests().and_then(|requests| figures(requests, &scene.prober, &report, begin)),
        report,
        path: if host == HOME_HOST && scene.requests().is_none() { "shared memory" } else { "TCP stream" },
        probe_us,
        probe_lost: gap.map_or(0, |gap| gap.lost),
        workload_us: longest_gap(&scene.traffic().known(), begin_1970),
    };
    view.moved(host, &seen);
    Ok(seen)
}

/// The figures of a virtual machine whose move began at `begin` and has just ended.
fn figures(
    requests: &Requester,
    prober: &Prober,
    report: &MoveReport,
    begin: Instant,
) -> Option<MachineFigures> {
    let (stopped, released) = pause(report)?;
    let gap = prober.gaps().longest_within(begin + stopped, begin + released);
    let gap = gap.map_or(Duration::ZERO, |gap| gap.duration());
    Some(MachineFigures {
        pause_us: microseconds(released.saturating_sub(stopped)),
        gap_us: microseconds(gap.saturating_sub(released.saturating_sub(stopped))),
        request_us: microseconds(requests.slowest_within(begin, Instant::now())),
    })
}

fn make_move(scene: &Scene, host: &str, view: &View) -> Result<MoveReport> {
    let request = MoveRequest {
        name: TRAVELLER.into(),
        host: host.into(),
        dry_run: false,
        force: false,
        post_copy: false,
        within_s: None,
    };
    let mut events = Client::send(&scene.socket(), &Request::Move(request))?;
    loop {
        match events.next_event()? {
            Event::Phase { phase, .. } => view.phase(phase_name(phase)),
            Event::Begun { .. }
            | Event::Copying(_)
            | Event::Fetching(_)
            | Event::Transferred { .. }
            | Event::Waiting { .. } => {}
            Event::Failed(failure) => return Err(failure.into()),
            Event::Moved(report) => match report.outcome {
                Outcome::Moved | Outcome::Saved | Outcome::Restored => return Ok(*report),
                Outcome::RolledBack(failure) | Outcome::Ended(failure) => return Err(failure.into()),
            },
            event => return Err(unexpected(&event)),
        }
    }
}

/// The longest gap in the intervals that end after `begin`, in microseconds.
fn longest_gap(known: &Known, begin: f64) -> u64 {
    let since = known.intervals.iter().filter(|interval| interval.at >= begin);
    since.map(|interval| interval.gap_micros).max().unwrap_or_default()
}

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
