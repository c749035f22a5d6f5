//! The closed loop: keeps a running cluster well placed, and moves nothing without need. It does no IO and reads no clock.
//!
//! ```text
//!   observation ──▶ triggers ──▶ planner ──▶ waves of moves ──▶ settling ──▶ check of the prediction
//!                      ▲                                                            │
//!                      └────────────────────────────────────────────────────────────┘
//! ```
//!
//! * [`Controller`]: one step of the loop. [`Settings`]: its bounds. [`Observation`]: the cluster at one moment.
//! * `trigger`: thresholds with hysteresis. `sustained`: traffic that lasts. `history`: cool-down and budget. `effect`: predicted and
//!   measured gains. `backoff`: when to plan again after no move has paid.
//! * [`next_wave`]: the moves of a plan that may begin now; whoever carries out a plan asks it before each wave.

mod backoff;
mod controller;
mod effect;
mod execution;
mod history;
mod observation;
mod settings;
mod sustained;
mod trigger;

pub use controller::{Controller, Decision, Memory, Status};
pub use effect::Effect;
pub use execution::{Blocked, next_wave};
pub use history::Moved;
pub use observation::{Leaving, Observation, Usage};
pub use settings::{Goal, Settings};
