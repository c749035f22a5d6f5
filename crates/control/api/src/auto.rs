//! The loop that plans a running cluster by itself.

use serde::{Deserialize, Serialize};

/// What the loop makes better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoGoal {
    /// Instances that talk share a host.
    #[default]
    Traffic,
    /// Processors and memory are used evenly.
    Balance,
}

/// The bounds of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoSettings {
    /// What is better.
    pub goal: AutoGoal,
    /// The number of planned moves in an hour.
    pub budget: u32,
    /// The number of moves at the same time.
    pub parallel: u16,
    /// How long a load must last before anything moves, in seconds.
    pub hold_s: u64,
    /// How long an instance that has moved stays, in seconds.
    pub cool_down_s: u64,
    /// The time, in seconds, within which a move must pay for itself.
    pub horizon_s: u64,
}

/// A request about the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoRequest {
    /// Starts it, or starts it anew with these bounds.
    On(AutoSettings),
    /// Ends it. Moves that are under way are completed.
    Off,
    /// Reads its state.
    Status,
}

/// Whether the loop runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoState {
    /// It was not switched on, or was switched off.
    #[default]
    Off,
    /// It runs.
    On,
    /// It has stopped itself, because its moves did not help.
    Stopped,
}

/// What a plan has gained, in bytes a second: traffic that crosses no more, and overload as traffic of the same cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoEffect {
    /// As predicted.
    pub predicted: u64,
    /// As measured afterwards.
    pub measured: u64,
}

/// The state of the loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoStatus {
    /// Whether it runs.
    pub state: AutoState,
    /// Its bounds, if it was ever switched on.
    pub settings: Option<AutoSettings>,
    /// What it does, and why it does not do more.
    pub why: String,
    /// Loads that are too high and have lasted, in words.
    pub causes: Vec<String>,
    /// The planned moves of the last hour.
    pub moves_in_hour: u32,
    /// The effect of the last plan that was measured.
    pub effect: Option<AutoEffect>,
    /// How many plans in a row have gained less than half of what was predicted.
    pub misses: u32,
}
