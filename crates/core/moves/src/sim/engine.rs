//! A model of a node's engine: the copies of instances on the host, and the effects of operations on them.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;

use crate::MoveId;
use crate::journal::Exit;
use crate::node::{Operation, Outcome};

/// The copies on a host. They outlive the node's daemon.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Engine {
    pub(super) copies: BTreeMap<Vid, Copy>,
    pub(super) images: BTreeMap<Vid, Images>,
    pub(super) rooms: BTreeSet<Vid>,
    /// The move whose pre-copy has ended; a restarted daemon cannot use it.
    pub(super) copied: BTreeMap<Vid, MoveId>,
    pub(super) exits: BTreeMap<Vid, Exit>,
    pub(super) under_way: BTreeMap<Vid, UnderWay>,
    /// An operation violated the engine's contract.
    pub(super) misused: Option<&'static str>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct UnderWay {
    pub(super) operation: Operation,
    pub(super) cancelled: bool,
}

/// Processes of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Copy {
    pub(super) state: CopyState,
    /// Another copy has run since this one was made or stopped.
    pub(super) stale: bool,
    /// It was released without part of its memory, which is in the stopped copy.
    pub(super) lacks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopyState {
    Running,
    /// Its links are closed; it cannot communicate.
    Suspended,
    /// Dumped, and left stopped.
    Stopped,
    /// Restored, and held before its first instruction.
    Held,
}

/// The images of a dump, complete and durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Images {
    pub(super) id: MoveId,
    pub(super) stale: bool,
    /// Part of the memory is missing.
    pub(super) lack: bool,
    /// The copy restored from them was released.
    pub(super) released: bool,
}

/// The effect of an operation beyond its own host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// The instance runs here from now on.
    Runs(Outcome),
    /// The memory arrives at the destination, which decides whether it accepts it.
    Copies,
    /// The images arrive at the destination, which decides whether it accepts them.
    Sends,
    /// The stopped copy elsewhere provides the missing memory.
    Fetches,
    /// The copy of this move is destroyed here.
    Destroys(MoveId),
}

impl Engine {
    /// Performs `operation`; returns its outcome, and the effect that the world has to apply.
    pub(super) fn succeed(&mut self, vid: Vid, operation: &Operation) -> (Outcome, Effect) {
        let state = self.copies.get(&vid).map(|copy| copy.state);
        match operation {
            Operation::CheckSource { .. } | Operation::CheckDestination { .. } => {
                (Outcome::Checked { facts: Vec::new() }, Effect::None)
            }
            Operation::Prepare { id, source, .. } => {
                self.rooms.insert(vid);
                if source.host().is_none() {
                    // A restore finds its images in place.
                    self.images.insert(vid, Images { id: *id, stale: false, lack: false, released: false });
                }
                (Outcome::Done, Effect::None)
            }
            Operation::Precopy { .. } => match state {
                Some(CopyState::Running) => (Outcome::Copied { bytes: 1 }, Effect::Copies),
                _ => (failed("there is nothing to copy"), Effect::None),
            },
            Operation::Suspend => (self.suspend(vid), Effect::None),
            Operation::Send { .. } => match state {
                Some(CopyState::Suspended | CopyState::Stopped) => {
                    self.set(vid, CopyState::Stopped);
                    (Outcome::Sent { bytes: 1 }, Effect::Sends)
                }
                _ => (failed("there is nothing to dump"), Effect::None),
            },
            Operation::Receive { id } | Operation::Restore { id } => (self.restore(vid, *id), Effect::None),
            Operation::Release { .. } => self.release(vid, state),
            Operation::Continue { .. } => match state {
                Some(CopyState::Held) => {
                    self.misused = Some("a held copy is continued as if it had been the source");
                    (failed("the copy is held"), Effect::None)
                }
                Some(_) => (Outcome::Done, Effect::Runs(Outcome::Done)),
                None => (self.gone(vid), Effect::None),
            },
            Operation::Fetch { .. } => match self.copies.get(&vid) {
                Some(_) => (Outcome::Done, Effect::Fetches),
                None => (self.gone(vid), Effect::None),
            },
            Operation::Abort { .. } => {
                self.clear(vid);
                (Outcome::Done, Effect::None)
            }
            Operation::Destroy { id } => {
                self.clear(vid);
                (Outcome::Done, Effect::Destroys(*id))
            }
        }
    }

