//! Moves of a virtual machine against two plain QEMUs and a script.
//!
//! ```text
//!            h1 ─── moves ──▶ h2        ours: the machine of an instance
//!   h3: prober ────────────────┘
//!            h1 ── migrates ─▶ h2       the peer: the same QEMU with the same options, and QMP
//! ```
//!
//! Both run the same guest, in turn: the one that is not measured is stopped meanwhile.
//!
//! * [`traced`]: QEMU, which records when processors stop and run. Both sides use it, so both are measured by one clock.
//! * [`ours`]: the machine in a lab. [`plain`]: the peer.

pub mod ours;
pub mod plain;
pub mod traced;

use std::time::Duration;

/// The measurement of one move.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time in which no processor ran.
    pub pause: Duration,
    /// From the request until the source's QEMU has ended.
    pub total: Duration,
}
