//! What tests of several crates need of the machine.
//!
//! * [`privilege`]: a test that cannot run here either fails or says that it is skipped.

pub mod privilege;

pub use privilege::{is_root, skip};
