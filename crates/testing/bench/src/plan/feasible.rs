//! The constraints of a problem by their definition. Nothing here is code of the solver.

use anyhow::{Result, ensure};
use solver::problem::{Set, Spec};

/// Checks that a placement of all items obeys all constraints.
///
/// # Errors
/// If it violates one.
pub fn check(spec: &Spec, places: &[usize]) -> Result<()> {
    check_capacity(spec, places)?;
    for (item, place) in places.iter().enumerate() {
        let is_allowed = spec.items[item].places.as_ref().is_none_or(|allowed| allowed.contains(place));
        ensure!(is_allowed, "item {item} may not have place {place}");
    }
    let zones: Vec<Vec<usize>> =
        spec.sets.iter().map(|set| distinct(set, places, |place| spec.places[place].zone)).collect();
    for (number, set) in spec.sets.iter().enumerate() {
        let apart = distinct(set, places, |place| place).len() == set.members.len();
        ensure!(apart || !set.is_apart, "members of set {number} share a place");
        let regions = distinct(set, places, |place| spec.places[place].region).len();
        ensure!(regions >= set.regions, "set {number} is in {regions} regions instead of {}", set.regions);
        for near in &set.near {
            let has_near = zones[number].iter().all(|zone| zones[*near].binary_search(zone).is_ok());
            ensure!(has_near, "set {number} is in a zone without set {near}");
        }
    }
    Ok(())
}

fn check_capacity(spec: &Spec, places: &[usize]) -> Result<()> {
    let mut load = vec![vec![0; spec.resources.len()]; spec.places.len()];
    for (item, place) in spec.items.iter().zip(places) {
        for (resource, demand) in item.demand.iter().enumerate() {
            load[*place][resource] += demand;
            if let Some(start) = item.start.filter(|start| start != place)
                && spec.resources[resource].is_transient
            {
                load[start][resource] += demand;
            }
        }
    }
    for (number, (load, place)) in load.iter().zip(&spec.places).enumerate() {
        let fits = load.iter().zip(&place.capacity).all(|(load, capacity)| load <= capacity);
        ensure!(fits, "place {number} has {load:?} instead of {:?} at most", place.capacity);
    }
    Ok(())
}

/// What the members' places have, in ascending order.
fn distinct(set: &Set, places: &[usize], of: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut found: Vec<usize> = set.members.iter().map(|member| of(places[*member])).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use solver::problem::{Item, Place, Resource};

    use super::*;

    /// Two items of one set at three places of two regions and zones.
    fn spec(set: Set, is_transient: bool) -> Spec {
        let place = |zone| Place { capacity: vec![2], level: vec![2], region: zone, zone };
        let item = |demand, start| Item { demand: vec![demand], start: Some(start), ..Item::default() };
        Spec {
            resources: vec![Resource { overload: 0, is_transient }],
            places: vec![place(0), place(0), place(1)],
            items: vec![item(1, 0), item(2, 1)],
            sets: vec![Set { members: vec![0, 1], ..set }, Set { members: vec![0], ..Set::default() }],
            ..Spec::default()
        }
    }

    #[test]
    fn each_violated_constraint_is_found() {
        let words = |spec: &Spec, places: &[usize]| check(spec, places).unwrap_err().to_string();
        let free = spec(Set::default(), false);
        check(&free, &[1, 0]).unwrap();
        assert!(words(&free, &[0, 0]).contains("place 0 has [3]"));
        assert!(words(&spec(Set::default(), true), &[1, 0]).contains("place 0 has [3]"));
        let mut pinned = free;
        pinned.items[0].places = Some(vec![0]);
        assert!(words(&pinned, &[1, 2]).contains("item 0 may not"));
        let mut apart = spec(Set { is_apart: true, ..Set::default() }, false);
        apart.items[1].demand = vec![1];
        assert!(words(&apart, &[0, 0]).contains("share a place"));
        assert!(words(&spec(Set { regions: 2, ..Set::default() }, false), &[0, 1]).contains("1 regions"));
        assert!(
            words(&spec(Set { near: vec![1], ..Set::default() }, false), &[0, 2]).contains("without set 1")
        );
    }
}
