//! What CRIU does not carry, or carries wrongly, mended.

pub mod interrupted;
pub mod mount_flags;
pub mod own_files;
pub mod process_timers;
pub mod scheduling;
pub mod socket_options;
pub mod timers;
