//! The transfer of an instance's images from its source to its destination.
//!
//! The source opens the connection before the instance is suspended, and names the move. Most pages of memory are sent while the instance
//! runs, and the changed ones when it is stopped ([`courier`], [`known`], [`sending`]). Regions and image files are opaque here: only the
//! engines know their meaning. Images of a checkpoint stay on the host ([`saved`]).

mod courier;
mod couriers;
mod known;
mod parts;
mod receiver;
pub mod saved;
mod sending;

pub use self::courier::Courier;
pub use self::couriers::{Couriers, not_taken, send_rest, why_not_taken};
pub use self::receiver::{receive, refuse};
