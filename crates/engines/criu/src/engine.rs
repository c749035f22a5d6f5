//! The states of an instance, and how a caller follows a call: types of [`engine_api`], and the result of a dump.

pub use engine_api::{Phase, Phases, Recovered, Running, State, Watch};
use instance::ImageFile;
use serde::{Deserialize, Serialize};

/// A stopped instance's images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The images, in order of their names.
    pub images: Vec<ImageFile>,
    /// The parts of the dump, with their durations.
    pub phases: Phases,
}
