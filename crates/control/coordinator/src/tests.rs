//! Helpers that the tests of several modules share.

pub mod held;
pub mod played;
mod thousand;
