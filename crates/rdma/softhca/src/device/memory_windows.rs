//! Memory windows.

use crate::attr::WindowKind;
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::handle::{Mw, Pd};

impl Device {
    /// Makes a memory window. Returns the first of its 256 keys, under which it shows nothing.
    ///
    /// # Errors
    /// `INVALID` if there is no such domain; `NO_MEMORY` past the device's limit.
    pub fn alloc_mw(&mut self, pd: Pd, kind: WindowKind) -> Result<(Mw, u32), Errno> {
        require_room(self.core.regions.windows(), self.core.limits.max_mw)?;
        self.enter_domain(pd)?;
        Ok(self.core.regions.insert_window(pd, kind))
    }

    /// Ends a memory window, bound or not.
    ///
    /// # Errors
    /// `INVALID` if there is no such window.
    pub fn dealloc_mw(&mut self, mw: Mw) -> Result<(), Errno> {
        let core = &mut self.core;
        let pd = core.regions.remove_window(&mut *core.source, mw, &mut core.handle_changes);
        require(pd.is_some())?;
        self.send_handle_changes();
        pd.into_iter().for_each(|pd| self.leave_domain(pd));
        Ok(())
    }

    /// Tells peers of handles that have changed.
    #[inline]
    pub(super) fn send_handle_changes(&mut self) {
        if !self.core.handle_changes.is_empty() {
            self.send_all_handle_changes();
        }
    }

    #[cold]
    fn send_all_handle_changes(&mut self) {
        for (line, previous) in self.core.handle_changes.drain(..) {
            self.links.announce(line, previous);
        }
    }
}
