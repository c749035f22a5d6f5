//! Metrics of the daemons for Prometheus: the OpenMetrics text format, over HTTP (ADR 0020).
//!
//! * [`serve`]: the server.
//! * [`Exposition`]: the text.

mod exposition;
mod server;

pub use exposition::{Exposition, Labels, Tally, label};
pub use server::serve;
