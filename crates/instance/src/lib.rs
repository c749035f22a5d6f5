//! What an instance is, and what travels with it: types without IO, for all who speak of instances.
//!
//! * [`spec`]: what an instance is made of: its name, its network device, and its workload.
//! * [`blueprint`]: the specification with its fabric, as the coordinator keeps it and hosts get it.
//! * [`container`]: a container's configuration, and whether it can be carried. [`digest`]: what its image is known by.
//! * [`carried`]: what a broker knows of an instance and hands on. [`output`]: what its command has written.
//! * [`blocker`]: why something cannot move, and the remedy.
//! * [`image`]: the names of memory regions and image files on their way.

pub mod blocker;
pub mod blueprint;
pub mod carried;
pub mod container;
pub mod digest;
pub mod image;
pub mod output;
pub mod spec;

pub use blocker::Blocker;
pub use blueprint::{Blueprint, BlueprintError};
pub use carried::{Carried, Roster};
pub use digest::{BadDigest, Digest};
pub use image::{ImageFile, Region};
pub use output::{Chunk, Follower, Output};
pub use spec::{
    BadName, Container, ContainerImage, Disk, InstanceName, InstanceSpec, Kind, Network, Program,
    ResourceLimit, Root, VmSpec, Workload,
};
