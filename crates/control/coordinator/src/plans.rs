//! The plan that is being carried out, and the result of the last one.

use api::{Event, ImproveRequest, PlanReport, Stays};
use fabric::Vid;
use moves::HostName;
use planner::{Score, Step};
use serde::{Deserialize, Serialize};
use store::{Change, Value};
use tokio::sync::mpsc;

use crate::core::Feature;
use crate::follow::Events;

/// A plan that is being carried out. The places of the instances tell how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its number.
    pub number: u64,
    /// What it was asked for. Instances whose moves have failed are among those that stay.
    pub request: ImproveRequest,
    /// Whether the loop has planned it.
    pub by_loop: bool,
    /// How often it was planned anew.
    pub times: u32,
    steps: Vec<Vec<Kept>>,
}

/// What is stored of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    vid: Vid,
    from: HostName,
    to: HostName,
    is_detour: bool,
}

impl Plan {
    /// A plan that has not begun.
    pub fn new(request: ImproveRequest, by_loop: bool, waves: &[Vec<Step>]) -> Self {
        Self { number: 0, request, by_loop, times: 0, steps: kept(waves) }
    }

    /// The rest of it, planned anew.
    pub fn replace(&mut self, waves: &[Vec<Step>]) {
        (self.steps, self.times) = (kept(waves), self.times + 1);
    }

    /// Its moves.
    pub fn waves(&self) -> Vec<Vec<Step>> {
        let step = |Kept { vid, from, to, is_detour }: &Kept| Step {
            vid: *vid,
            from: from.clone(),
            to: to.clone(),
            copied: 0,
            after: Score::default(),
            is_detour: *is_detour,
        };
        self.steps.iter().map(|wave| wave.iter().map(step).collect()).collect()
    }

    /// The number of its moves.
    pub fn moves(&self) -> u32 {
        self.steps.iter().flatten().count() as u32
    }

    /// Whether it moves the instance.
    pub fn has(&self, vid: Vid) -> bool {
        self.steps.iter().flatten().any(|step| step.vid == vid)
    }

    /// The hosts of its moves.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.steps.iter().flatten().flat_map(|step| [&step.from, &step.to])
    }
}

fn kept(waves: &[Vec<Step>]) -> Vec<Vec<Kept>> {
    let kept = |step: &Step| Kept {
        vid: step.vid,
        from: step.from.clone(),
        to: step.to.clone(),
        is_detour: step.is_detour,
    };
    waves.iter().map(|wave| wave.iter().map(kept).collect()).collect()
}

/// What the store has of plans.
#[derive(Debug, Serialize, Deserialize)]
pub enum Stored {
    /// One is being carried out.
    UnderWay(Plan),
    /// The last one is over.
    Over {
        /// Its number.
        number: u64,
        /// What has become of it.
        report: PlanReport,
    },
}

impl Stored {
    /// The change that stores it.
    pub fn change(&self) -> Change {
        Change::Plan(Value::of(self))
    }
}

/// The plan that is being carried out, and the result of the last one.
#[derive(Default)]
pub struct Plans {
    plan: Option<Plan>,
    last: Option<(u64, PlanReport)>,
    progress: PlanReport,
    is_cancelled: bool,
    watchers: Vec<mpsc::UnboundedSender<Event>>,
    /// Instances of plans of the loop that did not move, until the loop takes them.
    failed: Vec<Vid>,
}

impl Feature for Plans {}

impl Plans {
    /// Loads what is stored.
    pub fn load(stored: Option<Stored>) -> Self {
        match stored {
            None => Self::default(),
            Some(Stored::UnderWay(plan)) => Self { plan: Some(plan), ..Self::default() },
            Some(Stored::Over { number, report }) => Self { last: Some((number, report)), ..Self::default() },
        }
    }

    /// The plan that is being carried out, if one is.
    pub fn under_way(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The number of the next plan.
    pub fn next_number(&self) -> u64 {
        let last = self.last.as_ref().map_or(0, |(number, _)| *number);
        self.plan.as_ref().map_or(last, |plan| plan.number) + 1
    }

    /// Begins a plan. Returns its events.
    pub fn begin(&mut self, plan: Plan) -> Events {
        (self.plan, self.progress, self.is_cancelled) = (Some(plan), PlanReport::default(), false);
        self.listen()
    }

    /// Replaces the rest of the plan.
    pub fn replace(&mut self, plan: Plan) {
        self.plan = Some(plan);
    }

    /// The events from now on.
    pub fn listen(&mut self) -> Events {
        let (user, events) = mpsc::unbounded_channel();
        self.watchers.push(user);
        events
    }

    /// The result of the plan with this number, if it is known.
    pub fn result(&self, number: u64) -> Option<&PlanReport> {
        self.last.as_ref().filter(|(of, _)| *of == number).map(|(_, report)| report)
    }

    /// Tells an event to all who follow the plan.
    pub fn tell(&mut self, event: &Event) {
        self.watchers.retain(|user| user.send(event.clone()).is_ok());
    }

    /// An instance has moved.
    pub fn note_move(&mut self) {
        self.progress.moved += 1;
    }

    /// An instance did not move.
    pub fn note_failure(&mut self, vid: Vid, stays: Stays) {
        if self.plan.as_ref().is_some_and(|plan| plan.by_loop) {
            self.failed.push(vid);
        }
        self.progress.failed.push(stays);
    }

    /// Instances of plans of the loop that did not move since the last call.
    pub fn take_failed(&mut self) -> Vec<Vid> {
        std::mem::take(&mut self.failed)
    }

    /// No more moves of the plan may begin. Returns whether there is one.
    pub fn cancel(&mut self) -> bool {
        self.is_cancelled |= self.plan.is_some();
        self.plan.is_some()
    }

    /// Whether the plan was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// What has become of the plan until now.
    pub fn progress(&self) -> &PlanReport {
        &self.progress
    }

    /// The plan is over.
    pub fn end(&mut self, number: u64, report: PlanReport) {
        self.plan = None;
        self.tell(&Event::Applied(report.clone()));
        self.watchers.clear();
        self.last = Some((number, report));
    }
}
