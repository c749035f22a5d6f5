//! The overlay between two hosts against its peers on the same path.
//!
//! * [`ground`]: the lab in which all of them have their ends, and its lossy path.
//! * [`peer`]: how each peer is installed, configured and started.
//! * [`measure`]: one run of iperf3, or of [`ping`].
//! * [`ping`]: round trips of small datagrams; [`awake`]: where no processor has to be woken for them.
//! * [`comparison`]: all of them in turn.
//! * [`upkeep`]: the cost of an idle overlay.
//! * [`moved`]: stations that move.
//! * [`table`]: the results as a table for people.

use std::net::Ipv4Addr;

pub mod awake;
pub mod comparison;
pub mod ground;
pub mod measure;
pub mod moved;
pub mod peer;
pub mod ping;
pub mod table;
pub mod upkeep;

/// The host from which is sent.
pub const SENDER: &str = "h1";

/// The host that receives.
pub const RECEIVER: &str = "h2";

/// The overlay's way on which datagrams are sealed.
pub const SEALED: &str = "overlay";

/// The one on which they are not.
pub const PLAIN: &str = "overlay, plain";

/// A way from the sender to the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The carrier.
    pub name: &'static str,
    /// The receiver's address on it.
    pub address: Ipv4Addr,
    /// Whether the overlay's datagrams are sealed, if it is the overlay's.
    pub sealed: Option<bool>,
}

/// A figure that there is not.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Missing {
    /// The path without the figure.
    pub name: &'static str,
    /// The quantity that could not be measured; `None` if none could be.
    pub quantity: Option<String>,
    /// Why, in words.
    pub reason: String,
}

impl Missing {
    /// For people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let quantity = self.quantity.as_ref().map(|quantity| format!(", {quantity}")).unwrap_or_default();
        format!("missing: {}{quantity}: {}", self.name, self.reason)
    }
}
