//! What the tests of several modules share.

pub mod played;
