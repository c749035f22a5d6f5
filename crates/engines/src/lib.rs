//! Engines: start, check, dump, restore and end instances on their host.
//!
//! * `backend`: the process engine as a node calls it, by the traits of [`engine_api`].
//! * [`engine`]: how an instance is, and how calls are followed.
//! * [`process`]: the engine for process trees, on CRIU.
//! * [`init`]: the instance's first process.
//! * [`unpack`]: unpacks a container image.
//! * [`guard`]: protects a dumped tree from CRIU's death.
//! * [`memory`]: the interface that receives an instance's memory.
//! * [`pager`]: post-copy: fetches the missing pages of a running instance.
//! * [`report`]: the blockers of an instance, and its needs at the destination.
//! * [`error`]: errors.

mod backend;
pub mod engine;
pub mod error;
mod guard;
pub mod init;
pub mod memory;
mod mounts;
pub mod pager;
pub mod process;
pub mod report;
mod stopwatch;
mod unpack;

pub use ::instance;
pub use engine::{Dump, Phase, Phases, Recovered, Running, State, Watch};
use engine_api::wiring;
pub use error::{Error, Result};
pub use memory::{MemorySink, Owner, PAGE};
#[doc(hidden)]
pub use process::foreign;
pub use process::{
    Archives, CONTAINER_LIBRARIES, Config, ContainerConfig, LeftBehind, MemoryImages, ProcessEngine,
};
pub use report::{Blocker, Contents, FileKind, Host, Identity, Needs, OpenFile, Report, Shortage};
