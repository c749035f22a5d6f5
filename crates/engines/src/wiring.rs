//! What an instance's `eth0` is plugged into, as the engine sees it.
//!
//! The engine makes the instance's network namespace, gives the device its MAC, MTU and address, and says when it may carry
//! frames. How they are carried is the wiring's.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use crate::instance::{InstanceSpec, Network};

/// What the device is called in the instance's namespace.
pub const DEVICE: &str = "eth0";

/// Plugs instances' network devices in. A device is known by its MAC.
///
/// "Cut" is a device that has its carrier, and so keeps addresses and routes, while nothing comes from it or to it: it
/// acknowledges nothing for sockets that are on their way, and answers for no address that is elsewhere still.
pub trait Wiring: fmt::Debug + Send + Sync {
    /// Makes [`DEVICE`] in `namespace`, cut. It takes the place of one of the same MAC that is left of a crash, or of a copy that
    /// is no more.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn create(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()>;

    /// Takes up again the device of an instance that is here already; cut or not, as it is found.
    ///
    /// # Errors
    /// If it is not there.
    fn find(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()>;

    /// Cuts the device, behind all that was sent by it. May be repeated.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn cut(&self, network: &Network) -> io::Result<()>;

    /// Whether frames that come while the device is cut are kept, and delivered when it is mended. Else they are lost.
    fn keeps_frames(&self) -> bool;

    /// Has the device carry frames. May be repeated.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn mend(&self, network: &Network) -> io::Result<()>;

    /// Deletes the device; no error if it is not there.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn delete(&self, network: &Network) -> io::Result<()>;
}
