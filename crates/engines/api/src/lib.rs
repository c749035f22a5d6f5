//! The interface between a node and the engines that run its instances.
//!
//! An [`Engine`] runs instances of one or several kinds on its host. A move has two sides: the source's engine provides a [`Source`], the
//! destination's engine a [`Destination`]. The node carries the data between them, and knows nothing of its meaning:
//!
//! ```text
//! source's engine                       nodes                        destination's engine
//!    │ check ──▶ Report{needs} ─────────────────────────────────────▶ verify(needs)     any blocker: no move
//!    │                                                                prepare           namespace, link down, room
//!    │ precopy ──▶ MemorySink ══ pages that the destination lacks ══▶ ImageSink         the instance runs on
//!    │ ready                                                          │
//!    │ suspend ──▶ MemorySink, image files ═════════════════════════▶ ImageSink         it is stopped
//!    │    ◀──────────────────── Channels, up to 16 ─────────────────────────▶           at any time, both ways
//!    ┊                                                                restore ──▶ held  nothing runs yet
//!    ┊            the move commits, or rolls back
//!    │ Engine::destroy (committed)                                    release ──▶ running
//!    │ resume (rolled back) ──▶ running                               abort
//! ```
//!
//! In a post-copy move a part of the memory stays at the source. From the restore on, the destination's [`Postcopy`] requests missing
//! pages, and the source's [`LeftMemory`] supplies them. After [`Postcopy::finish`], the source destroys its stopped instance.
//!
//! Rules for all calls:
//!
//! * A call may block its thread. A call with a [`Watch`] ends early when that cancels. Only [`Postcopy::next`], and
//!   [`Channels::connect`] at the destination, may block without a limit.
//! * An engine accepts calls for different instances at the same time. The node makes the calls for one instance one after the other,
//!   except for [`Local::wait`], [`Local::shortage`], and the methods of [`Channels`], [`Postcopy`] and [`LeftMemory`].
//! * An engine refuses a call that the [`State`] of the instance does not allow, and changes nothing.
//! * An error is one sentence for the user, with a remedy where there is one: see [`Error`].
//!
//! Modules:
//!
//! * [`engine`]: the engine of a host, and one instance there.
//! * [`source`], [`destination`]: the two sides of a move.
//! * [`memory`]: memory that leaves the source. [`channels`]: byte streams beside it. [`postcopy`]: memory that follows the instance.
//! * [`needs`]: the result of a check: blockers, and needs at the destination.
//! * [`watch`]: progress and cancellation of a long call. [`error`]: errors and their remedies.
//! * [`guest`]: the port to the agent in a virtual machine.
//! * [`wiring`]: the network that an instance's device is plugged into.

pub mod channels;
pub mod destination;
pub mod engine;
pub mod error;
pub mod guest;
pub mod memory;
pub mod needs;
pub mod postcopy;
pub mod source;
pub mod watch;
pub mod wiring;

pub use channels::Channels;
pub use destination::{Coming, Destination, ImageSink};
pub use engine::{Capabilities, Driver, Engine, Local, MachineSupport, Recovered, Running, State};
pub use error::{Error, Result};
pub use guest::Guest;
pub use memory::{MemorySink, PAGE};
pub use needs::{Needs, Report, Shortage};
pub use postcopy::{Fetched, LeftMemory, MAX_PAGES, Postcopy, PostcopyEvent, Wanted};
pub use source::{Dump, Intent, Outgoing, Source};
pub use watch::{Outage, Phase, Phases, Watch};