    /// Makes `operation` fail, with possible partial effects.
    pub(super) fn fail(&mut self, vid: Vid, operation: &Operation) -> Outcome {
        match operation {
            Operation::CheckSource { .. }
            | Operation::CheckDestination { .. }
            | Operation::Prepare { .. } => {
                return Outcome::Refused { reasons: vec!["no".into()] };
            }
            // Some libraries may have closed their links.
            Operation::Suspend => drop(self.suspend(vid)),
            Operation::Send { .. } if self.copies.contains_key(&vid) => self.set(vid, CopyState::Stopped),
            // Only a copy that has executed no instruction may be reported as not released.
            Operation::Release { .. } if !self.holds_unreleased(vid) => {
                return self.succeed(vid, operation).0;
            }
            Operation::Release { .. } | Operation::Restore { .. } => self.lose_held(vid),
            _ => {}
        }
        failed("it failed")
    }

    /// Whether `operation` can succeed now; a receive waits for its images.
    pub(super) fn can_succeed(&self, vid: Vid, operation: &Operation) -> bool {
        match operation {
            Operation::Receive { id } => self.images.get(&vid).is_some_and(|images| images.id == *id),
            _ => true,
        }
    }

    /// Drops a held copy, as after the death of the restoring program.
    pub(super) fn lose_held(&mut self, vid: Vid) {
        if self.copies.get(&vid).is_some_and(|copy| copy.state == CopyState::Held) {
            self.copies.remove(&vid);
        }
    }

    /// Whether a copy of `vid` exists that could still run.
    pub(super) fn could_run(&self, vid: Vid) -> bool {
        self.copies.get(&vid).is_some_and(|copy| !copy.stale)
            || self.images.get(&vid).is_some_and(|images| !images.stale && !images.released)
    }

    /// Whether its copy here was released without part of its memory.
    pub(super) fn lacks(&self, vid: Vid) -> bool {
        self.copies.get(&vid).is_some_and(|copy| copy.lacks && copy.state != CopyState::Held)
    }

    fn holds_unreleased(&self, vid: Vid) -> bool {
        self.images.get(&vid).is_some_and(|images| !images.released)
    }

    fn suspend(&mut self, vid: Vid) -> Outcome {
        match self.copies.get(&vid).map(|copy| copy.state) {
            Some(CopyState::Running | CopyState::Suspended) => {
                self.set(vid, CopyState::Suspended);
                Outcome::Suspended(Default::default())
            }
            _ => failed("there is nothing to suspend"),
        }
    }

    fn restore(&mut self, vid: Vid, id: MoveId) -> Outcome {
        let Some(images) = self.images.get(&vid).filter(|images| images.id == id) else {
            return failed("the images are gone");
        };
        if images.released {
            self.misused = Some("a copy is restored from images that have run already");
        }
        let (stale, lacks) = (images.stale, images.lack);
        self.copies.insert(vid, Copy { state: CopyState::Held, stale, lacks });
        Outcome::Done
    }

    fn release(&mut self, vid: Vid, state: Option<CopyState>) -> (Outcome, Effect) {
        let lacks = self.lacks(vid);
        match (state, self.images.get_mut(&vid)) {
            (Some(CopyState::Held), Some(images)) => {
                images.released = true;
                let outcome = if images.lack { Outcome::Incomplete } else { Outcome::Done };
                (outcome.clone(), Effect::Runs(outcome))
            }
            (Some(_), _) if lacks => (Outcome::Incomplete, Effect::None),
            (Some(_), _) => (Outcome::Done, Effect::None),
            (None, Some(images)) if !images.released => (failed("no copy is held"), Effect::None),
            (None, _) => (self.gone(vid), Effect::None),
        }
    }

    fn gone(&self, vid: Vid) -> Outcome {
        let lost = || Exit::Lost { reason: "its processes are gone".into() };
        Outcome::Gone { exit: self.exits.get(&vid).cloned().unwrap_or_else(lost) }
    }

    fn clear(&mut self, vid: Vid) {
        if self.copies.get(&vid).is_some_and(|copy| copy.state == CopyState::Running) {
            self.misused = Some("a running copy is removed");
        }
        self.copies.remove(&vid);
        self.images.remove(&vid);
        self.rooms.remove(&vid);
    }

    fn set(&mut self, vid: Vid, state: CopyState) {
        if let Some(copy) = self.copies.get_mut(&vid) {
            copy.state = state;
        }
    }
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: reason.into() }
}
