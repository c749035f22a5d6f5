//! Containers: instances with a root file system of their own, which an OCI runtime makes.
//!
//! * [`containers`]: those of a host, and one of them;
//! * [`oci`]: the configuration for the runtime, made of the user's;
//! * [`unpacked`], [`unpack`]: container images that are unpacked on this host, and the program that does that;
//! * [`layer`], [`written`]: what a container has written, and how that travels;
//! * [`support`], [`libraries`]: what a container sees of its host beside its own files;
//! * [`cgroup`]: the cgroups of its processes.

pub mod cgroup;
pub mod containers;
pub mod layer;
pub mod libraries;
pub mod oci;
pub mod support;
pub mod unpack;
pub mod unpacked;
pub mod written;
