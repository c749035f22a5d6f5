//! Move events for users: the phases as they begin, and the final report.

use std::time::Duration;

use api::{
    Copying, EnginePart, Errand, Event, Failure, Fetching, MoveReport, NetworkPart, Outage, Outcome, Phase,
    PhaseTime,
};
use fabric::Vid;
use moves::journal::{MoveRecord, Snapshot, Stage};
use moves::progress::{self, Event as Progress};
use moves::{HostName, Side};
use rpc::wire::Measurement;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::failure::from_reason;

/// The shortest interval between two waiting messages to a user.
const SAID_AGAIN: Duration = Duration::from_secs(4);

fn errand_of(record: &MoveRecord) -> Errand {
    match (&record.source, &record.destination) {
        (Side::Host(_), Side::Host(_)) => Errand::Move,
        (_, Side::Images(_)) => Errand::Save,
        (Side::Images(_), _) => Errand::Restore,
    }
}

/// The outcome of a successful move.
fn done(errand: Errand) -> Outcome {
    match errand {
        Errand::Move => Outcome::Moved,
        Errand::Save => Outcome::Saved,
        Errand::Restore => Outcome::Restored,
    }
}

/// The event stream of a move's user.
pub type Events = mpsc::UnboundedReceiver<Event>;

/// The users of a move, and the report in progress.
pub struct Follow {
    /// Empty until a user reconnects, if the coordinator was restarted.
    events: Vec<mpsc::UnboundedSender<Event>>,
    vid: Vid,
    dry_run: bool,
    /// A blocker that only the coordinator knows.
    obstacle: Option<Failure>,
    /// The instance has ended, or ends as soon as the move is over.
    ends: bool,
    began: Instant,
    report: MoveReport,
    /// The dump has ended; the rest of the phase is the transfer.
    dumped: bool,
    /// The parts of a virtual machine's outage: the source's and the destination's.
    outages: Vec<Outage>,
    /// How long the source waited for other dumps before it suspended the instance.
    waited_us: Option<u64>,
    commit: Duration,
    phase: progress::Phase,
    waiting_said: Option<Instant>,
}

impl Follow {
    /// Follows the recorded move of the instance `name`; no user listens yet.
    pub fn new(name: &str, record: &MoveRecord) -> Self {
        let phase = match record.stage {
            Stage::Began => progress::Phase::Prepare,
            Stage::Committed | Stage::Saved => progress::Phase::Resume,
            Stage::Confirmed => progress::Phase::Destroy,
            Stage::RolledBack { .. } => progress::Phase::RollBack,
        };
        Self {
            events: Vec::new(),
            vid: record.vid,
            dry_run: record.dry_run,
            obstacle: None,
            ends: false,
            began: Instant::now(),
            report: report(name, record),
            dumped: false,
            outages: Vec::new(),
            waited_us: None,
            commit: Duration::ZERO,
            phase,
            waiting_said: None,
        }
    }

    /// Follows a move that a previous coordinator has begun, for users who may reconnect.
    pub fn again(image: &Snapshot, record: &MoveRecord) -> Option<Self> {
        let name = &image.instances.get(&record.vid)?.name;
        let mut follow = Self::new(name, record);
        follow.report.restarted = true;
        (record.stage != Stage::Confirmed).then_some(follow)
    }

    /// The report of the move so far; `None` for a dry run.
    pub fn report(&self) -> Option<&MoveReport> {
        (!self.dry_run).then_some(&self.report)
    }

    /// A stream of the events from now on.
    pub fn listen(&mut self) -> Events {
        let (sender, events) = mpsc::unbounded_channel();
        self.events.push(sender);
        events
    }

    /// Adds a blocker to a dry run, beside those that the hosts find.
    pub fn hinder(&mut self, obstacle: Failure) {
        self.obstacle = Some(obstacle);
    }

    /// Marks the move as ending with its instance, if it is a move of `vid`.
    pub fn ends(&mut self, vid: Vid) {
        self.ends |= self.vid == vid;
    }

