//! What the command line can ask for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure, Host, MoveRequest, Request};
use moves::HostName;
use moves::coordinator::MoveRequest as Wish;
use moves::journal::Exit;
use rpc::wire::Question;
use tokio::sync::mpsc;

use crate::cluster::{Cluster, Inner};
use crate::follow::Follow;
use crate::server::{Client, User};
use crate::{failure, instances, output};

/// How long a host may take to end an instance.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// Fulfils a request, and tells the client.
///
/// # Errors
/// If the client cannot be told.
pub async fn fulfil(
    cluster: &Arc<Cluster>,
    request: Request,
    user: User,
    client: &mut Client,
) -> io::Result<()> {
    let last = match request {
        Request::Run(request) => instances::run(cluster, request, user).await,
        Request::List => Ok(Event::Instances(list(&cluster.lock()))),
        Request::Hosts => Ok(Event::Hosts(hosts(&cluster.lock()))),
        Request::Move(request) => return follow_move(cluster, request, client).await,
        Request::Cancel { name } => cancel(cluster, &name),
        Request::Logs { name, follow } => return output::logs(cluster, &name, follow, client).await,
        Request::Wait { name } => wait(cluster, &name, client).await,
        Request::Kill { name } => kill(cluster, &name).await,
    };
    client.say(&last.unwrap_or_else(Event::Failed)).await
}

fn list(inner: &Inner) -> Vec<api::Instance> {
    let present = inner.machine.image().instances.iter();
    let mut all: Vec<_> = present.map(|(vid, instance)| instances::describe(inner, *vid, instance)).collect();
    let taken: Vec<_> = all.iter().map(|instance| instance.name.clone()).collect();
    let ended = inner.ended.iter().filter(|ended| !taken.contains(&ended.instance.name));
    all.extend(ended.map(instances::of_ended));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

fn hosts(inner: &Inner) -> Vec<Host> {
    let describe = |(name, address): (&HostName, &std::net::SocketAddr)| Host {
        name: name.to_string(),
        address: address.to_string(),
        up: inner.nodes.contains_key(name),
        instances: instances::instances_on(inner, name),
    };
    inner.hosts.iter().map(describe).collect()
}

async fn follow_move(cluster: &Cluster, request: MoveRequest, client: &mut Client) -> io::Result<()> {
    let mut events = match begin_move(cluster, &request) {
        Ok(events) => events,
        Err(failure) => return client.say(&Event::Failed(failure)).await,
    };
    while let Some(event) = events.recv().await {
        client.say(&event).await?;
    }
    Ok(())
}

fn begin_move(cluster: &Cluster, request: &MoveRequest) -> Result<mpsc::UnboundedReceiver<Event>, Failure> {
    let mut inner = cluster.lock();
    let (vid, instance) = inner.find(&request.name).ok_or_else(|| failure::no_instance(&request.name))?;
    let (source, epoch) = (instance.host.clone(), instance.epoch);
    let destination = HostName::new(&request.host).map_err(|_| failure::no_host(&request.host))?;
    if source != destination {
        instances::connected_host(&inner, &request.host)?;
    }
    let wish = Wish { vid, destination: destination.clone(), dry_run: request.dry_run };
    let begun = inner.machine.begin(wish, cluster.now());
    let (id, outputs) = begun.map_err(|refusal| failure::of_refusal(&refusal, &request.name))?;
    let (sender, events) = mpsc::unbounded_channel();
    let places = (source.as_str(), destination.as_str());
    inner.follows.insert(id, Follow::new(sender, &request.name, epoch, places));
    cluster.perform(&mut inner, outputs);
    Ok(events)
}

fn cancel(cluster: &Cluster, name: &str) -> Result<Event, Failure> {
    let mut inner = cluster.lock();
    let (vid, _) = inner.find(name).ok_or_else(|| failure::no_instance(name))?;
    // Of several, the last one is the one that is not over for the user.
    let id = inner.machine.moves().filter(|view| view.record.vid == vid).map(|view| view.id).max();
    let id = id.ok_or_else(|| failure::not_moving(name))?;
    let outputs =
        inner.machine.cancel(id, cluster.now()).map_err(|error| failure::of_too_late(error, name))?;
    cluster.perform(&mut inner, outputs);
    Ok(Event::Cancelling)
}

async fn wait(cluster: &Cluster, name: &str, client: &mut Client) -> Result<Event, Failure> {
    loop {
        let mut ended = std::pin::pin!(cluster.ended.notified());
        ended.as_mut().enable();
        if let Some(event) = ended_as(&cluster.lock(), name)? {
            return Ok(event);
        }
        tokio::select! {
            () = ended => {}
            () = client.gone() => return Err(Failure::new("the client has gone away", "")),
        }
    }
}

/// How the instance ended, if it has.
fn ended_as(inner: &Inner, name: &str) -> Result<Option<Event>, Failure> {
    if inner.find(name).is_some() {
        return Ok(None);
    }
    let ended = inner.ended.iter().find(|ended| ended.instance.name == name);
    match ended.map(|ended| &ended.exit) {
        None => Err(failure::no_instance(name)),
        Some(Exit::Code(code)) => Ok(Some(Event::Exited { code: *code })),
        Some(Exit::Lost { reason }) => Err(failure::lost(name, reason)),
    }
}

async fn kill(cluster: &Cluster, name: &str) -> Result<Event, Failure> {
    let (vid, host) = {
        let inner = cluster.lock();
        match inner.find(name) {
            Some((vid, instance)) => (vid, instance.host.clone()),
            None if inner.ended.iter().any(|ended| ended.instance.name == name) => return Ok(Event::Done),
            None => return Err(failure::no_instance(name)),
        }
    };
    cluster.ask(&host, Question::Kill { vid }, KILL_LIMIT).await?;
    Ok(Event::Done)
}
