//! Sessions of `transhume exec`: connects clients with the commands that they run in instances.
//!
//! Each is a [`Session`] between a client and the instance's first process. Nodes and connections
//! in between may fail and reconnect. When a coordinator ends, the sessions of its clients end; its successor ends what remains of them in the instances.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::{Event, ExecLine, ExecRequest, Failure, MAX_LINE};
use fabric::Vid;
use fabric::session::{MAX_SESSIONS, Order, Server, SessionId, ToSession, Word};
use instance::{Blueprint, Kind, Workload};
use moves::HostName;
use moves::journal::{Instance, Record};
use rpc::Outbox;
use rpc::wire::FromCoordinator;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::client::{Client, User};
use crate::core::{Base, Cluster, Command, Feature, Owner, Recorded, State};
use crate::lifecycle::Lifecycle;
use crate::session::{Session, TooMuch};
use crate::{failure, moving};

/// Time limit for an instance to start a command: long enough for a move.
const START_LIMIT: Duration = Duration::from_secs(120);

/// The open sessions of all clients.
#[derive(Default)]
pub struct Sessions(HashMap<SessionId, Arc<Open>>);

impl Feature for Sessions {
    fn recorded(&mut self, recorded: &Recorded<'_>, _: &Base) {
        if let (Record::InstanceEnded { vid, .. }, Some(instance)) =
            (recorded.record, &recorded.removed.instance)
        {
            self.end_of(*vid, &instance.name);
        }
    }
}

impl Sessions {
    fn of(&self, vid: Vid) -> impl Iterator<Item = (&SessionId, &Arc<Open>)> {
        self.0.iter().filter(move |(_, open)| open.vid == vid)
    }

    /// Fails the sessions of the instance `name`, which has ended.
    fn end_of(&self, vid: Vid, name: &str) {
        for (_, open) in self.of(vid) {
            open.change(|session| session.fail(failure::ended_meanwhile(name)));
        }
    }
}

/// A session with the notification of its changes.
struct Open {
    vid: Vid,
    /// Who serves it.
    server: Server,
    session: Mutex<Session>,
    for_client: Notify,
    for_instance: Notify,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().expect("nothing panics while it is held")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        let changed = change(&mut self.lock());
        self.for_client.notify_one();
        self.for_instance.notify_one();
        changed
    }
}

/// Runs a command in an instance until the client disconnects, and sends the client its output and its end.
///
/// # Errors
/// If sending to the client fails.
pub async fn exec(
    cluster: &Arc<Cluster>,
    request: ExecRequest,
    user: User,
    client: &mut Client,
) -> io::Result<()> {
    let begun = cluster.edit(move |state| begin(state, request, user)).await;
    let (id, open) = match begun {
        Ok(begun) => begun,
        Err(failure) => return client.say(&Event::Failed(failure)).await,
    };
    let _left_at_the_end = Leaving { cluster, id, vid: open.vid, server: open.server };
    let (reader, writer) = client.parts();
    tokio::select! {
        told = tell_client(&open, writer) => told,
        heard = hear_client(&open, reader) => heard,
        never = tell_instance(cluster, &open, id) => never,
        never = limit_start(cluster, &open) => never,
    }
}

fn begin(state: &mut State, request: ExecRequest, user: User) -> Result<(SessionId, Arc<Open>), Failure> {
    let name = &request.name;
    let (vid, host) = match state.find(name) {
        Some((_, instance)) if !may_exec(instance, &request, user) => return Err(failure::not_allowed(name)),
        Some((_, instance)) if request.console && kind(instance) != Some(Kind::Vm) => {
            return Err(failure::no_console(name));
        }
        Some((vid, instance)) => (vid, instance.host.clone()),
        None if state.get::<Lifecycle>().has_ended(name) => return Err(failure::ended(name)),
        None => return Err(failure::no_instance(name)),
    };
    moving::check_free(state, vid, name, &host)?;
    if state.get::<Sessions>().of(vid).count() >= MAX_SESSIONS {
        return Err(failure::too_many_sessions(name));
    }
    let session = Session::new(name, order(&request)?);
    let server = if request.console { Server::Console } else { Server::Commands };
    let id = new_id()?;
    let (for_client, for_instance) = (Notify::new(), Notify::new());
    let open = Arc::new(Open { vid, server, session: Mutex::new(session), for_client, for_instance });
    state.get_mut::<Sessions>().0.insert(id, open.clone());
    Ok((id, open))
}