    /// Adds a node's measurement.
    pub fn measured(&mut self, measurement: Measurement) {
        let MoveReport { network, engine, .. } = &mut self.report;
        match measurement {
            Measurement::Turn { waited_us } => self.waited_us = Some(waited_us),
            Measurement::Suspended { slowest_us, round_us, processes, queue_pairs, memory_regions } => {
                (network.suspend_us, network.suspend_round_us) = (slowest_us, round_us);
                network.processes = processes;
                network.queue_pairs = queue_pairs;
                network.memory_regions = memory_regions;
            }
            Measurement::Precopying { memory, sent, look, left_us } => {
                let (memory_bytes, sent_bytes) = (memory, sent);
                self.say(Event::Copying(Copying { memory_bytes, sent_bytes, look, left_us }));
            }
            Measurement::Precopied { bytes } => engine.precopied_bytes = bytes,
            Measurement::Dumped { dump_us } => {
                engine.dump_us = dump_us;
                self.dumped = true;
            }
            Measurement::Sent { transfer_us, bytes } => {
                (engine.transfer_us, engine.image_bytes) = (transfer_us, bytes);
            }
            Measurement::Fetched { demanded, pushed } => {
                (engine.demanded_bytes, engine.pushed_bytes) = (demanded, pushed);
            }
            Measurement::Restored { restore_us } => engine.restore_us = restore_us,
            Measurement::Outage { processors_us, link_us } => {
                self.outages.push(Outage { processors_us, link_us });
            }
            Measurement::Resumed { release_us, slowest_us, round_us } => {
                engine.release_us = release_us;
                (network.resume_us, network.resume_round_us) = (slowest_us, round_us);
            }
        }
    }

    /// Records how long writing the commit took.
    pub fn committed(&mut self, took: Duration) {
        self.commit = took;
        self.report.epoch = self.report.epoch.next();
        let at = self.began.elapsed().saturating_sub(took);
        self.say(Event::Phase { phase: Phase::Commit, at_us: micros(at) });
    }

    /// Passes an event on to the users; returns `true` if it was the last.
    pub fn tell(&mut self, event: Progress) -> bool {
        match event {
            Progress::Phase { phase, at } => {
                self.phase = phase;
                // In the protocol, the commit is part of another phase.
                let at = if phase == progress::Phase::Resume { at + self.commit } else { at };
                self.say(Event::Phase { phase: phase_of(phase), at_us: micros(at) });
            }
            // For these phases the nodes' measurements are more precise.
            Progress::Progress { .. } if self.phase == progress::Phase::Precopy => {}
            Progress::Progress { bytes, total } if self.phase == progress::Phase::Fetch => {
                self.say(Event::Fetching(Fetching {
                    fetched_bytes: bytes,
                    missing_bytes: total.saturating_sub(bytes),
                }));
            }
            Progress::Progress { bytes, total } => {
                self.say(Event::Transferred { bytes, total: Some(total) });
            }
            Progress::Trouble { host, reason } => {
                tracing::warn!("{host}: {reason}");
                self.waits(&host, from_reason(&reason).message);
            }
            Progress::Waiting { host, silence } => self.waits(&host, silence.to_string()),
            Progress::Suspended(_) | Progress::Cleaned => {}
            Progress::Ended { outcome, phases } => {
                let last = self.ended(outcome, &phases);
                self.say(last);
                return true;
            }
        }
        false
    }

    /// Sends a waiting message to the user, at most once per interval.
    fn waits(&mut self, host: &HostName, why: String) {
        if self.waiting_said.is_none_or(|said| said.elapsed() >= SAID_AGAIN) {
            self.waiting_said = Some(Instant::now());
            let host = host.to_string();
            self.say(Event::Waiting { host, why, outlook: self.outlook() });
        }
    }

