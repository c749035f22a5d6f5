//! Repairs of state that CRIU does not dump or restores wrongly.
//!
//! ```text
//! source                                                destination
//!   CRIU has dumped the tree and still holds it   save
//!   CRIU has exited, the tree is stopped          finish
//!                                                         CRIU has restored the tree and holds it   apply
//! ```
//!
//! Some fixups edit CRIU's image files at the source. Others write an image file of their own, which CRIU ignores, and apply it at the
//! destination. [`Fixups::all`] is the list. [`super::repair_mode`] repairs TCP connections after a rollback; it is no fixup, since its
//! state is part of the instance's record.

mod alarms;
mod fixup;
mod interrupted;
mod mount_flags;
pub mod own_files;
mod process_timers;
mod scheduling;
mod socket_options;
mod timers;

use std::time::Instant;

use self::fixup::Fixup;
pub use self::fixup::StoppedTree;
use self::interrupted::Interrupted;
use self::mount_flags::MountFlags;
use self::own_files::OwnFiles;
use self::process_timers::ProcessTimers;
use self::scheduling::Scheduling;
use self::socket_options::SocketOptions;
use self::timers::Timers;
use crate::error::{Doing, Error, Result};

/// All fixups, for one dump or one restore.
pub struct Fixups(Vec<Box<dyn Fixup>>);

impl Fixups {
    /// In the order of their application: [`Interrupted`] reads what [`ProcessTimers`] has changed.
    pub fn all() -> Self {
        Self(vec![
            // CRIU records files of `/proc/PID` by PIDs of this host.
            Box::new(OwnFiles),
            // CRIU stops periodic timers of timer descriptors.
            Box::new(Timers),
            // CRIU loses signals of timers that expire while it dumps.
            Box::new(ProcessTimers::default()),
            // CRIU carries only some options of sockets.
            Box::new(SocketOptions),
            // CRIU does not carry the CPU affinity of threads, nor their I/O priority.
            Box::new(Scheduling),
            // CRIU loses options of mounts.
            Box::new(MountFlags),
            // CRIU restarts calls that the kernel would have ended, and ends calls that the kernel would have restarted.
            Box::new(Interrupted),
        ])
    }

    /// See [`Fixup::save`].
    pub fn save(&mut self, stopped: &StoppedTree<'_>) -> Result<()> {
        self.0
            .iter_mut()
            .try_for_each(|fixup| fixup.save(stopped).doing(|| doing("saving", fixup.as_ref(), stopped)))
    }

    /// See [`Fixup::finish`].
    pub fn finish(&mut self, stopped: &StoppedTree<'_>, begin: Instant) -> Result<()> {
        for fixup in &mut self.0 {
            let blocker = fixup.finish(stopped, begin);
            if let Some(blocker) = blocker.doing(|| doing("saving", fixup.as_ref(), stopped))? {
                return Err(Error::Pinned { name: stopped.name.clone(), blocker });
            }
        }
        Ok(())
    }

    /// See [`Fixup::apply`].
    pub fn apply(&self, held: &StoppedTree<'_>) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|fixup| fixup.apply(held).doing(|| doing("restoring", fixup.as_ref(), held)))
    }
}

fn doing(verb: &str, fixup: &dyn Fixup, of: &StoppedTree<'_>) -> String {
    format!("{verb} the {} of `{}` ({})", fixup.name(), of.name, fixup.lacks())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fixup_names_a_different_defect_of_criu() {
        let Fixups(all) = Fixups::all();
        let mut lines: Vec<_> = all.iter().map(|fixup| (fixup.name(), fixup.lacks())).collect();
        assert!(
            lines.iter().all(|(name, lacks)| !name.is_empty() && lacks.starts_with("CRIU ")),
            "{lines:?}"
        );
        lines.sort_unstable();
        lines.dedup_by_key(|(name, _)| *name);
        assert_eq!(lines.len(), all.len());
    }
}