/// The instance's init process starts commands as root, so users other than root may only run commands in their own instances, as themselves.
fn may_exec(instance: &Instance, request: &ExecRequest, user: User) -> bool {
    let is_own = || {
        let spec = Blueprint::decode(&instance.spec).ok().map(|blueprint| blueprint.spec);
        spec.is_some_and(
            |spec| matches!(spec.workload, Workload::Process(program) if program.user == user.user),
        )
    };
    user.user == 0 || request.user.is_none() && is_own()
}

fn kind(instance: &Instance) -> Option<Kind> {
    Blueprint::decode(&instance.spec).ok().map(|blueprint| blueprint.spec.workload.kind())
}

/// A session number that is unique, also among sessions of previous coordinators.
fn new_id() -> Result<SessionId, Failure> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(format!("cannot get random bytes from the kernel: {error}"), "try again later")
    })?;
    Ok(SessionId(u64::from_ne_bytes(bytes)))
}

fn order(request: &ExecRequest) -> Result<Order, Failure> {
    if request.for_own || request.console {
        return Ok(Order { input: true, for_own: true, ..Order::default() });
    }
    let ExecRequest { command, environment, directory, user, input, terminal, .. } = request.clone();
    if command.first().is_none_or(String::is_empty) {
        return Err(failure::no_command());
    }
    let input = input || terminal.is_some();
    let order = Order { command, environment, directory, user, input, terminal, ..Order::default() };
    let words = order.command.iter().chain(order.environment.iter().flat_map(|(name, value)| [name, value]));
    if words.chain(&order.directory).any(|word| word.contains('\0')) {
        return Err(failure::with_a_zero());
    }
    if order.size() > Order::MAX { Err(failure::order_too_large(order.size())) } else { Ok(order) }
}

/// Ends a session whose client has disconnected.
struct Leaving<'a> {
    cluster: &'a Cluster,
    id: SessionId,
    vid: Vid,
    server: Server,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let (vid, server, id) = (self.vid, self.server, self.id);
        self.cluster.post(Leave { vid, server, id });
    }
}

/// The end of a session whose client has gone away.
struct Leave {
    vid: Vid,
    server: Server,
    id: SessionId,
}

impl Command for Leave {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        owner.edit(|state| state.get_mut::<Sessions>().0.remove(&self.id));
        // If the instance cannot be reached now, it announces the session when it reconnects.
        leave(&owner.view(), self.vid, self.server, self.id);
    }
}

fn leave(state: &State, vid: Vid, server: Server, id: SessionId) {
    if let Some(outbox) = way_to(state, vid) {
        let _ = outbox.send(&FromCoordinator::Session { vid, server, id, message: ToSession::Leave });
    }
}

/// The connection to the node of the instance's host, if it is connected.
fn way_to(state: &State, vid: Vid) -> Option<Outbox<FromCoordinator>> {
    let host = &state.snapshot().instances.get(&vid)?.host;
    state.links().get(host).map(|node| node.outbox.clone())
}

/// Sends pending events to the client, until the last one.
async fn tell_client(open: &Open, writer: &mut (impl AsyncWriteExt + Unpin)) -> io::Result<()> {
    loop {
        let event = open.lock().next_event();
        let Some(event) = event else {
            open.for_client.notified().await;
            continue;
        };
        let line = api::to_line(&event).map_err(io::Error::other)?;
        writer.write_all(line.as_bytes()).await?;
        if event.is_last() {
            return Ok(());
        }
        open.for_instance.notify_one();
    }
}

/// Handles the client's messages until it disconnects.
async fn hear_client(open: &Open, mut reader: impl AsyncBufRead + Unpin) -> io::Result<()> {
    loop {
        let mut line = String::new();
        (&mut reader).take(MAX_LINE as u64 + 1).read_line(&mut line).await?;
        if line.is_empty() {
            return Ok(());
        }
        let heard = api::from_line::<ExecLine>(&line).map_err(io::Error::other)?;
        let taken = open.change(|session| match heard {
            ExecLine::Input(bytes) => session.give(&bytes.0),
            ExecLine::InputEnd => {
                session.end_input();
                Ok(())
            }
            ExecLine::Signal(signal) => session.signal(signal),
            ExecLine::Window(size) => session.resize(size),
        });
        if let Err(TooMuch) = taken {
            open.change(|session| session.fail(failure::client_says_too_much()));
        }
    }
}