    /// What will happen to a waiting move.
    fn outlook(&self) -> String {
        let MoveReport { name, from, to, .. } = &self.report;
        let then = if self.ends { "is ended" } else { "resumes" };
        match self.report.errand {
            Errand::Move => {}
            Errand::Save if self.phase == progress::Phase::Resume => {
                return format!("{name} is saved and {then} on {from} as soon as {from} answers");
            }
            Errand::Save => return format!("if this persists, nothing is saved and {name} {then} on {from}"),
            Errand::Restore if self.phase == progress::Phase::Resume => {
                return format!(
                    "all instances are restored, and {name} {then} on {to} as soon as {to} answers"
                );
            }
            Errand::Restore => return "if this persists, nothing is restored".into(),
        }
        match self.phase {
            progress::Phase::Prepare | progress::Phase::Precopy => format!("{name} runs on {from} meanwhile"),
            progress::Phase::Suspend | progress::Phase::Transfer | progress::Phase::Restore => {
                format!("if this persists, the move is rolled back and {name} {then} on {from}")
            }
            progress::Phase::Resume | progress::Phase::Destroy => {
                format!("the move is committed, and {name} {then} on {to} as soon as {to} answers")
            }
            progress::Phase::Fetch => {
                format!(
                    "{name} runs on {to}; threads that touch memory that is still on {from} wait for {from} to answer"
                )
            }
            progress::Phase::RollBack => {
                format!("the move is rolled back, and {name} {then} on {from} as soon as {from} answers")
            }
        }
    }

    fn ended(&mut self, outcome: progress::Outcome, phases: &[(progress::Phase, Duration)]) -> Event {
        match outcome {
            progress::Outcome::Feasible => return self.checked(Vec::new()),
            progress::Outcome::Hindered { reasons } => return self.checked(obstacles(&reasons)),
            progress::Outcome::Moved | progress::Outcome::Saved => {
                self.report.outcome = done(self.report.errand)
            }
            progress::Outcome::Bereft { reason } => {
                self.report.outcome = Outcome::Ended(Failure::new(reason, "start it again"));
            }
            // A member that is not restored has ended by that alone.
            progress::Outcome::RolledBack { reasons }
                if self.ends && self.report.errand != Errand::Restore =>
            {
                // A remedy for the move is of no use to a user who has ended the instance.
                let why = all_in_one(&obstacles(&reasons)).message;
                self.report.outcome = Outcome::Ended(Failure::new(why, ""));
            }
            progress::Outcome::RolledBack { reasons } => {
                self.report.outcome = rolled_back(&reasons);
            }
        }
        self.report.phases = self.phases(phases);
        self.report.total_us = micros(self.began.elapsed());
        self.report.blackout_us = blackout_us(&self.report.phases);
        self.report.outage = outage(&self.outages, &self.report.phases);
        Event::Moved(Box::new(self.report.clone()))
    }

    fn checked(&mut self, found: Vec<Failure>) -> Event {
        Event::Checked { obstacles: self.obstacle.take().into_iter().chain(found).collect() }
    }

    /// The phases, split into their separately measured parts.
    fn phases(&self, phases: &[(progress::Phase, Duration)]) -> Vec<PhaseTime> {
        let mut times = Vec::new();
        let mut at_us = 0;
        let mut push = |phase, elapsed_us| {
            match times.last_mut() {
                Some(PhaseTime { phase: last, elapsed_us: so_far, .. }) if *last == phase => {
                    *so_far += elapsed_us;
                }
                _ => times.push(PhaseTime { phase, at_us, elapsed_us }),
            }
            at_us += elapsed_us;
        };
        let is_copied = phases.iter().any(|(phase, _)| *phase == progress::Phase::Precopy);
        let before_suspend = if is_copied { Phase::Precopy } else { Phase::Prepare };
        // A completed transfer implies that the wait for other dumps is over, even if that message was lost.
        let is_suspended = phases.iter().any(|(phase, _)| *phase == progress::Phase::Transfer);
        let waited_us = self.waited_us.or(is_suspended.then_some(0));
        for (phase, elapsed) in phases {
            let whole = micros(*elapsed);
            let (first, elapsed, then) = match phase {
                progress::Phase::Transfer if self.dumped => {
                    (Phase::Dump, self.report.engine.dump_us.min(whole), Phase::Transfer)
                }
                // The instance ran during this wait.
                progress::Phase::Suspend => match waited_us {
                    Some(waited_us) => (before_suspend, waited_us.min(whole), Phase::Suspend),
                    None => {
                        push(before_suspend, whole);
                        continue;
                    }
                },
                progress::Phase::Resume => (Phase::Commit, micros(self.commit).min(whole), Phase::Resume),
                _ => {
                    push(phase_of(*phase), whole);
                    continue;
                }
            };
            push(first, elapsed);
            push(then, whole - elapsed);
        }
        times
    }

