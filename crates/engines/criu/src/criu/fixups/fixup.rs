//! The trait of fixups, and the tree that they repair.

use std::io;
use std::path::Path;
use std::time::Instant;

use crate::instance::Blocker;
use crate::instance::InstanceName;

/// The repair of one thing that CRIU does not dump, or restores wrongly.
pub trait Fixup {
    /// The state that it repairs, for error messages.
    fn name(&self) -> &'static str;

    /// CRIU's defect, in one line.
    fn lacks(&self) -> &'static str;

    /// Source: CRIU has dumped the tree, and still holds it.
    ///
    /// # Errors
    /// If a process cannot be inspected, or an image file cannot be read or written.
    fn save(&mut self, _stopped: &StoppedTree<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Source: CRIU has exited and left the tree stopped; the dump began at `begin`. Returns a blocker if the tree must be dumped
    /// again.
    ///
    /// # Errors
    /// As [`Self::save`].
    fn finish(&mut self, _stopped: &StoppedTree<'_>, _begin: Instant) -> io::Result<Option<Blocker>> {
        Ok(None)
    }

    /// Destination: CRIU has restored the tree, and holds it.
    ///
    /// # Errors
    /// If a state cannot be restored, with its name.
    fn apply(&self, _held: &StoppedTree<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// A stopped or held tree, with its image files.
pub struct StoppedTree<'a> {
    /// The instance.
    pub name: &'a InstanceName,
    /// The directory of its image files.
    pub images: &'a Path,
    /// Its processes, the first one first.
    pub tree: &'a [i32],
    /// Whether it has file systems of its own.
    pub has_own_root: bool,
}

impl StoppedTree<'_> {
    /// The first process, if the tree has file systems of its own.
    pub fn first_with_own_root(&self) -> Option<i32> {
        self.tree.first().copied().filter(|_| self.has_own_root)
    }
}
