//! Generated clusters: hosts in racks, and applications whose instances talk to each other.
//!
//! Amounts of traffic differ by orders of magnitude, as they do in data centres: few pairs cause most of it. All costs are in MiB
//! within a horizon, as in the planner: traffic × distance, the memory that a move copies, and its standstill.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use solver::problem::{Flow, Item, Matrix, Place, Resource, Set, Spec};

/// Thousandths of processors and MiB of memory of a host.
const HOST: [i64; 2] = [32_000, 131_072];

/// The share of a host's processors, in percent, above which it is overloaded.
const FULL: i64 = 90;

/// The cost of each thousandth of a processor that a host lacks.
const OVERLOAD: i64 = 1024;

/// The cost of a move besides the memory that it copies.
const STANDSTILL: i64 = 64;

/// Hosts of a rack. Two hosts of one rack are 1 apart, others 3.
const RACK: usize = 20;

/// The largest amount of traffic of two instances, as a power of two: 1 TiB.
const MOST_TRAFFIC: f64 = 20.0;

/// A cluster in which each instance has a host, without regard to traffic.
///
/// # Errors
/// If the hosts are too few.
pub fn generate(instances: usize, hosts: usize, rng: &mut Rng) -> Result<Spec> {
    let mut spec = Spec {
        resources: vec![
            Resource { overload: OVERLOAD, is_transient: false },
            Resource { overload: 0, is_transient: false },
        ],
        places: (0..hosts).map(host).collect(),
        distances: Matrix((0..hosts * hosts).map(|pair| distance(pair / hosts, pair % hosts)).collect()),
        ..Spec::default()
    };
    while spec.items.len() < instances {
        let size = rng.usize(2..=16).min(instances - spec.items.len());
        add_application(&mut spec, size, rng);
    }
    let mut free = vec![HOST; hosts];
    for item in 0..instances {
        put_anywhere(&mut spec, item, &mut free, rng)?;
    }
    Ok(spec)
}

fn host(number: usize) -> Place {
    let rack = number / RACK;
    Place { capacity: HOST.to_vec(), level: vec![HOST[0] / 100 * FULL, HOST[1]], region: rack, zone: rack }
}

fn distance(from: usize, to: usize) -> i32 {
    match (from == to, from / RACK == to / RACK) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 3,
    }
}

/// Instances of which each talks to one or two others; in some applications, the first three must not share a host.
fn add_application(spec: &mut Spec, size: usize, rng: &mut Rng) {
    let first = spec.items.len();
    for _ in 0..size {
        let memory = 512 << rng.u32(0..6);
        let item = Item { demand: vec![rng.i64(100..4000), memory], ..Item::default() };
        spec.items.push(Item { move_cost: memory + STANDSTILL, ..item });
    }
    for number in 1..size {
        for _ in 0..rng.usize(1..=2) {
            let (from, to) = (first + number, first + rng.usize(..number));
            spec.flows.push(Flow { from, to, amount: traffic(rng) });
        }
    }
    if size >= 3 && rng.u8(..4) == 0 {
        spec.sets.push(Set { members: (first..first + 3).collect(), is_apart: true, ..Set::default() });
    }
}

fn traffic(rng: &mut Rng) -> i64 {
    (MOST_TRAFFIC * rng.f64()).exp2() as i64
}

/// Starts an instance on a random host that has room for it and no other member of its set.
fn put_anywhere(spec: &mut Spec, item: usize, free: &mut [[i64; 2]], rng: &mut Rng) -> Result<()> {
    let hosts = spec.places.len();
    let demand = spec.items[item].demand.clone();
    let others = spec.sets.iter().filter(|set| set.members.contains(&item)).flat_map(|set| &set.members);
    let barred: Vec<usize> = others.filter_map(|other| spec.items[*other].start).collect();
    let suits = |host: &usize| {
        let has_room = free[*host].iter().zip(&demand).all(|(free, demand)| demand <= free);
        has_room && !barred.contains(host)
    };
    let begin = rng.usize(..hosts);
    let host = (0..hosts).map(|offset| (begin + offset) % hosts).find(suits);
    let host = host.with_context(|| format!("no host has room for instance {item}"))?;
    free[host].iter_mut().zip(&demand).for_each(|(free, demand)| *free -= demand);
    spec.items[item].start = Some(host);
    Ok(())
}

/// Makes these places the items' starts.
pub fn settle(spec: &mut Spec, places: &[usize]) {
    spec.items.iter_mut().zip(places).for_each(|(item, place)| item.start = Some(*place));
}

/// Starts a share of the instances anew on any host, with other amounts of traffic.
///
/// # Errors
/// If a host with room is missing.
pub fn disturb(spec: &mut Spec, share: f64, rng: &mut Rng) -> Result<()> {
    let count = (spec.items.len() as f64 * share).ceil() as usize;
    let mut items: Vec<usize> = (0..spec.items.len()).collect();
    rng.shuffle(&mut items);
    items.truncate(count);
    let mut free = vec![HOST; spec.places.len()];
    items.iter().for_each(|item| spec.items[*item].start = None);
    for item in &spec.items {
        if let Some(start) = item.start {
            free[start].iter_mut().zip(&item.demand).for_each(|(free, demand)| *free -= demand);
        }
    }
    for item in items {
        put_anywhere(spec, item, &mut free, rng)?;
        let its = spec.flows.iter_mut().filter(|flow| flow.from == item || flow.to == item);
        its.for_each(|flow| flow.amount = traffic(rng));
    }
    Ok(())
}

/// The items' starts.
#[must_use]
pub fn starts(spec: &Spec) -> Vec<usize> {
    spec.items.iter().filter_map(|item| item.start).collect()
}

/// Traffic × distance.
#[must_use]
pub fn traffic_cost(spec: &Spec, places: &[usize]) -> i64 {
    let cost = |flow: &Flow| flow.amount * i64::from(distance(places[flow.from], places[flow.to]));
    spec.flows.iter().map(cost).sum()
}

/// How many items are away from their start.
#[must_use]
pub fn moved(spec: &Spec, places: &[usize]) -> usize {
    spec.items.iter().zip(places).filter(|(item, place)| item.start != Some(**place)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::feasible;

    #[test]
    fn generated_and_disturbed_clusters_are_feasible() {
        let mut rng = Rng::with_seed(1);
        let mut spec = generate(200, 20, &mut rng).unwrap();
        feasible::check(&spec, &starts(&spec)).unwrap();
        let before = starts(&spec);
        disturb(&mut spec, 0.1, &mut rng).unwrap();
        feasible::check(&spec, &starts(&spec)).unwrap();
        assert!((1..=20).contains(&moved(&spec, &before)));
    }

    #[test]
    fn too_few_hosts_are_an_error() {
        assert!(generate(200, 2, &mut Rng::with_seed(1)).is_err());
    }
}
