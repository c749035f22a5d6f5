use std::future::Future;
use std::net::TcpStream;
use std::pin::Pin;

use fabric::attach::{LinkRefusal, NotStarted};
use fabric::directory::{Member, Request};
use fabric::link::LinkRequest;
use fabric::session::{Server, Word};
use fabric::{Epoch, InstanceId};
use instance::Roster;

/// This end of a link to another host.
#[derive(Debug)]
pub struct RemoteLink {
    /// The peer's epoch, as reported by its host.
    pub epoch: Epoch,
    /// The connected socket, which has carried no data of the link yet.
    pub socket: TcpStream,
}

/// The future result of a call to another host.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, LinkRefusal>> + Send>>;

/// Becomes ready when a message is forwarded, or lost.
pub type Passing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The interface of a broker to processes on other hosts.
pub trait Peers: Send + Sync + 'static {
    /// Opens a link to a process on another host.
    fn open(&self, request: LinkRequest) -> Answer<RemoteLink>;
    /// Tells a process on another host that `request.from` wants it to open a link.
    fn nudge(&self, request: LinkRequest) -> Answer<()>;
    /// Asks the directory of `asker`'s fabric, which answers by [`Broker::answer`](crate::Broker::answer). A request
    /// that cannot be forwarded is dropped; the process repeats it after [`Broker::ask_again`](crate::Broker::ask_again).
    fn ask_directory(&self, asker: Member, number: u64, request: Request);
    /// Forwards a message of an instance's sessions; the broker reads no further one until that is done. It is lost if there is
    /// no connection; the instance repeats it after [`Broker::ask_again`](crate::Broker::ask_again).
    fn sessions_say(&self, instance: InstanceId, server: Server, word: Word) -> Passing;
}

/// [`Peers`] without other hosts.
#[derive(Clone, Copy, Debug)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn open(&self, _: LinkRequest) -> Answer<RemoteLink> {
        Box::pin(async { Err(LinkRefusal::Gone) })
    }

    fn nudge(&self, _: LinkRequest) -> Answer<()> {
        Box::pin(async { Err(LinkRefusal::Gone) })
    }

    fn ask_directory(&self, _: Member, _: u64, _: Request) {}

    fn sessions_say(&self, _: InstanceId, _: Server, _: Word) -> Passing {
        Box::pin(std::future::ready(()))
    }
}

/// Receives reports about a broker's instances. Calls are made with the broker's lock held: they
/// must be short, and must not call the broker.
pub trait Observer: Send + Sync + 'static {
    /// Processes came or went. A process is welcomed only after this has returned.
    fn roster_changed(&self, instance: InstanceId, roster: &Roster);
    /// The command ended. The instance's first process ends only after this has returned.
    fn exited(&self, instance: InstanceId, code: i32);
    /// The command runs, or could not be started. In the latter case the instance's first process ends
    /// only after this has returned.
    fn started(&self, instance: InstanceId, start: Result<(), NotStarted>);
}

/// An [`Observer`] that ignores all reports.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn roster_changed(&self, _: InstanceId, _: &Roster) {}
    fn exited(&self, _: InstanceId, _: i32) {}
    fn started(&self, _: InstanceId, _: Result<(), NotStarted>) {}
}
