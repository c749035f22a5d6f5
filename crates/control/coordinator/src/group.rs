//! Moves of groups: all members arrive, or none.

use std::collections::BTreeMap;
use std::io;

use api::{Event, Failure, GroupMove, MoveGroupRequest, PlannedMove};
use fabric::Vid;
use moves::{Coordinator, HostName, MoveId};
use planner::{Assignment, Goal};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::core::{Cluster, Command, Owner, State};
use crate::follow::Events;
use crate::{cooling, failure, loads, moving, planning};

/// A member with its source and its destination.
struct Member {
    vid: Vid,
    name: String,
    from: HostName,
    to: HostName,
}

/// Moves the members of a group to some hosts, and reports progress to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn make(cluster: &Cluster, request: &MoveGroupRequest, client: &mut Client) -> io::Result<()> {
    if !wait_for_starts(cluster, &request.group, client).await {
        return Ok(());
    }
    if request.dry_run {
        let plan = check(cluster, request).await;
        return client.say(&plan.map_or_else(Event::Failed, Event::Plan)).await;
    }
    match cluster.run(BeginGroup(request.clone())).await {
        Ok(moves) => follow(moves, client).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Waits until all members of `group` that are starting run; returns `false` if the client disconnects.
pub async fn wait_for_starts(cluster: &Cluster, group: &str, client: &mut Client) -> bool {
    let names = names(&cluster.view(), group);
    for name in names {
        tokio::select! {
            () = moving::wait_for_start(cluster, &name) => {}
            () = client.gone() => return false,
        }
    }
    true
}

/// Reports the progress of moves that are made together to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn follow(moves: Vec<(GroupMove, Events)>, client: &mut Client) -> io::Result<()> {
    let (moves, events): (Vec<_>, Vec<_>) = moves.into_iter().unzip();
    client.say(&Event::GroupBegun { moves }).await?;
    let (user, mut waiting) = mpsc::unbounded_channel();
    let ends = ends_of(events, &user);
    drop(user);
    while let Some(event) = waiting.recv().await {
        client.say(&event).await?;
    }
    for report in reports(ends).await {
        client.say(&report).await?;
    }
    client.say(&Event::Done).await
}

/// The last event of each move. Waiting messages go to `user` meanwhile.
pub fn ends_of(moves: Vec<Events>, user: &UnboundedSender<Event>) -> Vec<JoinHandle<Option<Event>>> {
    let follow = |events| {
        let user = user.clone();
        tokio::spawn(async move { moving::last_of(events, &user).await })
    };
    moves.into_iter().map(follow).collect()
}

/// Waits for the reports of moves.
pub async fn reports(ends: Vec<JoinHandle<Option<Event>>>) -> Vec<Event> {
    let mut reports = Vec::new();
    for end in ends {
        if let Ok(Some(Event::Moved(report))) = end.await {
            reports.push(Event::MoveOver(report));
        }
    }
    reports
}

/// The move of a group.
struct BeginGroup(MoveGroupRequest);

impl Command for BeginGroup {
    type Reply = Result<Vec<(GroupMove, Events)>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let members = validate(&owner.view(), owner.machine(), &self.0)?;
        if members.is_empty() {
            return Ok(Vec::new());
        }
        owner.ready().await?;
        let destinations: BTreeMap<_, _> =
            members.iter().map(|member| (member.vid, member.to.clone().into())).collect();
        let begun = owner.decide(|machine, now| machine.begin_together(destinations, now));
        let (ids, outputs) = begun.map_err(|(vid, refusal)| {
            let name = members.iter().find(|member| member.vid == vid).map(|member| member.name.as_str());
            failure::of_refusal(&refusal, name.unwrap_or_default())
        })?;
        let begun = ids.into_iter().filter_map(|id| listen(owner, id)).collect();
        owner.perform(outputs).await;
        Ok(begun)
    }
}

