//! The overlay: its hosts, links and devices, and how changes reach the nodes.
//!
//! * [`plan`]: the wanted hosts and links. [`rollout`]: installs a plan on all nodes. [`layout`]: changes the plan.
//! * [`devices`]: devices and the locations of stations. [`plugging`]: attaches and detaches devices. [`moves`]: moves devices to
//!   other hosts. [`own`]: devices that nodes request for themselves.
//! * [`nics`]: instances on the overlay.
//! * [`orders`], [`notices`]: messages to nodes. [`heard`]: messages from nodes. [`misbehaviour`]: rate limit for reports of failed
//!   offloads.
//! * [`changes`], [`show`]: the requests of the command line.

pub mod changes;
pub mod devices;
pub mod heard;
pub mod layout;
pub mod links;
pub mod misbehaviour;
mod moves;
pub mod nics;
mod notices;
mod orders;
pub mod own;
pub mod plan;
mod plugging;
pub mod rollout;
pub mod show;
pub mod traffic;
