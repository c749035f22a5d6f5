//! Carrying out a plan: which of its moves may begin now.

use std::collections::BTreeMap;

use fabric::Vid;
use moves::HostName;
use planner::{Loads, Step, View};

/// A move that cannot be made any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The instance.
    pub vid: Vid,
    /// Why.
    pub why: String,
}

/// The moves of the first wave that is not done, as far as they are not. None is left if the plan is done. No move may be under way.
///
/// The places of the instances tell which moves are done, so whoever carries out the plan need not remember it. Instances that have
/// ended are done. All moves of the wave fit at the same time.
///
/// # Errors
/// If an instance is where the plan does not expect it, or its destination has no room for it any more.
pub fn next_wave<'p>(
    waves: &'p [Vec<Step>],
    view: &View<'_>,
    loads: &Loads,
) -> Result<Vec<&'p Step>, Blocked> {
    let steps: Vec<&Step> = waves.iter().flatten().collect();
    let left = |(index, step): (usize, &&'p Step)| {
        let host = view.instances.get(&step.vid)?.host;
        // A plan brings no instance to one host twice.
        let is_done = steps[index..].iter().any(|later| later.vid == step.vid && later.to == *host);
        (!is_done).then_some(index)
    };
    let left: Vec<usize> = steps.iter().enumerate().filter_map(left).collect();
    let mut first = 0;
    for wave in waves {
        let end = first + wave.len();
        let mine: Vec<&Step> =
            left.iter().filter(|index| (first..end).contains(*index)).map(|index| steps[*index]).collect();
        if !mine.is_empty() {
            check(&mine, view, loads)?;
            return Ok(mine);
        }
        first = end;
    }
    Ok(Vec::new())
}

fn check(wave: &[&Step], view: &View<'_>, loads: &Loads) -> Result<(), Blocked> {
    let memory = |vid: &Vid| loads.needs.get(vid).map_or(0, |need| need.amounts.memory);
    let mut used = BTreeMap::<&HostName, u64>::new();
    for (vid, instance) in &view.instances {
        for host in [Some(instance.host), instance.moves_to].into_iter().flatten() {
            *used.entry(host).or_default() += memory(vid);
        }
    }
    for Step { vid, from, to, .. } in wave {
        let blocked = |why| Err(Blocked { vid: *vid, why });
        let host = view.instances.get(vid).map(|instance| instance.host);
        if host.is_some_and(|host| host != from) {
            return blocked(format!("it is not on {from} any more"));
        }
        if view.check_usable(to).is_err() {
            return blocked(format!("{to} takes no instances now"));
        }
        if let Err(refusal) = view.check_move(*vid, to) {
            return blocked(refusal.to_string());
        }
        let used = used.entry(to).or_default();
        *used += memory(vid);
        if loads.rooms.get(to).is_some_and(|room| room.memory < *used) {
            return blocked(format!("{to} has no room for it any more"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
