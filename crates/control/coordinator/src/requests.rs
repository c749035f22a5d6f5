//! Dispatches requests of the command line.

use std::io;
use std::sync::Arc;

use api::{Event, Failure, Request};
use moves::MoveId;
use moves::journal::Exit;

use crate::client::{Client, User};
use crate::core::{Cluster, State};
use crate::lifecycle::Lifecycle;
use crate::{
    admission, apply, auto, checkpoint, drain, ending, events, exec, failure, group, hosts, improve,
    instances, moving, network, output, removal, restore, telemetry,
};

/// Executes a request and sends the result to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn fulfil(
    cluster: &Arc<Cluster>,
    request: Request,
    user: User,
    client: &mut Client,
) -> io::Result<()> {
    let last = match request {
        Request::Run(request) => instances::run(cluster, *request, user).await,
        Request::List => Ok(Event::Instances(list(&cluster.view()))),
        Request::Hosts => Ok(Event::Hosts(hosts::list(&cluster.view()))),
        Request::Top => Ok(Event::Top(telemetry::show(cluster).await)),
        Request::Improve(request) => improve::find(cluster, request).await,
        Request::Apply(request) => return apply::make(cluster, request, client).await,
        Request::FollowPlan { number } => return apply::follow(cluster, number, client).await,
        Request::CancelPlan => apply::cancel(cluster).await,
        Request::Auto(request) => auto::fulfil(cluster, request).await,
        Request::Network => return network::show::state(cluster, client).await,
        Request::Macs => return network::show::macs(cluster, client).await,
        Request::Available => return network::show::available(cluster, client).await,
        Request::Matrix { window_s } => return network::show::matrix(cluster, window_s, client).await,
        Request::NewToken { lifetime_s } => admission::new_token(cluster, lifetime_s).await,
        Request::Tokens => admission::tokens(cluster),
        Request::RevokeToken { token } => admission::revoke(cluster, token).await,
        Request::RemoveHost { host, lost } => removal::remove(cluster, &host, lost).await,
        Request::ChangeNetwork(change) => network::changes::fulfil(cluster, change).await,
        Request::Move(request) => return moving::make(cluster, &request, client).await,
        Request::FollowMove { name, id } => return moving::follow(cluster, &name, MoveId(id), client).await,
        Request::MoveGroup(request) => return group::make(cluster, &request, client).await,
        Request::Checkpoint(request) => return checkpoint::make(cluster, request, user, client).await,
        Request::Restore(request) => return restore::make(cluster, request, user, client).await,
        Request::Drain(request) => return drain::make(cluster, request, client).await,
        Request::Undrain { host } => drain::undo(cluster, host).await,
        Request::Cancel { name } => return moving::cancel(cluster, &name, client).await,
        Request::Logs { name, follow, after } => {
            return output::logs(cluster, &name, follow, after, client).await;
        }
        Request::Events { after, since_ms, follow } => {
            return events::tell(cluster, after, since_ms, follow, client).await;
        }
        Request::Exec(request) => return exec::exec(cluster, request, user, client).await,
        Request::Wait { name } => wait(cluster, &name, client).await,
        Request::Kill { name, grace_s } => return ending::kill(cluster, &name, grace_s, client).await,
    };
    client.say(&last.unwrap_or_else(Event::Failed)).await
}

fn list(state: &State) -> Vec<api::Instance> {
    let present = state.snapshot().instances.iter();
    let mut all: Vec<_> = present.map(|(vid, instance)| instances::describe(state, *vid, instance)).collect();
    let taken: Vec<_> = all.iter().map(|instance| instance.name.clone()).collect();
    let ended = state.get::<Lifecycle>().ended().filter(|ended| !taken.contains(&ended.instance.name));
    all.extend(ended.map(instances::of_ended));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

async fn wait(cluster: &Cluster, name: &str, client: &mut Client) -> Result<Event, Failure> {
    loop {
        let mut ended = std::pin::pin!(cluster.signals().ended.notified());
        ended.as_mut().enable();
        if let Some(event) = ended_as(&cluster.view(), name)? {
            return Ok(event);
        }
        tokio::select! {
            () = ended => {}
            () = client.gone() => return Err(Failure::new("the client has disconnected", "")),
        }
    }
}

/// The event of the instance's end, if it has ended.
fn ended_as(state: &State, name: &str) -> Result<Option<Event>, Failure> {
    if state.find(name).is_some() {
        return Ok(None);
    }
    let ended = state.get::<Lifecycle>().ended().find(|ended| ended.instance.name == name);
    match ended.map(|ended| &ended.exit) {
        None => Err(failure::no_instance(name)),
        Some(Exit::Code(code)) => Ok(Some(Event::Exited { code: *code })),
        Some(Exit::Lost { reason }) => Err(failure::lost(name, reason)),
        Some(Exit::NotStarted) => Err(failure::lost(name, failure::NOT_STARTED)),
    }
}
