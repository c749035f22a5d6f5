//! The interface between the engine and the network that an instance's `eth0` is plugged into.
//!
//! The engine makes the instance's network namespace, gives the device its MAC, MTU and address, and says when it may carry
//! frames. The wiring carries them.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use instance::{InstanceSpec, Network};

/// The device's name in the instance's namespace.
pub const DEVICE: &str = "eth0";

/// Plugs in the network devices of instances. A device is identified by its MAC.
///
/// A device is *cut* when it has its carrier, and so keeps addresses and routes, but neither sends nor receives frames: it does not
/// acknowledge segments for sockets in transfer, nor answer ARP for an address that is still at another host.
pub trait Wiring: fmt::Debug + Send + Sync {
    /// Makes [`DEVICE`] in `namespace`, cut. It replaces a device of the same MAC that a crash or an ended copy has left.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn create(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()>;

    /// Takes over the existing device of an instance that is already here, without changing whether it is cut.
    ///
    /// # Errors
    /// If it does not exist.
    fn find(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()>;

    /// Keeps frames for the instance from now on, as if the device were cut, while the instance still sends: none reaches an instance
    /// that is about to stop. Does nothing if this wiring [keeps no frames](Wiring::keeps_frames). May be repeated.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn hold(&self, network: &Network) -> io::Result<()>;

    /// Cuts the device after the frames that it has already sent. May be repeated.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn cut(&self, network: &Network) -> io::Result<()>;

    /// Whether frames that arrive while the device is cut are kept, and delivered when it is mended. Otherwise they are lost.
    fn keeps_frames(&self) -> bool;

    /// Mends a cut device, so that it carries frames. May be repeated.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn mend(&self, network: &Network) -> io::Result<()>;

    /// Deletes the device; no error if it does not exist.
    ///
    /// # Errors
    /// If the host's network does not allow it.
    fn delete(&self, network: &Network) -> io::Result<()>;
}
