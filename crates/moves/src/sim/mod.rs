//! The protocol under faults, in virtual time.
//!
//! A [`World`](world::World) is a coordinator, some nodes with a model of their engines, and the
//! messages between them. Its only moving part is an action: deliver this message, finish that
//! operation, crash here. Two drivers choose the actions: [`run_seed`] at random, with all faults
//! at rates drawn from the seed, and [`exhaustive`] in every order, for small cases. [`run_group`] is
//! the first with a hundred instances, of which many move together.
//!
//! What must hold after every action, and what at the end, is in `invariants`. To show that the
//! invariants see something, a [`Sabotage`] breaks one rule in the glue around the machines.

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

/// A rule broken on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// None: the protocol as it is.
    #[default]
    None,
    /// A source that waited for a while lets its instance run on.
    SourceResumesOnTimeOut,
    /// The commit is announced, but not written down.
    CommitIsNotDurable,
    /// The source is told to destroy its copy as soon as the destination is told to resume.
    DestroyBeforeConfirmation,
    /// A node does not write down that it is about to release a held copy.
    ReleaseIsNotDurable,
    /// Nobody tells the waiting peers where the instance is.
    PeersAreForgotten,
    /// Of moves that are made together only the first is written down as committed.
    GroupIsCommittedInParts,
    /// A node says that it has saved what it has not.
    ImagesAreNotWritten,
    /// A node says that it has sent the memory of an instance that runs, and has not.
    MemoryIsNotSent,
    /// A node says that an instance has all its memory, and a part of it is at its source.
    MemoryIsLeftBehind,
    /// A node does not write down what memory an instance lacks.
    LackIsNotDurable,
    /// A node does not write down which move its instance was last in.
    LastMoveIsNotDurable,
}

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Actions performed.
    pub steps: u64,
    /// Moves that began.
    pub begun: u64,
    /// Moves that were committed.
    pub committed: u64,
    /// Several moves that were committed as one.
    pub groups: u64,
    /// Instances that were saved.
    pub saved: u64,
    /// Instances that were restored.
    pub restored: u64,
    /// Instances that have fetched memory which they had left behind.
    pub fetched: u64,
    /// Instances of which such memory was lost.
    pub bereft: u64,
    /// Moves that were rolled back.
    pub rolled_back: u64,
    /// Crashes of a node, the coordinator or an engine.
    pub crashes: u64,
    /// Messages lost.
    pub lost: u64,
    /// Peers that asked for an instance that was on its way.
    pub peers: u64,
}

impl std::hash::Hash for Tally {
    /// What happened before makes no difference to what can happen next.
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
