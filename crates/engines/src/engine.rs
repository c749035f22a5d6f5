//! How an instance is, and how its calls are followed: as [`engine_api`] has it.

pub use engine_api::{Phase, Phases, Recovered, Running, State, Watch};
use instance::ImageFile;
use serde::{Deserialize, Serialize};

/// A stopped instance's images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The images, in order of their names.
    pub images: Vec<ImageFile>,
    /// How long the dump's parts took.
    pub phases: Phases,
}