/// The members that have to move, if all of them can.
fn validate(
    state: &State,
    machine: &Coordinator,
    request: &MoveGroupRequest,
) -> Result<Vec<Member>, Failure> {
    let members = movers(state, machine, request)?;
    for member in &members {
        moving::check_free(state, member.vid, &member.name, &member.from)?;
    }
    if !request.force {
        cooling::check(state, members.iter().map(|member| (member.vid, member.name.as_str())))?;
    }
    Ok(members)
}

/// A dry run of a group's move.
struct PlanGroup(MoveGroupRequest);

impl Command for PlanGroup {
    type Reply = Result<Vec<Member>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        movers(&owner.view(), owner.machine(), &self.0)
    }
}

/// The event stream of a move that has just begun.
pub fn listen(owner: &Owner, id: MoveId) -> Option<(GroupMove, Events)> {
    let image = owner.machine().snapshot();
    let record = image.moves.get(&id)?;
    let instance = image.instances.get(&record.vid)?;
    let (name, group) = (instance.name.clone(), instance.group.clone());
    let begun = GroupMove { name, id: id.0, to: record.destination.to_string() };
    let events = moving::follow_new(owner, &begun.name, id, group.as_deref())?;
    Some((begun, events))
}

/// The blockers of each member.
async fn check(cluster: &Cluster, request: &MoveGroupRequest) -> Result<Vec<PlannedMove>, Failure> {
    let members = cluster.run(PlanGroup(request.clone())).await?;
    let mut plan = Vec::new();
    for Member { vid, name, to, .. } in members {
        let obstacles = moving::check(cluster, &name, &to, request.force).await;
        let to = obstacles.is_empty().then(|| to.to_string());
        let cools_down_for_s = cooling::cools_down_for(&cluster.view(), vid);
        let (bytes, total_us, blackout_us) = (None, None, None);
        plan.push(PlannedMove { name, bytes, total_us, blackout_us, cools_down_for_s, to, obstacles });
    }
    // One blocker stops the whole group.
    if plan.iter().any(|planned| !planned.obstacles.is_empty()) {
        plan.iter_mut().for_each(|planned| planned.to = None);
    }
    Ok(plan)
}

fn names(state: &State, group: &str) -> Vec<String> {
    members(state, group).into_iter().map(|(_, name, _)| name).collect()
}

/// The instances of `group` and their hosts, in the order of their names.
pub fn members(state: &State, group: &str) -> Vec<(Vid, String, HostName)> {
    let all = state.snapshot().instances.iter();
    let of_group = all.filter(|(_, instance)| instance.group.as_deref() == Some(group));
    let mut members: Vec<_> =
        of_group.map(|(vid, instance)| (*vid, instance.name.clone(), instance.host.clone())).collect();
    members.sort_by(|(_, one, _), (_, other, _)| one.cmp(other));
    members
}

/// The members that are not on one of the requested hosts, each with a destination. Fails if a member moves, or if part of its memory
/// is on another host.
fn movers(state: &State, machine: &Coordinator, request: &MoveGroupRequest) -> Result<Vec<Member>, Failure> {
    let members = members(state, &request.group);
    if members.is_empty() {
        return Err(failure::no_group(&request.group));
    }
    for (vid, name, _) in &members {
        machine.check_settled(*vid).map_err(|refusal| failure::of_refusal(&refusal, name))?;
    }
    let hosts = planning::usable_hosts(state, &request.hosts)?;
    let vids: Vec<_> = members.iter().map(|(vid, ..)| *vid).collect();
    let goal = Goal::Spread { instances: &vids, hosts: &hosts };
    let loads = loads::measured(state, Vec::new());
    let planned = planner::plan(&planning::view(state), &loads, &goal).map_err(planning::refused)?;
    let mover = |Assignment { which, to }| {
        let (vid, name, from) = members[which].clone();
        Member { vid, name, from, to }
    };
    Ok(planned.into_iter().map(mover).collect())
}
