//! The cost of traffic of each swap, for problems in which nothing but swaps is possible: all items are alike, and all places are full.
//!
//! With `cost(i, j) = Σ k  amount(i, k) × distance(place of j, place of k)`, a swap of `i` and `j` changes the cost of traffic by
//! `cost(i, j) + cost(j, i) − cost(i, i) − cost(j, j) + 2 × amount(i, j) × distance(place of i, place of j)`. All tables are by items, not
//! by places, so that loops read them from the beginning to the end. A swap exchanges two rows and columns and updates all of them in
//! one pass.

use crate::compact::Compact;

/// The tables. Sums up to 2^53 are exact.
#[derive(Clone, Debug)]
pub struct Exchange {
    items: usize,
    /// By `i` and `j < i`: `cost(i, j)`, and `cost(j, i)`.
    costs: Vec<f64>,
    opposite: Vec<f64>,
    /// By `i`: `cost(i, i)`.
    now: Vec<f64>,
    /// By `i` and `j`: twice the amount.
    amounts: Vec<f64>,
    /// By `i` and `j`: the distance between their places.
    distances: Vec<f64>,
    /// By item, during a swap: how the amounts to both items, and the distances to both places, differ.
    more: Vec<f64>,
    farther: Vec<f64>,
}

impl Exchange {
    /// The tables of a placement of all items.
    pub fn of(problem: &Compact, at: &[u32]) -> Self {
        let items = problem.items;
        let mut table = Self {
            items,
            costs: vec![0.0; items * items],
            opposite: vec![0.0; items * items],
            now: vec![0.0; items],
            amounts: vec![0.0; items * items],
            distances: vec![0.0; items * items],
            more: vec![0.0; items],
            farther: vec![0.0; items],
        };
        for one in 0..items {
            for neighbour in problem.neighbours_of(one) {
                table.amounts[one * items + neighbour.item as usize] = 2.0 * neighbour.amount as f64;
            }
            let distances = problem.distances_of(at[one] as usize);
            for (other, place) in at.iter().enumerate() {
                table.distances[one * items + other] = f64::from(distances[*place as usize]);
            }
        }
        for one in 0..items {
            for other in 0..items {
                let amounts = &table.amounts[one * items..(one + 1) * items];
                let distances = &table.distances[other * items..(other + 1) * items];
                let sum: f64 = amounts.iter().zip(distances).map(|(amount, far)| amount * far).sum();
                *table.cost(one, other) = sum / 2.0;
            }
        }
        table
    }

    fn cost(&mut self, one: usize, other: usize) -> &mut f64 {
        match one.cmp(&other) {
            std::cmp::Ordering::Greater => &mut self.costs[one * self.items + other],
            std::cmp::Ordering::Less => &mut self.opposite[other * self.items + one],
            std::cmp::Ordering::Equal => &mut self.now[one],
        }
    }

    /// The changes of the cost of traffic if `one` exchanges its place with each of the items before it.
    pub fn swap_deltas(&self, one: usize, deltas: &mut Vec<f64>) {
        let row = one * self.items..one * self.items + one;
        let own = self.now[one];
        let both = self.costs[row.clone()].iter().zip(&self.opposite[row.clone()]);
        let between = self.amounts[row.clone()].iter().zip(&self.distances[row]);
        let parts = both.zip(between).zip(&self.now[..one]);
        deltas.clear();
        deltas.extend(
            parts.map(|(((cost, opposite), (amount, far)), now)| cost + opposite - own - now + amount * far),
        );
    }

    /// Updates the tables after two items have exchanged their places.
    pub fn swapped(&mut self, one: usize, other: usize) {
        let items = self.items;
        for item in 0..items {
            let cost = *self.cost(item, one);
            *self.cost(item, one) = std::mem::replace(self.cost(item, other), cost);
            self.distances.swap(item * items + one, item * items + other);
        }
        for item in 0..items {
            self.distances.swap(one * items + item, other * items + item);
        }
        let rows = |table: &[f64], to: &mut [f64], scale: f64| {
            let (one, other) = (&table[one * items..], &table[other * items..]);
            to.iter_mut()
                .zip(one.iter().zip(other))
                .for_each(|(to, (one, other))| *to = scale * (one - other));
        };
        rows(&self.amounts, &mut self.more, 0.5);
        rows(&self.distances, &mut self.farther, 1.0);
        for item in 0..items {
            let row = item * items..item * items + item;
            let (more, farther) = (self.more[item], self.farther[item]);
            let costs = self.costs[row.clone()].iter_mut().zip(&self.farther);
            costs.for_each(|(cost, farther)| *cost += more * farther);
            let opposite = self.opposite[row].iter_mut().zip(&self.more);
            opposite.for_each(|(cost, more)| *cost += more * farther);
            self.now[item] += more * farther;
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::problem::{Flow, Item, Matrix, Place, Spec};

    #[test]
    fn tables_after_swaps_are_those_of_the_placement() {
        const ITEMS: usize = 9;
        let mut rng = Rng::with_seed(1);
        let mut distances = vec![0; ITEMS * ITEMS];
        for from in 0..ITEMS {
            for to in 0..from {
                let distance = rng.i32(0..50);
                (distances[from * ITEMS + to], distances[to * ITEMS + from]) = (distance, distance);
            }
        }
        let flow =
            |rng: &mut Rng| Flow { from: rng.usize(..ITEMS), to: rng.usize(..ITEMS), amount: rng.i64(0..50) };
        let spec = Spec {
            places: vec![Place::default(); ITEMS],
            items: vec![Item::default(); ITEMS],
            flows: (0..30).map(|_| flow(&mut rng)).collect(),
            distances: Matrix(distances),
            ..Spec::default()
        };
        let problem = Compact::of(&spec);
        let mut at: Vec<u32> = (0..ITEMS as u32).collect();
        let mut table = Exchange::of(&problem, &at);
        for _ in 0..50 {
            let (one, other) = (rng.usize(..ITEMS), rng.usize(..ITEMS));
            if one == other {
                continue;
            }
            at.swap(one, other);
            table.swapped(one, other);
            let mut anew = Exchange::of(&problem, &at);
            let (mut deltas, mut expected) = (Vec::new(), Vec::new());
            for item in 0..ITEMS {
                table.swap_deltas(item, &mut deltas);
                anew.swap_deltas(item, &mut expected);
                assert_eq!(deltas, expected);
                assert_eq!(*table.cost(item, one), *anew.cost(item, one));
            }
        }
    }
}