    /// Sends an event to the users. A disconnected user does not end the move.
    fn say(&mut self, event: Event) {
        self.events.retain(|user| user.send(event.clone()).is_ok());
    }
}

/// The outage, if both hosts have measured their parts: those, and the phases between them. The clocks of two hosts differ.
fn outage(parts: &[Outage], phases: &[PhaseTime]) -> Option<Outage> {
    let [source, destination] = parts else { return None };
    let is_between =
        |time: &&PhaseTime| matches!(time.phase, Phase::Transfer | Phase::Restore | Phase::Commit);
    let between: u64 = phases.iter().filter(is_between).map(|time| time.elapsed_us).sum();
    Some(Outage {
        processors_us: source.processors_us + between + destination.processors_us,
        link_us: source.link_us + between + destination.link_us,
    })
}

/// A report with only the contents of the move's record.
pub fn report(name: &str, record: &MoveRecord) -> MoveReport {
    let errand = errand_of(record);
    let done = done(errand);
    let (epoch, outcome) = match &record.stage {
        Stage::Began | Stage::Saved => (record.epoch, done),
        Stage::Committed | Stage::Confirmed => (record.epoch.next(), done),
        Stage::RolledBack { reasons } => (record.epoch, rolled_back(reasons)),
    };
    MoveReport {
        name: name.into(),
        errand,
        from: record.source.to_string(),
        to: record.destination.to_string(),
        epoch,
        outcome,
        restarted: false,
        total_us: 0,
        blackout_us: 0,
        phases: Vec::new(),
        network: NetworkPart::default(),
        engine: EnginePart::default(),
        outage: None,
    }
}

fn rolled_back(reasons: &[String]) -> Outcome {
    Outcome::RolledBack(all_in_one(&obstacles(reasons)))
}

fn obstacles(reasons: &[String]) -> Vec<Failure> {
    reasons.iter().map(|reason| from_reason(reason)).collect()
}

/// The phase as users see it. The protocol's transfer phase begins with the dump.
fn phase_of(phase: progress::Phase) -> Phase {
    match phase {
        progress::Phase::Prepare => Phase::Prepare,
        progress::Phase::Precopy => Phase::Precopy,
        progress::Phase::Suspend => Phase::Suspend,
        progress::Phase::Transfer => Phase::Dump,
        progress::Phase::Restore => Phase::Restore,
        progress::Phase::Resume => Phase::Resume,
        progress::Phase::Fetch => Phase::Fetch,
        progress::Phase::Destroy => Phase::Destroy,
        progress::Phase::RollBack => Phase::RollBack,
    }
}

/// The blackout: zero if nothing was suspended.
fn blackout_us(phases: &[PhaseTime]) -> u64 {
    if phases.iter().all(|time| time.phase != Phase::Suspend) {
        return 0;
    }
    phases.iter().filter(|time| is_blackout(time.phase)).map(|time| time.elapsed_us).sum()
}

fn is_blackout(phase: Phase) -> bool {
    !matches!(phase, Phase::Prepare | Phase::Precopy | Phase::Fetch | Phase::Destroy)
}

