//! The bounds of the loop.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a better placement is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// Instances that talk share a host, as far as their hosts are not overloaded.
    #[default]
    Traffic,
    /// Processors and memory are used evenly.
    Balance,
}

impl Goal {
    /// The planner's name for it.
    #[must_use]
    pub fn aim(self) -> planner::Aim {
        match self {
            Self::Traffic => planner::Aim::Traffic,
            Self::Balance => planner::Aim::Balance,
        }
    }
}

/// The bounds of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What is better.
    pub goal: Goal,
    /// The number of planned moves in an hour.
    pub budget: u32,
    /// The number of moves, and of drains, at the same time.
    pub at_once: u16,
    /// How long a load must last before anything moves.
    pub hold: Duration,
    /// How long an instance that has moved stays.
    pub cool_down: Duration,
    /// The time within which a move must pay for itself.
    pub horizon: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            goal: Goal::default(),
            budget: 20,
            at_once: 4,
            hold: Duration::from_secs(300),
            cool_down: Duration::from_secs(3600),
            horizon: Duration::from_secs(600),
        }
    }
}
