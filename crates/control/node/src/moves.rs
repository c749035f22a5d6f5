//! Moves of instances: what the state machine orders, carried out with engine and broker.
//!
//! * [`operations`]: carries out the orders. [`source`]: the operations of the host that an instance leaves; [`destination`]: those of the
//!   host that it comes to. [`outcome`]: what they have in common.
//! * [`sides`]: the sides of moves that are open here. [`channels`]: byte channels between the engines of a move.
//! * [`precopy`], [`rounds`]: memory that is sent while the instance runs. [`images`]: the transfer of images. [`postcopy`]: memory that is
//!   fetched afterwards. [`meter`], [`pacing`]: the progress and the rate of both.
//! * [`receptions`]: connections of moves that come here.

mod channels;
mod destination;
mod images;
mod meter;
mod operations;
mod outcome;
mod pacing;
mod postcopy;
mod precopy;
mod receptions;
mod rounds;
mod sides;
mod source;

pub use self::destination::Destination;
pub use self::images::{Couriers, saved};
pub use self::operations::Operations;
pub use self::postcopy::{Fetchings, MemoryServer};
pub use self::precopy::Precopy;
pub use self::receptions::Receptions;
pub use self::sides::Sides;
pub use self::source::Source;
