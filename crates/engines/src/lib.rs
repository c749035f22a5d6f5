//! What an instance is on its host: started, checked, dumped, restored and ended.
//!
//! * [`engine`]: the trait that every engine has, and the order in which a move calls it.
//! * [`process`]: the engine for process trees, on CRIU.
//! * [`init`]: the instance's first process.
//! * [`unpack`]: from a container's image to its files.
//! * [`guard`]: what keeps a dumped tree from CRIU's death.
//! * [`memory`]: its memory on its way.
//! * [`pager`]: what gives an instance that runs what it has left behind of that.
//! * [`wiring`]: what its network device is plugged into.
//! * [`report`]: what pins an instance to its host, and what it needs at its destination.
//! * [`error`]: what goes wrong, in words.

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