/// Sends pending messages to the instance. Lost messages are sent again when the instance reports its state.
async fn tell_instance(cluster: &Cluster, open: &Open, id: SessionId) -> io::Result<()> {
    loop {
        let message = open.lock().next_message();
        let Some(message) = message else {
            open.for_instance.notified().await;
            continue;
        };
        let way = way_to(&cluster.view(), open.vid);
        if let Some(outbox) = way {
            let message = FromCoordinator::Session { vid: open.vid, server: open.server, id, message };
            let _ = outbox.send_in_turn(&message).await;
        }
    }
}

/// Fails a session whose command the instance does not start in time.
async fn limit_start(cluster: &Cluster, open: &Open) -> io::Result<()> {
    sleep(START_LIMIT).await;
    if !open.lock().is_known() {
        let host = cluster.view().snapshot().instances.get(&open.vid).map(|instance| instance.host.clone());
        open.change(|session| {
            session.fail(host.map_or_else(failure::coordinator_ends, |host| failure::host_silent(&host)))
        });
    }
    pending().await
}

/// Handles a session message of an instance, if the instance is on `host`.
pub fn heard(state: &State, host: &HostName, vid: Vid, server: Server, word: Word) {
    let is_there = state.snapshot().instances.get(&vid).is_some_and(|instance| instance.host == *host);
    match word {
        _ if !is_there => {}
        Word::One(id, message) => {
            if let Some(open) =
                state.get::<Sessions>().0.get(&id).filter(|open| open.vid == vid && open.server == server)
            {
                open.change(|session| session.hear(message));
            }
        }
        Word::All(states) => {
            for (id, open) in state.get::<Sessions>().of(vid).filter(|(_, open)| open.server == server) {
                let state = states.iter().find(|(known, _)| known == id).map(|(_, state)| *state);
                open.change(|session| session.go_on(state));
            }
            let is_left = |id: &SessionId| !state.get::<Sessions>().0.contains_key(id);
            states.iter().map(|(id, _)| *id).filter(is_left).for_each(|id| leave(state, vid, server, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fabric::{Epoch, FabricId, NetworkKind};
    use instance::{Container, InstanceName, InstanceSpec, Network, Program, Root, Workload};
    use moves::placement::Placement;

    use super::*;

    fn instance(user: u32, is_container: bool) -> Instance {
        let name = "job".to_owned();
        let network = Network { mac: [2; 6], address: Ipv4Addr::LOCALHOST, prefix: 8, mtu: 1500 };
        let program = Program { user, group: user, ..Program::new(["true"]) };
        let workload = if is_container {
            let root = Root::Directory("/".into());
            Workload::Container(Container { program, root, config: "{}".into(), rdma: true })
        } else {
            Workload::Process(program)
        };
        let spec = InstanceSpec {
            name: InstanceName::new(&name).unwrap(),
            network,
            network_kind: NetworkKind::Bridge,
            workload,
        };
        let (fabric, epoch) = (FabricId(1), Epoch(0));
        let host = HostName::new("a").unwrap();
        let spec = Blueprint { fabric, spec }.encode().unwrap();
        Instance { name, fabric, group: None, placement: Placement::default(), host, epoch, spec }
    }

    #[test]
    fn only_root_may_run_a_command_as_another_user() {
        let request = |user| ExecRequest {
            name: "job".into(),
            command: vec!["true".into()],
            environment: Vec::new(),
            directory: None,
            user,
            input: false,
            ..ExecRequest::default()
        };
        let (root, somebody) = (User { user: 0, group: 0 }, User { user: 7, group: 7 });
        assert!(may_exec(&instance(7, false), &request(Some((0, 0))), root));
        assert!(may_exec(&instance(7, false), &request(None), somebody));
        assert!(!may_exec(&instance(7, false), &request(Some((7, 0))), somebody));
        assert!(!may_exec(&instance(8, false), &request(None), somebody));
        assert!(!may_exec(&instance(7, true), &request(None), somebody));
    }
}
