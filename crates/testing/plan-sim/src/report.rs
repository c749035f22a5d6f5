//! The figures of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use controller::{Decision, Effect, Observation};
use planner::Score;
use serde::Serialize;

/// The time between two looks at the placement, in seconds.
const LOOK: u64 = 1800;

/// What has happened so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Planned moves that are over.
    pub moves: u64,
    /// Instances that drains have moved.
    pub drained: u64,
    /// Moves of drains that the destination has refused, since it had no room.
    pub refused: u64,
    /// Plans that were given up, since the load had changed.
    pub blocked: u64,
    /// Plans.
    pub plans: u64,
    /// Drains that were begun.
    pub drains: u64,
    /// Plans whose effect was measured, and how many of them have kept their promise.
    pub measured: [u64; 2],
    /// Why the controller has stopped itself, if it has.
    pub stopped: Option<String>,
    /// The longest step of the controller, in milliseconds of this machine.
    pub longest_step_ms: u128,
    /// Every half hour: KiB a second between hosts, thousandths of processors that are missing, and planned moves until then.
    pub course: Vec<[u64; 3]>,
}

impl Tally {
    /// Notes the state of the cluster.
    pub fn look(&mut self, now: Duration, seen: &Observation<'_>) {
        if now.as_secs().is_multiple_of(LOOK) {
            let score = Score::of(&seen.view, &seen.loads, &BTreeMap::new());
            self.course.push([score.traffic >> 10, score.overload, self.moves]);
        }
    }

    /// Notes decisions that have taken so long.
    pub fn decided(&mut self, decisions: &[Decision], took: Duration) {
        self.longest_step_ms = self.longest_step_ms.max(took.as_millis());
        for decision in decisions {
            match decision {
                Decision::Apply { .. } => self.plans += 1,
                Decision::Drain { .. } => self.drains += 1,
                Decision::Measured(effect) => self.measure(*effect),
                Decision::Stopped { reason } => self.stopped = Some(reason.clone()),
            }
        }
    }

    fn measure(&mut self, effect: Effect) {
        self.measured[0] += 1;
        self.measured[1] += u64::from(effect.is_kept());
    }

    /// The hours after which no more than 5 % of all planned moves followed.
    #[must_use]
    pub fn converged_after_h(&self) -> f64 {
        let most = self.moves - self.moves / 20;
        let index = self.course.iter().position(|[.., moves]| *moves >= most).unwrap_or(self.course.len());
        index as f64 * LOOK as f64 / 3600.0
    }
}
