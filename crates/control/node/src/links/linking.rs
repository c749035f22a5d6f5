//! Links between hosts: locates the process at the other end, and decides whether it can have a link.
//!
//! The decisions are written against [`Locator`], [`Asker`] and [`Answerer`]: a node implements them with sockets, and a test simulates a
//! thousand nodes in virtual time (`many_peers`).

use std::collections::BTreeSet;

use fabric::attach::LinkRefusal;
use fabric::link::LinkRequest;
use fabric::{Epoch, Vid};
use moves::HostName;
use rpc::wire::{LinkAnswer, LinkQuestion};
use tokio::task::JoinSet;

use crate::agent::Unanswered;
use crate::directory::{Directory, Place};

/// Identifies a connection that a node expects. Each is used once.
pub type Nonce = [u8; 16];

/// A node did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

/// Finds instances.
pub trait Locator: Send + Sync {
    /// The remembered places.
    fn directory(&self) -> &Directory;

    /// The location of `vid` according to the coordinator; `Ok(None)` if the instance is gone.
    fn ask_where(&self, vid: Vid) -> impl Future<Output = Result<Option<Place>, Unanswered>> + Send;
}

/// A node that asks others for links.
pub trait Asker: Locator {
    /// An end of a connection to another host.
    type Socket: Send;

    /// This host.
    fn host(&self) -> &HostName;

    /// The answer of the node of `host`.
    fn ask_node(
        &self,
        host: &HostName,
        question: LinkQuestion,
    ) -> impl Future<Output = Result<LinkAnswer, Unreachable>> + Send;

    /// A connection to the data port of `host`, on which `nonce` was sent.
    fn connect(
        &self,
        host: &HostName,
        data_port: u16,
        nonce: Nonce,
    ) -> impl Future<Output = Result<Self::Socket, Unreachable>> + Send;
}

/// A node that is asked for links to its processes.
pub trait Answerer: Locator {
    /// Whether the wanted process can have links now, and its epoch; `None` if its instance is not here.
    fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>>;

    /// Whether the wanted instance is here, in another fabric.
    fn is_in_other_fabric(&self, request: &LinkRequest) -> bool;

    /// Tells the wanted process to open the link.
    fn nudge(&self, request: &LinkRequest) -> Result<(), LinkRefusal>;

    /// Awaits a connection that sends `nonce`, and returns its port; `None` if too many are awaited.
    fn expect(&self, nonce: Nonce, request: LinkRequest) -> Option<u16>;
}

/// Opens a link to a process on another host, and returns that process' epoch and this end of the link.
pub async fn open<S: Asker>(
    here: &S,
    request: LinkRequest,
    nonce: Nonce,
) -> Result<(Epoch, S::Socket), LinkRefusal> {
    let (host, answer) = ask_about(here, &request, LinkQuestion::Open { request, nonce }).await?;
    let LinkAnswer::Open { epoch, data_port } = answer else { return Err(LinkRefusal::Unreachable) };
    let socket = here.connect(&host, data_port, nonce).await;
    socket.map(|socket| (epoch, socket)).map_err(|Unreachable| LinkRefusal::Unreachable)
}

/// Asks a process on another host to open the link.
pub async fn nudge(here: &impl Asker, request: LinkRequest) -> Result<(), LinkRefusal> {
    match ask_about(here, &request, LinkQuestion::Nudge(request)).await? {
        (_, LinkAnswer::Nudged) => Ok(()),
        _ => Err(LinkRefusal::Unreachable),
    }
}

/// The location of `vid`, from the directory or else from the coordinator.
async fn place_of(here: &impl Locator, vid: Vid) -> Result<Option<Place>, Unanswered> {
    match here.directory().place(vid) {
        Some(place) => Ok(Some(place)),
        None => here.ask_where(vid).await,
    }
}

/// The hosts of the instances that exist. Their places are in the directory afterwards.
pub async fn hosts_of<S: Locator + Clone + 'static>(here: &S, vids: BTreeSet<Vid>) -> BTreeSet<HostName> {
    let mut places = JoinSet::new();
    for vid in vids {
        let here = here.clone();
        places.spawn(async move { place_of(&here, vid).await });
    }
    let places = places.join_all().await;
    places.into_iter().filter_map(|place| Some(place.ok()??.host)).collect()
}

/// Asks the node that has the wanted process; returns its host and its answer. If the remembered place is wrong, it looks it up
/// again, once.
async fn ask_about(
    here: &impl Asker,
    request: &LinkRequest,
    question: LinkQuestion,
) -> Result<(HostName, LinkAnswer), LinkRefusal> {
    let vid = request.to.vid;
    let mut place = place_of(here, vid).await;
    for _ in 0..2 {
        let Place { host, .. } = place.map_err(|_| LinkRefusal::Unreachable)?.ok_or(LinkRefusal::Gone)?;
        let answer = if host == *here.host() {
            LinkAnswer::NotHere
        } else {
            let asked = here.ask_node(&host, question.clone()).await;
            asked.map_err(|_| LinkRefusal::Unreachable)?
        };
        match answer {
            LinkAnswer::Refused(reason) => return Err(reason),
            LinkAnswer::NotHere => place = here.ask_where(vid).await,
            answer => return Ok((host, answer)),
        }
    }
    Err(LinkRefusal::Moving)
}

/// Answers a question of the node of `from` about the link of `request`. That node may ask only on behalf of its own instances.
pub async fn answer(
    here: &impl Answerer,
    from: &HostName,
    request: &LinkRequest,
    nonce: Option<Nonce>,
) -> LinkAnswer {
    if let Err(reason) = check_sender(here, from, request).await {
        return LinkAnswer::Refused(reason);
    }
    let epoch = match here.reachable(request) {
        Some(Ok(epoch)) => epoch,
        Some(Err(reason)) => return LinkAnswer::Refused(reason),
        None if here.is_in_other_fabric(request) => return LinkAnswer::Refused(LinkRefusal::Gone),
        None => return LinkAnswer::NotHere,
    };
    match nonce {
        Some(nonce) => match here.expect(nonce, *request) {
            Some(data_port) => LinkAnswer::Open { epoch, data_port },
            None => LinkAnswer::Refused(LinkRefusal::Unreachable),
        },
        None => here.nudge(request).map_or_else(LinkAnswer::Refused, |()| LinkAnswer::Nudged),
    }
}

/// Whether the asking process' instance is on the host that asks.
async fn check_sender(
    here: &impl Locator,
    from: &HostName,
    request: &LinkRequest,
) -> Result<(), LinkRefusal> {
    let vid = request.from.vid;
    let is_there = |place: &Option<Place>| place.as_ref().is_some_and(|place| place.host == *from);
    if is_there(&here.directory().place(vid)) {
        return Ok(());
    }
    match here.ask_where(vid).await {
        Ok(place) if is_there(&place) => Ok(()),
        Ok(_) => {
            tracing::warn!("{from} asks on behalf of instance {vid}, which is not there");
            Err(LinkRefusal::Gone)
        }
        Err(Unanswered) => Err(LinkRefusal::Unreachable),
    }
}
