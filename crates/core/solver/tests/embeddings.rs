//! Graphs whose cheapest embedding is known: tasks that form a ring, mesh, hypercube or tree, on hosts of a few tasks each.
//!
//! The cost is the cut: the edges between tasks on different hosts.

use fastrand::Rng;
use solver::effort::Steps;
use solver::problem::{Cost, Flow, Item, Matrix, Place, Problem, Resource, Spec};
use solver::solve;

/// Tasks with these edges on hosts of `size` tasks, which are `distances` apart; each task begins at a random host that has room.
fn embedding(tasks: usize, edges: &[(usize, usize)], hosts: usize, size: usize, distances: Vec<i32>) -> Spec {
    let mut starts: Vec<usize> = (0..hosts * size).map(|slot| slot / size).collect();
    Rng::with_seed(1).shuffle(&mut starts);
    let size = size as i64;
    let item = |start: &usize| Item { demand: vec![1], start: Some(*start), ..Item::default() };
    Spec {
        resources: vec![Resource { overload: 0, is_transient: false }],
        places: vec![Place { capacity: vec![size], level: vec![size], ..Place::default() }; hosts],
        items: starts.iter().take(tasks).map(item).collect(),
        flows: edges.iter().map(|(from, to)| Flow { from: *from, to: *to, amount: 1 }).collect(),
        distances: Matrix(distances),
        ..Spec::default()
    }
}

/// All hosts one hop from each other.
fn crossbar(hosts: usize) -> Vec<i32> {
    (0..hosts * hosts).map(|pair| i32::from(pair / hosts != pair % hosts)).collect()
}

/// The cheapest cost that the search finds, which is the same for each seed.
fn cheapest(spec: &Spec) -> Cost {
    let problem = Problem::new(spec).unwrap();
    let costs: Vec<_> = (0..3).map(|seed| solve(&problem, &mut Steps::new(20_000), seed).cost).collect();
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
    costs[0]
}

fn ring(tasks: usize) -> Vec<(usize, usize)> {
    (0..tasks).map(|task| (task, (task + 1) % tasks)).collect()
}

fn mesh(rows: usize, columns: usize) -> Vec<(usize, usize)> {
    let tasks = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let index = move |row: usize, column: usize| row * columns + column;
    let edges = tasks.flat_map(|(row, column)| {
        let down = (row + 1 < rows).then(|| (index(row, column), index(row + 1, column)));
        let right = (column + 1 < columns).then(|| (index(row, column), index(row, column + 1)));
        [down, right]
    });
    edges.flatten().collect()
}

fn hypercube(dimensions: usize) -> Vec<(usize, usize)> {
    let tasks = 0..1_usize << dimensions;
    let edges = tasks.flat_map(|task| (0..dimensions).map(move |bit| (task, task ^ 1 << bit)));
    edges.filter(|(from, to)| from < to).collect()
}

/// A complete binary tree; its root is task 0.
fn tree(tasks: usize) -> Vec<(usize, usize)> {
    (1..tasks).map(|task| ((task - 1) / 2, task)).collect()
}

#[test]
fn a_ring_of_8_on_4_hosts_of_2_has_4_edges_between_hosts() {
    assert_eq!(cheapest(&embedding(8, &ring(8), 4, 2, crossbar(4))), 4);
}

#[test]
fn a_mesh_of_4_by_4_on_4_hosts_of_4_has_8_edges_between_hosts() {
    assert_eq!(cheapest(&embedding(16, &mesh(4, 4), 4, 4, crossbar(4))), 8);
}

#[test]
fn a_hypercube_of_4_dimensions_on_4_hosts_of_4_has_16_edges_between_hosts() {
    assert_eq!(cheapest(&embedding(16, &hypercube(4), 4, 4, crossbar(4))), 16);
}

/// Hosts of 3 hold at most 2 of the 14 edges each; 5 of them all 15 tasks.
#[test]
fn a_tree_of_15_on_5_hosts_of_3_has_4_edges_between_hosts() {
    assert_eq!(cheapest(&embedding(15, &tree(15), 5, 3, crossbar(5))), 4);
}

/// One edge of a ring must cross each of 8 links, and none is crossed twice.
#[test]
fn a_ring_of_8_on_a_ring_of_8_hosts_has_each_neighbour_one_hop_away() {
    let hops = |pair: usize| {
        let apart = (pair / 8).abs_diff(pair % 8);
        apart.min(8 - apart) as i32
    };
    assert_eq!(cheapest(&embedding(8, &ring(8), 8, 1, (0..64).map(hops).collect())), 8);
}

/// A ring is a part of a hypercube (a Gray code).
#[test]
fn a_ring_of_16_on_a_hypercube_of_16_hosts_has_each_neighbour_one_hop_away() {
    let hops = |pair: usize| ((pair / 16) ^ (pair % 16)).count_ones() as i32;
    assert_eq!(cheapest(&embedding(16, &ring(16), 16, 1, (0..256).map(hops).collect())), 16);
}

/// The connected components of the VNET paper, 5.5: as many hosts as instances, with the least sum of costs between them.
#[test]
fn the_cheapest_component_of_4_among_10_hosts_is_found() {
    let (tasks, hosts) = (4, 10);
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let mut costs = vec![0; hosts * hosts];
        for from in 0..hosts {
            for to in 0..from {
                let cost = rng.i32(1..100);
                (costs[from * hosts + to], costs[to * hosts + from]) = (cost, cost);
            }
        }
        let all: Vec<_> = (0..tasks).flat_map(|from| (0..from).map(move |to| (from, to))).collect();
        let sum = |chosen: &[usize]| -> Cost {
            all.iter().map(|(from, to)| Cost::from(costs[chosen[*from] * hosts + chosen[*to]])).sum()
        };
        let sets = (0..1_usize << hosts).filter(|set| set.count_ones() as usize == tasks);
        let members = |set: usize| (0..hosts).filter(|host| set >> host & 1 == 1).collect::<Vec<_>>();
        let least = sets.map(|set| sum(&members(set))).min().unwrap();
        assert_eq!(cheapest(&embedding(tasks, &all, hosts, 1, costs.clone())), least, "seed {seed}");
    }
}
