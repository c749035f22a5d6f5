//! The protocol under faults, in virtual time.
//!
//! A [`World`](world::World) is a coordinator, some nodes with a model of their engines, and the
//! messages between them. It changes only by actions: deliver this message, finish that
//! operation, crash here. Two drivers choose the actions: [`run_seed`] at random, with all faults
//! at rates drawn from the seed, and [`exhaustive`] in every order, for small cases. [`run_group`] is
//! a random run with a hundred instances, many of which move together.
//!
//! The invariants after every action, and at the end, are in `invariants`. A [`Sabotage`] breaks
//! one rule on purpose, to show that the invariants detect it.

mod engine;
pub mod exhaustive;
mod fold;
mod glue;
mod invariants;
mod random;
mod seeded;
mod shared;
#[cfg(test)]
mod tests;
mod world;

pub use seeded::{Failure, run_group, run_seed};

/// A rule that is broken on purpose, to test the invariants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// None: the unmodified protocol.
    #[default]
    None,
    /// A source resumes its instance after a timeout.
    SourceResumesOnTimeOut,
    /// The commit is announced, but not recorded.
    CommitIsNotDurable,
    /// The coordinator tells the source to destroy its copy as soon as it tells the destination to resume.
    DestroyBeforeConfirmation,
    /// A node does not record that it is about to release a held copy.
    ReleaseIsNotDurable,
    /// Waiting peers do not learn the instance's location.
    PeersAreForgotten,
    /// Only the first move of a group is recorded as committed.
    GroupIsCommittedInParts,
    /// A node reports images as saved that it has not saved.
    ImagesAreNotWritten,
    /// A node reports the end of a pre-copy without sending the memory.
    MemoryIsNotSent,
    /// A node reports complete memory although part of it is on the source.
    MemoryIsLeftBehind,
    /// A node does not record which memory an instance lacks.
    LackIsNotDurable,
    /// A node does not record the last move of its instance.
    LastMoveIsNotDurable,
}

/// Counters of one run, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Actions performed.
    pub steps: u64,
    /// Moves that began.
    pub begun: u64,
    /// Moves that were committed.
    pub committed: u64,
    /// Groups of several moves that were committed.
    pub groups: u64,
    /// Instances that were saved.
    pub saved: u64,
    /// Instances that were restored.
    pub restored: u64,
    /// Instances that have fetched memory after post-copy.
    pub fetched: u64,
    /// Instances that have lost such memory.
    pub bereft: u64,
    /// Moves that were rolled back.
    pub rolled_back: u64,
    /// Crashes of a node, the coordinator or an engine.
    pub crashes: u64,
    /// Messages lost.
    pub lost: u64,
    /// Peers that asked for an instance that was moving.
    pub peers: u64,
}

impl std::hash::Hash for Tally {
    /// Past events do not influence future ones.
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.begun += other.begun;
        self.committed += other.committed;
        self.groups += other.groups;
        self.saved += other.saved;
        self.restored += other.restored;
        self.fetched += other.fetched;
        self.bereft += other.bereft;
        self.rolled_back += other.rolled_back;
        self.crashes += other.crashes;
        self.lost += other.lost;
        self.peers += other.peers;
    }
}
