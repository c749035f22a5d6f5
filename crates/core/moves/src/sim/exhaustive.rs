//! Every order of events, for small cases.
//!
//! Depth-first search over all possible actions, with a bound on each kind of fault, visiting
//! every state once. States are identified by a hash that excludes the clock, because timers
//! may fire at any time. Each state in which nothing more can happen without a further
//! fault is settled, and must satisfy the final invariants.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use super::fold::Fold;
use super::seeded::settle_quietly;
use super::world::{Action, Envelope, World};
use super::{Sabotage, Tally};
use crate::coordinator::MoveRequest;
use crate::due::Due;

/// The limits of faults of each kind, and of external events, per path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Crashes of a node, the coordinator, or an engine.
    pub crashes: u8,
    /// Messages lost.
    pub losses: u8,
    /// Messages delivered twice.
    pub doubles: u8,
    /// Operations that fail.
    pub failures: u8,
    /// Cancels by the user.
    pub cancels: u8,
    /// Timers that fire, which repeats messages.
    pub repeats: u8,
    /// Expiries of all deadlines.
    pub deadlines: u8,
    /// Exits of the program.
    pub exits: u8,
    /// Location requests of a library at the destination.
    pub peers: u8,
    /// Deaths of a stopped copy that is still needed.
    pub bereavements: u8,
    /// The number of further moves, to any host where the instance is not.
    pub moves: u8,
}

/// The extent of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// States in which nothing more can happen without a further fault.
    pub ends: usize,
    /// Moves committed and rolled back, over all ends.
    pub tally: Tally,
}

/// Moves one instance between two hosts, in every order of events.
///
/// # Errors
/// The violated invariant, and the actions that lead to it.
pub fn explore(faults: Faults, sabotage: Sabotage) -> Result<Explored, String> {
    explore_one(faults, sabotage, false)
}

/// Likewise, a post-copy move.
///
/// # Errors
/// As [`explore`].
pub fn explore_post_copy(faults: Faults, sabotage: Sabotage) -> Result<Explored, String> {
    explore_one(faults, sabotage, true)
}

fn explore_one(faults: Faults, sabotage: Sabotage, post_copy: bool) -> Result<Explored, String> {
    let mut world = World::new(2, 1, sabotage);
    let (vid, destination) = (world.vids[0], world.nodes[1].name.clone());
    world.perform(&Action::Begin(MoveRequest { vid, destination, dry_run: false, post_copy }));
    search(&world, faults)
}

/// Lets two instances exchange places, as a group, in every order of events.
///
/// # Errors
/// As [`explore`].
pub fn explore_together(faults: Faults, sabotage: Sabotage) -> Result<Explored, String> {
    let mut world = World::new(2, 2, sabotage);
    let others = world.nodes.iter().rev().map(|node| node.name.clone());
    let destinations = world.vids.iter().copied().zip(others).collect();
    world.perform(&Action::BeginTogether(destinations));
    search(&world, faults)
}

fn search(world: &World, faults: Faults) -> Result<Explored, String> {
    let mut search = Search { seen: HashSet::default(), path: Vec::new(), explored: Explored::default() };
    search.visit(world, faults).map_err(|what| {
        let path: Vec<String> = search.path.iter().map(|action| format!("{action:?}")).collect();
        format!("{what}, after\n{}", path.join("\n"))
    })?;
    search.explored.states = search.seen.len();
    Ok(search.explored)
}

struct Search {
    seen: HashSet<u64, BuildHasherDefault<Fold>>,
    path: Vec<Action>,
    explored: Explored,
}

impl Search {
    fn visit(&mut self, world: &World, faults: Faults) -> Result<(), String> {
        if !self.seen.insert(Fold::of(&(world, faults))) {
            return Ok(());
        }
        let mut stuck = true;
        for (action, left) in possible(world, faults) {
            stuck = false;
            let mut next = world.clone();
            self.path.push(action.clone());
            if let Action::TickNode(_) | Action::TickCoordinator = action {
                advance_to_timer(&mut next, &action);
            }
            next.perform(&action);
            if let Some(what) = next.violation {
                return Err(what);
            }
            self.visit(&next, left)?;
            self.path.pop();
        }
        if stuck {
            self.explored.ends += 1;
            self.explored.tally += settle_quietly(world.clone())?;
        }
        Ok(())
    }
}

/// Every possible action, with the remaining faults after it.
fn possible(world: &World, faults: Faults) -> Vec<(Action, Faults)> {
    let mut actions = Vec::new();
    messages(world, faults, &mut actions);
    operations(world, faults, &mut actions);
    crashes(world, faults, &mut actions);
    timers(world, faults, &mut actions);
    users(world, faults, &mut actions);
    actions
}

