//! Claims about placements of random problems, checked against definitions that share no code with the search.

use fastrand::Rng;
use solver::effort::Steps;
use solver::order::{Move, order};
use solver::problem::{Balance, Cost, Flow, Item, Matrix, Place, Problem, Resource, Set, Spec};
use solver::{evaluate, solve};

const SEEDS: std::ops::Range<u64> = 0..60;

/// A problem with every kind of cost and constraint, whose start is feasible.
fn random(rng: &mut Rng, items: usize, places: usize) -> Spec {
    let resources = vec![
        Resource { overload: 3, is_transient: false },
        Resource { overload: 2, is_transient: rng.bool() },
    ];
    let starts: Vec<usize> = (0..items).map(|_| rng.usize(..places)).collect();
    let item = |rng: &mut Rng, start: usize| Item {
        demand: vec![rng.i64(1..10), rng.i64(0..5)],
        start: Some(start),
        move_cost: rng.i64(0..4),
        places: rng.bool().then(|| (0..places).filter(|place| *place == start || place % 2 == 0).collect()),
    };
    let items: Vec<Item> = starts.iter().map(|start| item(rng, *start)).collect();
    let mut set_members = vec![Vec::new(); 4];
    for number in 0..items.len() {
        set_members[rng.usize(..4)].push(number);
    }
    let place = |rng: &mut Rng, number: usize| {
        let here = items.iter().filter(|item| item.start == Some(number));
        let used = here.fold([0, 0], |sum, item| [sum[0] + item.demand[0], sum[1] + item.demand[1]]);
        Place {
            capacity: used.map(|used| used + rng.i64(0..15)).to_vec(),
            level: vec![10, 5],
            region: number % 3,
            zone: number / 2,
        }
    };
    let place_list: Vec<Place> = (0..places).map(|number| place(rng, number)).collect();
    let spread = |members: &[usize], of: &dyn Fn(&Place) -> usize| {
        let mut found: Vec<usize> = members.iter().map(|member| of(&place_list[starts[*member]])).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    let mut sets: Vec<Set> = Vec::new();
    for members in &set_members {
        let at_places: Vec<usize> = members.iter().map(|member| starts[*member]).collect();
        let is_apart =
            at_places.iter().all(|place| at_places.iter().filter(|other| *other == place).count() == 1);
        let regions = spread(members, &|place| place.region).len().min(2);
        sets.push(Set { members: members.clone(), is_apart, regions, near: Vec::new(), is_counted: true });
    }
    let zones = |set: &Set| spread(&set.members, &|place| place.zone);
    if zones(&sets[0]).iter().all(|zone| zones(&sets[1]).contains(zone)) {
        sets[0].near.push(1);
    }
    let mut distances = vec![0; places * places];
    let mut relocation = vec![0; places * places];
    for from in 0..places {
        for to in 0..from {
            let distance = rng.i32(0..6);
            (distances[from * places + to], distances[to * places + from]) = (distance, distance);
            relocation[from * places + to] = rng.i32(0..3);
        }
    }
    let flow = |rng: &mut Rng| Flow {
        from: rng.usize(..items.len()),
        to: rng.usize(..items.len()),
        amount: rng.i64(1..9),
    };
    Spec {
        resources,
        places: place_list.clone(),
        flows: (0..items.len() * 2).map(|_| flow(rng)).collect(),
        items,
        sets,
        balances: vec![Balance { of: 0, per: 1, factor: 2, weight: 1 }],
        distances: Matrix(distances),
        relocation: Matrix(relocation),
        disturbance: 5,
        excess: 1000,
    }
}

/// The cost by its definition.
fn cost(spec: &Spec, at: &[usize]) -> Cost {
    let (places, mut sum) = (spec.places.len(), 0);
    for (number, place) in spec.places.iter().enumerate() {
        let load = |resource: usize| -> i64 {
            let here = spec.items.iter().zip(at).filter(|(_, at)| **at == number);
            here.map(|(item, _)| item.demand[resource]).sum()
        };
        for (resource, Resource { overload, .. }) in spec.resources.iter().enumerate() {
            sum += overload * (load(resource) - place.level[resource]).max(0);
            sum += spec.excess * (load(resource) - place.capacity[resource]).max(0);
        }
        for balance in &spec.balances {
            let free = |resource: usize| place.capacity[resource] - load(resource);
            sum += balance.weight * (balance.factor * free(balance.of) - free(balance.per)).max(0);
        }
    }
    for flow in spec.flows.iter().filter(|flow| flow.from != flow.to) {
        sum += flow.amount * Cost::from(spec.distances.0[at[flow.from] * places + at[flow.to]]);
    }
    let is_moved = |item: usize| spec.items[item].start != Some(at[item]);
    for (item, its) in spec.items.iter().enumerate().filter(|(item, _)| is_moved(*item)) {
        sum += its.move_cost;
        sum += its.start.map_or(0, |start| Cost::from(spec.relocation.0[start * places + at[item]]));
    }
    let moved = |set: &Set| set.members.iter().filter(|member| is_moved(**member)).count() as Cost;
    sum + spec.disturbance * spec.sets.iter().filter(|set| set.is_counted).map(moved).max().unwrap_or(0)
}

/// Whether a placement obeys all constraints.
fn is_feasible(spec: &Spec, at: &[usize]) -> bool {
    let fits = |(number, place): (usize, &Place)| {
        (0..spec.resources.len()).all(|resource| {
            let counts = |(item, at): &(&Item, &usize)| {
                **at == number || spec.resources[resource].is_transient && item.start == Some(number)
            };
            let load: i64 =
                spec.items.iter().zip(at).filter(counts).map(|(item, _)| item.demand[resource]).sum();
            load <= place.capacity[resource]
        })
    };
    let allowed = |(item, at): (&Item, &usize)| item.places.as_ref().is_none_or(|places| places.contains(at));
    let distinct = |set: &Set, of: &dyn Fn(&Place) -> usize| {
        let mut found: Vec<usize> = set.members.iter().map(|member| of(&spec.places[at[*member]])).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    let holds = |set: &Set| {
        let places: Vec<usize> = set.members.iter().map(|member| at[*member]).collect();
        let apart = places.iter().all(|place| places.iter().filter(|other| *other == place).count() == 1);
        let near = set.near.iter().all(|near| {
            let zones = distinct(&spec.sets[*near], &|place| place.zone);
            distinct(set, &|place| place.zone).iter().all(|zone| zones.contains(zone))
        });
        (!set.is_apart || apart) && distinct(set, &|place| place.region).len() >= set.regions && near
    };
    spec.places.iter().enumerate().all(fits)
        && spec.items.iter().zip(at).all(allowed)
        && spec.sets.iter().all(holds)
}

fn starts(spec: &Spec) -> Vec<usize> {
    spec.items.iter().filter_map(|item| item.start).collect()
}

fn all(places: &[Option<usize>]) -> Vec<usize> {
    places.iter().map(|place| place.expect("all items have a place")).collect()
}

#[test]
fn the_cost_is_the_one_of_the_definition_and_no_constraint_is_violated() {
    let mut improved = 0;
    for seed in SEEDS {
        let mut rng = Rng::with_seed(seed);
        let spec = random(&mut rng, 12, 6);
        assert!(is_feasible(&spec, &starts(&spec)), "seed {seed}: the start");
        let problem = Problem::new(&spec).unwrap();
        let found = solve(&problem, &mut Steps::new(2_000), seed);
        let at = all(&found.places);
        assert_eq!(found.cost, cost(&spec, &at), "seed {seed}");
        assert!(is_feasible(&spec, &at), "seed {seed}: {at:?}");
        assert_eq!(found.violations, 0, "seed {seed}");
        let before = cost(&spec, &starts(&spec));
        assert!(found.cost <= before, "seed {seed}");
        improved += u32::from(found.cost < before);
    }
    assert!(improved > 50, "{improved}");
}

/// All placements of a problem, one after the other.
fn cheapest(spec: &Spec) -> Cost {
    let (items, places) = (spec.items.len(), spec.places.len());
    let placements = (0..places.pow(items as u32)).map(|mut number| {
        let digit = |_| {
            let place = number % places;
            number /= places;
            place
        };
        (0..items).map(digit).collect::<Vec<_>>()
    });
    placements.filter(|at| is_feasible(spec, at)).map(|at| cost(spec, &at)).min().unwrap()
}

#[test]
fn small_problems_are_solved_exactly() {
    let is_exact = |seed: &u64| {
        let seed = *seed;
        let mut rng = Rng::with_seed(seed);
        let spec = random(&mut rng, 6, 4);
        let found = solve(&Problem::new(&spec).unwrap(), &mut Steps::new(5_000), seed);
        found.cost == cheapest(&spec)
    };
    // Constraints may separate the cheapest placement from all that a few changes reach.
    let exact = SEEDS.filter(is_exact).count();
    assert!(exact + 2 >= SEEDS.count(), "{exact}");
}

#[test]
fn the_result_depends_on_the_seed_alone() {
    let spec = random(&mut Rng::with_seed(7), 40, 10);
    let problem = Problem::new(&spec).unwrap();
    let found = |seed| solve(&problem, &mut Steps::new(5_000), seed);
    assert_eq!(found(1), found(1));
}

/// A problem too large for tables of all changes: pairs of items with traffic, each where its other half is not.
fn pairs(rng: &mut Rng, count: usize, places: usize) -> Spec {
    let item = |number: usize| Item {
        demand: vec![1],
        start: Some((number % count + number / count) % places),
        move_cost: 10,
        ..Item::default()
    };
    let flow = |from| Flow { from, to: from + count, amount: rng.i64(0..40) };
    let capacity = (count.div_ceil(places) * 2 + 2) as i64;
    Spec {
        resources: vec![Resource { overload: 1, is_transient: false }],
        places: vec![Place { capacity: vec![capacity], level: vec![capacity], ..Place::default() }; places],
        flows: (0..count).map(flow).collect(),
        items: (0..2 * count).map(item).collect(),
        distances: Matrix(
            (0..places * places).map(|pair| i32::from(pair / places != pair % places)).collect(),
        ),
        ..Spec::default()
    }
}

#[test]
fn large_problems_move_what_pays_and_then_nothing() {
    for seed in 0..8 {
        let mut spec = pairs(&mut Rng::with_seed(seed), 300, 20);
        let moves = |spec: &Spec| {
            let found = solve(&Problem::new(spec).unwrap(), &mut Steps::new(20_000), seed);
            let at = all(&found.places);
            assert!(is_feasible(spec, &at), "seed {seed}");
            let moved = at.iter().zip(starts(spec)).filter(|(at, start)| **at != *start).count();
            (at, moved)
        };
        let (at, moved) = moves(&spec);
        let paying = spec.flows.iter().filter(|flow| flow.amount > 10).count();
        assert!(moved.abs_diff(paying) <= paying / 50, "seed {seed}: {moved} moves, {paying} pay");
        spec.items.iter_mut().zip(at).for_each(|(item, place)| item.start = Some(place));
        assert_eq!(moves(&spec).1, 0, "seed {seed}");
    }
}

#[test]
fn large_problems_without_traffic_lose_their_overload() {
    let place = Place { capacity: vec![50], level: vec![20], ..Place::default() };
    let item = |number: usize| Item { demand: vec![1], start: Some(number / 50), ..Item::default() };
    let spec = Spec {
        resources: vec![Resource { overload: 1, is_transient: false }],
        places: vec![place; 20],
        items: (0..400).map(item).collect(),
        ..Spec::default()
    };
    let found = solve(&Problem::new(&spec).unwrap(), &mut Steps::new(20_000), 1);
    assert_eq!(found.cost, 0);
}

#[test]
fn large_problems_obey_every_kind_of_constraint() {
    for seed in 0..4 {
        let spec = random(&mut Rng::with_seed(seed), 400, 20);
        let found = solve(&Problem::new(&spec).unwrap(), &mut Steps::new(20_000), seed);
        let at = all(&found.places);
        assert_eq!(found.cost, cost(&spec, &at), "seed {seed}");
        assert!(is_feasible(&spec, &at), "seed {seed}");
        assert!(found.cost < cost(&spec, &starts(&spec)), "seed {seed}");
    }
}

#[test]
fn new_items_get_a_place_and_those_that_fit_nowhere_none() {
    let place = |capacity| Place { capacity: vec![capacity], level: vec![capacity], ..Place::default() };
    let item = |demand| Item { demand: vec![demand], ..Item::default() };
    let spec = Spec {
        resources: vec![Resource { overload: 1, is_transient: false }],
        places: vec![place(5), place(8)],
        items: vec![item(5), item(8), item(9)],
        ..Spec::default()
    };
    let found = solve(&Problem::new(&spec).unwrap(), &mut Steps::new(10), 1);
    assert_eq!(found.places, [Some(0), Some(1), None]);
}

/// Checks an order of moves at every instant: whatever part of a wave is done, under way or not begun.
fn check_order(spec: &Spec, waves: &[Vec<Move>], rng: &mut Rng) -> Vec<usize> {
    let mut at = starts(spec);
    for wave in waves {
        let before = at.clone();
        for _ in 0..20 {
            // Capacity: all items of the wave at both places. Constraints of sets: any part of the wave done.
            let done: Vec<&Move> = wave.iter().filter(|_| rng.bool()).collect();
            let mut now = before.clone();
            done.iter().for_each(|step| now[step.item] = step.to);
            assert!(is_feasible(spec, &now), "{done:?}");
        }
        for (number, place) in spec.places.iter().enumerate() {
            for (resource, capacity) in place.capacity.iter().enumerate() {
                let here = |item: &usize| {
                    before[*item] == number || wave.iter().any(|step| step.item == *item && step.to == number)
                };
                let load: i64 =
                    (0..at.len()).filter(here).map(|item| spec.items[item].demand[resource]).sum();
                assert!(load <= *capacity, "place {number} in {wave:?}");
            }
        }
        for step in wave {
            assert_eq!(before[step.item], step.from);
            at[step.item] = step.to;
        }
    }
    at
}

#[test]
fn every_instant_of_an_order_is_feasible_and_gains_add_up() {
    for seed in SEEDS {
        let mut rng = Rng::with_seed(seed);
        let spec = random(&mut rng, 14, 6);
        let problem = Problem::new(&spec).unwrap();
        let found = solve(&problem, &mut Steps::new(2_000), seed);
        let order = order(&problem, &found.places, 3);
        let at = check_order(&spec, &order.waves, &mut rng);
        let gain: Cost = order.waves.iter().flatten().map(|step| step.gain).sum();
        assert_eq!(cost(&spec, &starts(&spec)) - gain, cost(&spec, &at), "seed {seed}");
        for (item, place) in at.iter().enumerate() {
            assert!(found.places[item] == Some(*place) || order.stuck.contains(&item), "seed {seed}: {item}");
        }
    }
}

#[test]
fn items_that_exchange_their_places_go_through_a_third_one() {
    let place = || Place { capacity: vec![1], level: vec![1], ..Place::default() };
    let item = |start| Item { demand: vec![1], start: Some(start), ..Item::default() };
    let spec = Spec {
        resources: vec![Resource { overload: 0, is_transient: false }],
        places: vec![place(), place(), place()],
        items: vec![item(0), item(1)],
        ..Spec::default()
    };
    let problem = Problem::new(&spec).unwrap();
    let exchanged = [Some(1), Some(0)];
    let order = order(&problem, &exchanged, 8);
    assert_eq!((order.waves.len(), order.stuck.len()), (3, 0), "{order:?}");
    assert_eq!(check_order(&spec, &order.waves, &mut Rng::with_seed(1)), [1, 0]);

    let spec = Spec { places: vec![place(), place()], ..spec };
    let full = solver::order::order(&Problem::new(&spec).unwrap(), &exchanged, 8);
    assert_eq!((full.waves.len(), full.stuck), (0, vec![0, 1]), "nothing can move where all is full");
}

#[test]
fn a_placement_that_is_given_has_the_cost_of_the_definition() {
    let spec = random(&mut Rng::with_seed(3), 10, 5);
    let at = starts(&spec);
    let places: Vec<_> = at.iter().copied().map(Some).collect();
    assert_eq!(evaluate(&Problem::new(&spec).unwrap(), &places).cost, cost(&spec, &at));
}
