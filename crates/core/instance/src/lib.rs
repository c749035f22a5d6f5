//! Types of instances: the specification, and the state that travels with a move. No IO.
//!
//! * [`spec`]: the specification of an instance: its name, its network device, and its workload.
//! * [`blueprint`]: the specification in its fabric, as bytes that the coordinator keeps and sends to hosts.
//! * [`container`]: reads a container's configuration and finds blockers in it. [`digest`]: identifies a container image.
//! * [`carried`]: the state that a broker hands to the next one. [`output`]: the recent output of the command.
//! * [`blocker`]: a reason why an instance cannot move, with a remedy.
//! * [`seed`]: the disk that a virtual machine finds tools and data for cloud-init on.
//! * [`image`]: names of memory regions and image files in a transfer.

pub mod blocker;
pub mod blueprint;
pub mod carried;
pub mod container;
pub mod digest;
pub mod image;
pub mod output;
pub mod seed;
pub mod spec;

pub use blocker::Blocker;
pub use blueprint::{Blueprint, BlueprintError};
pub use carried::{Carried, Roster};
pub use digest::{BadDigest, Digest};
pub use image::{ImageFile, Region};
pub use output::{Chunk, Follower, Output};
pub use seed::Seed;
pub use spec::{
    Accelerator, BadName, Boot, Container, ContainerImage, Disk, DiskFormat, InstanceName, InstanceSpec,
    Kind, Network, Program, ResourceLimit, Root, VmSpec, Workload,
};