fn messages(world: &World, faults: Faults, actions: &mut Vec<(Action, Faults)>) {
    for envelope in world.network.iter().filter(|envelope| world.can_deliver(envelope)) {
        let deliver = |again| Action::Deliver { envelope: Envelope::clone(envelope), again };
        actions.push((deliver(false), faults));
        if let Some(losses) = faults.losses.checked_sub(1) {
            actions.push((Action::Lose(envelope.clone()), Faults { losses, ..faults }));
        }
        if let Some(doubles) = faults.doubles.checked_sub(1) {
            actions.push((deliver(true), Faults { doubles, ..faults }));
        }
    }
}

fn operations(world: &World, faults: Faults, actions: &mut Vec<(Action, Faults)>) {
    for (node, place) in world.nodes.iter().enumerate() {
        for (&vid, under_way) in &place.engine.under_way {
            if world.can_succeed(node, vid, &under_way.operation) {
                actions.push((Action::Finish { node, vid, well: true }, faults));
            }
            let fail = Action::Finish { node, vid, well: false };
            if under_way.cancelled {
                actions.push((fail, faults));
            } else if let Some(failures) = faults.failures.checked_sub(1) {
                actions.push((fail, Faults { failures, ..faults }));
            }
        }
    }
}

fn crashes(world: &World, faults: Faults, actions: &mut Vec<(Action, Faults)>) {
    let left = faults.crashes.checked_sub(1).map(|crashes| Faults { crashes, ..faults });
    match (&world.coordinator, left) {
        (None, _) => actions.push((Action::RestartCoordinator, faults)),
        (Some(_), Some(left)) => actions.push((Action::CrashCoordinator, left)),
        (Some(_), None) => {}
    }
    for (node, place) in world.nodes.iter().enumerate() {
        if place.agent.is_none() {
            actions.push((Action::RestartNode(node), faults));
        } else if !place.linked && world.coordinator.is_some() {
            actions.push((Action::Connect(node), faults));
        }
        let Some(left) = left else { continue };
        if place.agent.is_some() {
            actions.push((Action::CrashNode { node, done: false }, left));
            if !place.engine.under_way.is_empty() {
                actions.push((Action::CrashNode { node, done: true }, left));
            }
            actions.push((Action::CrashEngine(node), left));
        }
    }
}

fn timers(world: &World, faults: Faults, actions: &mut Vec<(Action, Faults)>) {
    if let Some(repeats) = faults.repeats.checked_sub(1) {
        let left = Faults { repeats, ..faults };
        if world.coordinator.as_ref().is_some_and(|it| it.wake_at().is_some()) {
            actions.push((Action::TickCoordinator, left));
        }
        for (place, node) in world.nodes.iter().enumerate() {
            if node.agent.as_ref().is_some_and(|agent| agent.wake_at().is_some()) {
                actions.push((Action::TickNode(place), left));
            }
        }
    }
    if let (Some(deadlines), true) = (faults.deadlines.checked_sub(1), world.coordinator.is_some()) {
        actions.push((Action::Expire, Faults { deadlines, ..faults }));
    }
}

fn users(world: &World, faults: Faults, actions: &mut Vec<(Action, Faults)>) {
    if let (Some(peers), Some(_)) = (faults.peers.checked_sub(1), &world.nodes[1].agent) {
        let locate = Action::Locate { node: 1, vid: world.vids[0] };
        actions.push((locate, Faults { peers, ..faults }));
    }
    if let (Some(moves), Some(request)) = (faults.moves.checked_sub(1), world.next_move()) {
        actions.push((Action::Begin(request), Faults { moves, ..faults }));
    }
    if let (Some(cancels), Some(id)) = (faults.cancels.checked_sub(1), world.store.moves.keys().next()) {
        actions.push((Action::Cancel(*id), Faults { cancels, ..faults }));
    }
    if let Some(bereavements) = faults.bereavements.checked_sub(1) {
        for (node, vid) in world.needed() {
            actions.push((Action::LoseMemory { node, vid }, Faults { bereavements, ..faults }));
        }
    }
    if let Some(exits) = faults.exits.checked_sub(1) {
        for (node, vid) in world.can_exit() {
            actions.push((Action::Exit { node, vid }, Faults { exits, ..faults }));
        }
    }
}

fn advance_to_timer(world: &mut World, action: &Action) {
    let at = match action {
        Action::TickNode(node) => world.nodes[*node].agent.as_ref().and_then(|agent| agent.wake_at()),
        _ => world.coordinator.as_ref().and_then(|coordinator| coordinator.wake_at()),
    };
    world.now = world.now.max(Due(at.unwrap_or_default()));
}
