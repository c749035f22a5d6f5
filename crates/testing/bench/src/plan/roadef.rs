//! Problems of the ROADEF/EURO challenge 2012, machine reassignment: processes are items, machines are places, services are sets.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use solver::problem::{Balance, Item, Matrix, Place, Problem, Resource, Set, Spec};

use super::numbers::Numbers;

/// The winning team's costs after 300 s on one core of a processor of 2009, from the challenge's results.
pub const WINNER: [(&str, i64); 18] = [
    ("a1_1", 44_306_501),
    ("a1_2", 777_912_030),
    ("a1_3", 583_006_422),
    ("a1_4", 262_125_116),
    ("a1_5", 727_578_310),
    ("a2_1", 329),
    ("a2_2", 746_097_632),
    ("a2_3", 1_210_644_572),
    ("a2_4", 1_680_615_349),
    ("a2_5", 318_358_949),
    ("b_01", 3_353_533_859),
    ("b_02", 1_015_569_276),
    ("b_03", 157_091_678),
    ("b_04", 4_677_962_661),
    ("b_05", 924_769_283),
    ("b_06", 9_525_888_445),
    ("b_08", 1_214_470_739),
    ("b_09", 15_885_647_774),
];

/// Reads a problem from the files of its name in a folder.
///
/// # Errors
/// If one is missing or invalid, or the initial assignment has not the cost that the challenge gives.
pub fn read(folder: &Path, name: &str) -> Result<Spec> {
    let numbers = |part: &str| Numbers::read(&folder.join(format!("{part}_{name}.txt")));
    let mut assignment = numbers("assignment")?;
    let spec = spec(numbers("model")?, &mut assignment)?;
    assignment.end()?;
    let starts: Vec<_> = spec.items.iter().map(|item| item.start).collect();
    let (cost, given) =
        (solver::evaluate(&Problem::new(&spec)?, &starts).cost, numbers("original_cost")?.number()?);
    ensure!(cost == given, "the initial assignment of {name} costs {cost} instead of {given}");
    Ok(spec)
}

fn spec(mut model: Numbers, assignment: &mut Numbers) -> Result<Spec> {
    let resources = resources(&mut model)?;
    let (places, mut relocation) = machines(&mut model, resources.len())?;
    let mut sets = services(&mut model)?;
    let mut items = processes(&mut model, assignment, resources.len(), &mut sets)?;
    let balances = balances(&mut model)?;
    let (process_weight, service_weight, machine_weight) =
        (model.number()?, model.number()?, model.number()?);
    model.end()?;
    items.iter_mut().for_each(|item| item.move_cost *= process_weight);
    relocation.iter_mut().for_each(|cost| *cost *= machine_weight);
    let relocation = relocation.into_iter().map(i32::try_from).collect::<Result<_, _>>();
    Ok(Spec {
        resources,
        places,
        items,
        sets,
        balances,
        relocation: Matrix(relocation.context("a machine move cost is too large")?),
        disturbance: service_weight,
        ..Spec::default()
    })
}

fn resources(model: &mut Numbers) -> Result<Vec<Resource>> {
    let count = model.index()?;
    let mut resource = || Ok(Resource { is_transient: model.number()? == 1, overload: model.number()? });
    (0..count).map(|_| resource()).collect()
}

/// The machines, and the costs of moving from each to each.
fn machines(model: &mut Numbers, resources: usize) -> Result<(Vec<Place>, Vec<i64>)> {
    let count = model.index()?;
    let (mut places, mut relocation) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (zone, region) = (model.index()?, model.index()?);
        let (capacity, level) = (model.take(resources)?, model.take(resources)?);
        places.push(Place { capacity, level, region, zone });
        relocation.extend(model.take(count)?);
    }
    Ok((places, relocation))
}

fn services(model: &mut Numbers) -> Result<Vec<Set>> {
    let count = model.index()?;
    let mut service = || {
        let (regions, count) = (model.index()?, model.index()?);
        let near = (0..count).map(|_| model.index()).collect::<Result<_>>()?;
        Ok(Set { members: Vec::new(), is_apart: true, regions, near, is_counted: true })
    };
    (0..count).map(|_| service()).collect()
}

/// The processes, whose costs of moving have no weight yet. Each joins its service.
fn processes(
    model: &mut Numbers,
    assignment: &mut Numbers,
    resources: usize,
    sets: &mut [Set],
) -> Result<Vec<Item>> {
    let count = model.index()?;
    let mut process = |number| {
        let service = model.index()?;
        let set = sets.get_mut(service).with_context(|| format!("service {service} does not exist"))?;
        set.members.push(number);
        let (demand, move_cost) = (model.take(resources)?, model.number()?);
        Ok(Item { demand, start: Some(assignment.index()?), move_cost, places: None })
    };
    (0..count).map(&mut process).collect()
}

fn balances(model: &mut Numbers) -> Result<Vec<Balance>> {
    let count = model.index()?;
    let mut balance = || {
        let (of, per) = (model.index()?, model.index()?);
        Ok(Balance { of, per, factor: model.number()?, weight: model.number()? })
    };
    (0..count).map(|_| balance()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two resources, four machines, two services and three processes.
    const MODEL: &str = "2  1 100  0 10
        4  0 0 30 400 16 80 0 1 4 5  0 0 10 240 8 160 1 0 3 4  1 1 15 100 12 80 4 3 0 2  1 2 10 100 8 80 5 4 2 0
        2  2 0  1 1 0
        3  0 12 10 1000  0 10 20 100  1 6 200 1
        1  0 1 20 10  1 10 100";

    #[test]
    fn a_model_has_the_cost_of_its_definition() {
        let numbers = |text| Numbers::parse("x", text).unwrap();
        let spec = spec(numbers(MODEL), &mut numbers("0 3 0")).unwrap();
        assert_eq!((spec.sets[0].members.as_slice(), spec.sets[1].near.as_slice()), (&[0, 1][..], &[0][..]));
        let problem = Problem::new(&spec).unwrap();
        // Machine 0 has a load of 18 and 210, machine 3 of 10 and 20.
        let stay = solver::evaluate(&problem, &[Some(0), Some(3), Some(0)]).cost;
        assert_eq!(stay, 200 + 200 + 10 * 130 + 10 * (50 + 200));
        // Process 0 moves from machine 0 to 1: its service counts 10, the process 1000, the machines 100·1.
        let moved = solver::evaluate(&problem, &[Some(1), Some(3), Some(0)]).cost;
        assert_eq!(moved, 200 + 400 + 10 * 120 + 10 * (280 + 200) + 10 + 1000 + 100);
    }

    #[test]
    fn a_model_that_ends_early_is_refused() {
        let numbers = |text| Numbers::parse("x", text).unwrap();
        assert!(spec(numbers("2 1 100 0"), &mut numbers("0")).is_err());
    }
}
