//! The process engine with real processes and CRIU, between hosts made of network namespaces.

mod blockers;
mod containers;
mod faults;
mod full_disk;
mod kills;
mod lab;
mod moves;
mod post_copy;
mod sessions;
