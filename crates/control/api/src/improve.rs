//! Better placements of running instances.

use serde::{Deserialize, Serialize};

/// What a better placement is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// Processors and memory are used evenly.
    Balance,
    /// Instances that talk share a host.
    Traffic,
    /// As few hosts as possible have instances.
    Consolidate,
    /// This host has no instances.
    Evacuate(String),
}

/// A request for a better placement. Nothing moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImproveRequest {
    /// What is better.
    pub aim: Aim,
    /// The number of moves, if it is limited.
    pub max_moves: Option<u32>,
    /// The number of moves at the same time.
    pub parallel: u16,
    /// The time, in seconds, within which a move must pay for itself.
    pub horizon_s: u64,
    /// Instances that do not move.
    #[serde(default)]
    pub stay: Vec<String>,
}

/// The figures of a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFigures {
    /// Bytes a second between instances on different hosts.
    pub traffic: u64,
    /// Thousandths of processors that instances need beyond what their hosts have.
    pub overload_milli: u64,
    /// The difference between the most and the least used host, in thousandths of its processors.
    pub spread_permille: u64,
    /// Hosts with instances.
    pub hosts: usize,
}

/// One move to a better placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImprovementStep {
    /// The instance.
    pub name: String,
    /// Its host before.
    pub from: String,
    /// Its host afterwards.
    pub to: String,
    /// The bytes that the move copies.
    pub copied_bytes: u64,
    /// The figures when this move and all before it are done.
    pub after: PlacementFigures,
    /// It only makes room, and moves again in a later wave.
    pub is_detour: bool,
}

/// An instance, and why it stays where it is or what is not known about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stays {
    /// The instance.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// Moves to a better placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Improvement {
    /// The figures now.
    pub before: PlacementFigures,
    /// The figures when all moves are done.
    pub after: PlacementFigures,
    /// The moves in waves: those of one wave may run at the same time. Without any, no move pays.
    pub waves: Vec<Vec<ImprovementStep>>,
    /// Instances that stay where they are for a reason of their own, and those that no order of moves brings to a better host.
    pub stay: Vec<Stays>,
    /// Instances whose demand of a latency cannot be judged when all moves are done, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unjudged: Vec<Stays>,
}

/// What has become of a plan that was carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    /// How many moves were made.
    pub moved: u32,
    /// Instances that did not move, with the reasons.
    pub failed: Vec<Stays>,
    /// Why the plan was given up, if it was.
    pub given_up: Option<String>,
}
