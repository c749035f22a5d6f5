//! Engines: start, check, dump, restore and end instances on their host.
//!
//! * [`engine`]: the trait that every engine has, and the order in which a move calls it.
//! * [`process`]: the engine for process trees, on CRIU.
//! * [`init`]: the instance's first process.
//! * [`unpack`]: unpacks a container image.
//! * [`guard`]: protects a dumped tree from CRIU's death.
//! * [`memory`]: the interface that receives an instance's memory.
//! * [`pager`]: post-copy: fetches the missing pages of a running instance.
//! * [`wiring`]: the interface of the network that its device is plugged into.
//! * [`report`]: the blockers of an instance, and its needs at the destination.
//! * [`error`]: errors.

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
pub mod wiring;

pub use ::instance;
pub use engine::{Dump, Engine, Phase, Phases, Recovered, Running, State, Watch};
pub use error::{Error, Result};
pub use memory::{MemorySink, Owner, PAGE};
#[doc(hidden)]
pub use process::foreign;
pub use process::{
    Archives, CONTAINER_LIBRARIES, Config, ContainerConfig, LeftBehind, MemoryImages, ProcessEngine,
};
pub use report::{Blocker, Contents, FileKind, Host, Identity, Needs, OpenFile, Report, Shortage};
