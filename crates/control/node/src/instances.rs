//! The instances of this host.
//!
//! * [`live`]: what the node knows about each. [`files`]: their files beside the store. [`engines`]: the engines by kinds of workload.
//! * [`running`]: instances that run: added to the broker, watched until they end. [`recovery`]: finds them after a restart.
//! * [`starting`]: starts an instance. [`this_host`]: whether this host can take one. [`starts`]: reports that its command runs.
//! * [`departing`]: instances whose remains are being removed. [`ended`]: the output of those that have ended. [`output`]: answers
//!   questions for the output.
//! * [`guests`]: connects programs in virtual machines to the broker. [`machines`]: reports how this host runs virtual machines.
//! * [`observer`]: reports of the broker. [`shortage`]: processes that the kernel has killed for lack of memory.

mod departing;
mod ended;
mod engines;
mod files;
mod guests;
mod live;
mod machines;
mod observer;
mod output;
mod recovery;
mod running;
mod shortage;
mod starting;
mod starts;
mod this_host;

pub use self::ended::Ended;
pub use self::engines::{Engines, blocking};
pub use self::files::StateFiles;
pub use self::live::{Live, LiveInstances};
pub use self::observer::BrokerObserver;
pub use self::output::Outputs;
pub use self::recovery::recover;
pub use self::running::Instances;
pub use self::shortage::Shortages;
pub use self::starting::{Starter, unreadable};
pub use self::starts::Starts;
pub use self::this_host::ThisHost;
