//! Engines: start, check, dump, restore and end instances on their host.
//!
//! * `backend`: the process engine as a node calls it, by the traits of [`engine_api`].
//! * [`engine`]: the states of an instance, and how calls are followed.
//! * [`process`]: the engine for process trees and containers.
//! * [`container`]: root file systems of containers.
//! * [`init`]: the instance's first process.
//! * [`criu`]: a run of CRIU, what it needs, and what it lacks.
//! * [`linux`]: what the kernel tells and does.
//! * [`memory`]: the interface that receives an instance's memory.
//! * [`pager`]: post-copy: fetches the missing pages of a running instance.
//! * [`report`]: the blockers of an instance, and its needs at the destination.
//! * [`error`]: the errors of an engine.
//!
//! Folders depend one way, as the crates do that they may become: `linux` ← `criu` ← `init` ← `container` ← `process`, and all on
//! the types beside them; `backend` is above all of them.

mod backend;
mod container;
mod criu;
pub mod engine;
pub mod error;
pub mod init;
mod linux;
mod lock;
pub mod memory;
pub mod process;
pub mod report;
mod stopwatch;

pub use ::instance;
pub use container::containers::ContainerConfig;
pub use container::support::LIBRARIES as CONTAINER_LIBRARIES;
#[doc(hidden)]
pub use criu::foreign;
pub use criu::pager;
pub use criu::pages::archives::Archives;
pub use criu::pages::left_behind::LeftBehind;
pub use criu::pages::memory_images::MemoryImages;
pub use engine::{Dump, Phase, Phases, Recovered, Running, State, Watch};
pub use error::{Error, Result};
pub use memory::{MemorySink, Owner, PAGE};
pub use process::{Config, ProcessEngine};
pub use report::{Blocker, Contents, FileKind, Host, Identity, Needs, OpenFile, Report, Shortage};
