//! The machine's resources for the tests of several crates.
//!
//! * [`libraries`]: the drop-in libraries under test.
//! * [`machine`]: a test shares the machine with others, or has it to itself.
//! * [`privilege`]: a test that cannot run here either fails or says that it is skipped.
//! * [`seeds`]: how many seeds a simulation runs.

pub mod libraries;
pub mod machine;
pub mod privilege;
pub mod seeds;

pub use privilege::{is_root, skip};
pub use seeds::seeds;