fn all_in_one(reasons: &[Failure]) -> Failure {
    let join = |part: fn(&Failure) -> &str| {
        let mut said = Vec::new();
        for words in reasons.iter().map(part) {
            if !said.contains(&words) {
                said.push(words);
            }
        }
        said.join("; ")
    };
    Failure::new(join(|reason| &reason.message), join(|reason| &reason.remedy))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fabric::{Epoch, FabricId};
    use moves::journal::Instance;
    use moves::placement::Placement;

    use super::*;

    fn record(stage: Stage) -> MoveRecord {
        let host = |name| HostName::new(name).unwrap();
        let (source, destination) = (host("h1").into(), host("h2").into());
        let vid = Vid::new(1).unwrap();
        let (dry_run, post_copy) = (false, false);
        MoveRecord { vid, source, destination, epoch: Epoch(2), dry_run, post_copy, stage }
    }

    #[test]
    fn a_move_in_progress_can_be_followed_after_a_restart() {
        let instance = Instance {
            name: "a".into(),
            fabric: FabricId(1),
            group: None,
            placement: Placement::default(),
            host: HostName::new("h2").unwrap(),
            epoch: Epoch(3),
            spec: Vec::new(),
        };
        let instances = BTreeMap::from([(Vid::new(1).unwrap(), instance)]);
        let image = Snapshot { instances, ..Snapshot::default() };
        assert!(Follow::again(&image, &record(Stage::Confirmed)).is_none());
        let mut follow = Follow::again(&image, &record(Stage::Committed)).unwrap();
        let mut heard = follow.listen();
        assert!(follow.tell(Progress::Ended { outcome: progress::Outcome::Moved, phases: Vec::new() }));
        let Ok(Event::Moved(report)) = heard.try_recv() else { panic!("no report") };
        assert!(report.restarted);
        assert_eq!((report.name.as_str(), report.epoch), ("a", Epoch(3)));
    }

    #[test]
    fn silent_hosts_are_reported_repeatedly_with_the_outlook_of_the_move() {
        let mut follow = Follow::new("a", &record(Stage::Began));
        let mut heard = follow.listen();
        let (host, silence) = (HostName::new("h1").unwrap(), progress::Silence::NotConnected);
        follow.tell(Progress::Phase { phase: progress::Phase::RollBack, at: Duration::ZERO });
        heard.try_recv().unwrap();
        follow.tell(Progress::Waiting { host: host.clone(), silence });
        follow.tell(Progress::Trouble { host, reason: "no\ntry".into() });
        let expected = Event::Waiting {
            host: "h1".into(),
            why: "its node is not connected to the coordinator".into(),
            outlook: "the move is rolled back, and a resumes on h1 as soon as h1 answers".into(),
        };
        assert_eq!(heard.try_recv().unwrap(), expected);
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn the_progress_of_a_pre_copy_reports_its_measurements() {
        let mut follow = Follow::new("a", &record(Stage::Began));
        let mut heard = follow.listen();
        follow.tell(Progress::Phase { phase: progress::Phase::Precopy, at: Duration::ZERO });
        heard.try_recv().unwrap();
        follow.measured(Measurement::Precopying { memory: 9, sent: 7, look: 2, left_us: Some(5) });
        follow.tell(Progress::Progress { bytes: 7, total: 7 });
        let copying = Copying { memory_bytes: 9, sent_bytes: 7, look: 2, left_us: Some(5) };
        assert_eq!(heard.try_recv().unwrap(), Event::Copying(copying));
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn the_report_splits_the_phases_and_sums_the_blackout() {
        let mut follow = Follow::new("a", &record(Stage::Began));
        let mut heard = follow.listen();
        follow.measured(Measurement::Dumped { dump_us: 30 });
        follow.measured(Measurement::Sent { transfer_us: 10, bytes: 7 });
        follow.measured(Measurement::Outage { processors_us: 20, link_us: 15 });
        follow.measured(Measurement::Outage { processors_us: 2, link_us: 1 });
        follow.committed(Duration::from_micros(4));
        let phases = [
            (progress::Phase::Prepare, Duration::from_micros(100)),
            (progress::Phase::Precopy, Duration::from_micros(900)),
            (progress::Phase::Suspend, Duration::from_micros(5)),
            (progress::Phase::Transfer, Duration::from_micros(40)),
            (progress::Phase::Resume, Duration::from_micros(6)),
        ];
        let ended = Progress::Ended { outcome: progress::Outcome::Moved, phases: phases.to_vec() };
        assert!(follow.tell(ended));
        assert!(matches!(heard.try_recv(), Ok(Event::Phase { phase: Phase::Commit, .. })));
        let Ok(Event::Moved(report)) = heard.try_recv() else { panic!("no report") };
        let split: Vec<_> = report.phases.iter().map(|time| (time.phase, time.elapsed_us)).collect();
        let expected = [
            (Phase::Prepare, 100),
            (Phase::Precopy, 900),
            (Phase::Suspend, 5),
            (Phase::Dump, 30),
            (Phase::Transfer, 10),
            (Phase::Commit, 4),
            (Phase::Resume, 2),
        ];
        assert_eq!(split, expected);
        assert_eq!((report.blackout_us, report.epoch), (51, Epoch(3)));
        assert_eq!(report.outage, Some(Outage { processors_us: 36, link_us: 30 }));
    }

    #[test]
    fn a_failed_attempt_has_a_time_of_its_own() {
        let split = |measured: Option<Measurement>| {
            let mut follow = Follow::new("a", &record(Stage::Began));
            measured.into_iter().for_each(|measured| follow.measured(measured));
            let phases = follow.phases(&[(progress::Phase::Transfer, Duration::from_micros(40))]);
            phases.into_iter().map(|time| (time.phase, time.elapsed_us)).collect::<Vec<_>>()
        };
        assert_eq!(split(None), [(Phase::Dump, 40)], "the dump");
        let dumped = Measurement::Dumped { dump_us: 30 };
        assert_eq!(split(Some(dumped)), [(Phase::Dump, 30), (Phase::Transfer, 10)], "the transfer");
    }

    #[test]
    fn the_wait_for_other_dumps_is_no_blackout() {
        let mut follow = Follow::new("a", &record(Stage::Began));
        follow.measured(Measurement::Turn { waited_us: 30 });
        let prepare = (progress::Phase::Prepare, Duration::from_micros(100));
        let precopy = (progress::Phase::Precopy, Duration::from_micros(20));
        let suspend = (progress::Phase::Suspend, Duration::from_micros(35));
        let split = |phases: &[_]| {
            let phases = follow.phases(phases);
            assert_eq!(blackout_us(&phases), 5);
            phases.iter().map(|time| (time.phase, time.at_us, time.elapsed_us)).collect::<Vec<_>>()
        };
        assert_eq!(split(&[prepare, suspend]), [(Phase::Prepare, 0, 130), (Phase::Suspend, 130, 5)]);
        let copied = [(Phase::Prepare, 0, 100), (Phase::Precopy, 100, 50), (Phase::Suspend, 150, 5)];
        assert_eq!(split(&[prepare, precopy, suspend]), copied);
    }

    #[test]
    fn a_move_whose_turn_never_came_has_no_blackout() {
        let follow = Follow::new("a", &record(Stage::Began));
        let phases = [
            (progress::Phase::Prepare, Duration::from_micros(100)),
            (progress::Phase::Suspend, Duration::from_micros(3000)),
            (progress::Phase::RollBack, Duration::from_micros(7)),
        ];
        let phases = follow.phases(&phases);
        assert_eq!(blackout_us(&phases), 0);
        let split: Vec<_> = phases.iter().map(|time| (time.phase, time.elapsed_us)).collect();
        assert_eq!(split, [(Phase::Prepare, 3100), (Phase::RollBack, 7)]);
    }

    #[test]
    fn a_move_that_suspended_nothing_has_no_blackout() {
        let mut follow = Follow::new("a", &record(Stage::Began));
        let mut heard = follow.listen();
        let phases = [
            (progress::Phase::Prepare, Duration::from_micros(100)),
            (progress::Phase::Precopy, Duration::from_micros(900)),
            (progress::Phase::RollBack, Duration::from_micros(30)),
        ];
        let outcome = progress::Outcome::RolledBack { reasons: vec!["no room".into()] };
        assert!(follow.tell(Progress::Ended { outcome, phases: phases.to_vec() }));
        let Ok(Event::Moved(report)) = heard.try_recv() else { panic!("no report") };
        assert_eq!((report.blackout_us, report.total_us > 0), (0, true));
    }

    #[test]
    fn a_remedy_that_several_blockers_share_is_printed_once() {
        let reason = |what| Failure::new(what, "close it");
        let all = all_in_one(&[reason("a is open"), reason("b is open")]);
        assert_eq!((&*all.message, &*all.remedy), ("a is open; b is open", "close it"));
    }
}
