//! The engine for process trees and containers: starts, checks, dumps, restores and ends instances on their host.
//!
//! * `backend`: implements the traits of [`engine_api`].
//! * [`engine`]: the states of an instance, and how a caller follows a call.
//! * [`process`]: the engine for process trees and containers.
//! * [`container`]: root file systems of containers.
//! * [`init`]: the instance's first process.
//! * [`criu`]: runs CRIU, and repairs what CRIU does not carry.
//! * [`linux`]: interfaces of the kernel.
//! * [`memory`]: the interface that receives an instance's memory.
//! * [`pager`]: post-copy: fetches the missing pages of a running instance.
//! * [`shared`]: the parts that the engine for virtual machines uses too.
//! * [`report`]: the blockers of an instance, and its needs at the destination.
//! * [`error`]: the errors of an engine.
//!
//! Folders depend on each other in one direction, so that they can become crates: `linux` ← `criu` ← `init` ← `container` ←
//! `process`, and all on the types beside them; `backend` is above all of them.

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
pub mod shared;
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
