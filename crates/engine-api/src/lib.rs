//! What a node needs of whatever runs its instances.
//!
//! An [`Engine`] runs instances of one or several kinds on its host. A move has two sides: the source's engine gives a [`Source`], the
//! destination's a [`Destination`], and the node carries between them what they give it, without knowing what that means:
//!
//! ```text
//! source's engine                       nodes                        destination's engine
//!    │ check ──▶ Report{needs} ─────────────────────────────────────▶ verify(needs)     any blocker: no move
//!    │                                                                prepare           place, link down, room
//!    │ precopy ──▶ MemorySink ══ what the destination lacks ════════▶ ImageSink         the instance runs on
//!    │ ready                                                          │
//!    │ suspend ──▶ MemorySink, image files ═════════════════════════▶ ImageSink         it stands still
//!    │    ◀──────────────────── Channels, as many as wanted ────────────────▶           at any time, both ways
//!    ┊                                                                restore ──▶ held  nothing runs yet
//!    ┊            the move commits, or rolls back
//!    │ Engine::destroy (committed)                                    release ──▶ running
//!    │ resume (rolled back) ──▶ running                               abort
//! ```
//!
//! In a post-copy move a part of the memory stays at the source. From the restore on the destination asks for it by its [`Postcopy`], and the
//! source answers from its [`LeftMemory`], until [`Postcopy::finish`]; only then the source destroys its stopped instance.
//!
//! Every call blocks, for a bounded time, and may be made from any thread that may block. Calls for different
//! instances run side by side; calls for one instance are the caller's to order. A call that the
//! instance's state does not allow is refused.
//!
//! * [`engine`]: the engine of a host, and one instance there.
//! * [`source`], [`destination`]: the two sides of a move.
//! * [`memory`]: memory on its way. [`channels`]: byte channels beside it. [`postcopy`]: memory that comes after the instance.
//! * [`needs`]: what pins an instance to its host, and what it needs at its destination.
//! * [`watch`]: how a long call is followed and ended early. [`error`]: what goes wrong, in words.
//! * [`wiring`]: what an instance's network device is plugged into.

pub mod channels;
pub mod destination;
pub mod engine;
pub mod error;
pub mod memory;
pub mod needs;
pub mod postcopy;
pub mod source;
pub mod watch;
pub mod wiring;

pub use channels::Channels;
pub use destination::{Coming, Destination, ImageSink};
pub use engine::{Capabilities, Driver, Engine, Local, Recovered, Running, State};
pub use error::{Error, Result};
pub use memory::{MemorySink, PAGE};
pub use needs::{Needs, Report, Shortage};
pub use postcopy::{Fetched, LeftMemory, MAX_PAGES, Postcopy, PostcopyEvent, Wanted};
pub use source::{Dump, Intent, Outgoing, Source};
pub use watch::{Phase, Phases, Watch};
