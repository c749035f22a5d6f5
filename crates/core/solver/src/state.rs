//! A placement with everything that makes the cost of a change cheap to compute.

use crate::compact::{Compact, NOWHERE, Neighbour};
use crate::problem::Cost;
use crate::sets::{Sets, Step};

/// A placement of all items, and its cost.
#[derive(Clone, Debug)]
pub struct State<'p> {
    pub problem: &'p Compact,
    /// By item.
    at: Vec<u32>,
    /// By place and resource: the demand of its items.
    load: Vec<i64>,
    /// By place and resource: the same, with the items that have left it.
    held: Vec<i64>,
    /// By place: its part of the cost.
    place_cost: Vec<Cost>,
    sets: Sets,
    cost: Cost,
    leavers_keep_room: bool,
}

impl<'p> State<'p> {
    /// All items at their start, others nowhere.
    pub fn new(problem: &'p Compact) -> Self {
        let slots = problem.places * problem.resources;
        let mut state = Self {
            problem,
            at: vec![NOWHERE; problem.items],
            load: vec![0; slots],
            held: vec![0; slots],
            place_cost: vec![0; problem.places],
            sets: Sets::new(problem),
            cost: 0,
            leavers_keep_room: false,
        };
        for place in 0..problem.places {
            state.place_cost[place] = state.cost_of_place(place, |_| 0);
            state.cost += state.place_cost[place];
        }
        for item in 0..problem.items {
            if problem.start[item] != NOWHERE {
                state.shift(item, problem.start[item] as usize);
            }
        }
        state
    }

    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// The place of an item.
    pub fn place_of(&self, item: usize) -> Option<usize> {
        (self.at[item] != NOWHERE).then_some(self.at[item] as usize)
    }

    /// The places of all items, with [`NOWHERE`] for none.
    pub fn places(&self) -> &[u32] {
        &self.at
    }

    pub fn sets(&self) -> &Sets {
        &self.sets
    }

    /// From now on, items that leave a place keep their room there: a wave of moves is not over before all of them are.
    pub fn keep_room_of_leavers(&mut self) {
        self.leavers_keep_room = true;
    }

    /// Whether the least demanding item might fit into a place.
    pub fn may_have_room(&self, place: usize) -> bool {
        let (problem, resources) = (self.problem, self.problem.resources);
        let fits = |resource: usize| {
            let slot = place * resources + resource;
            self.load[slot] + problem.least_demand[resource] <= problem.capacity[slot]
        };
        (0..resources).all(fits)
    }

    /// The cost of moving an item to a place; `None` if a constraint forbids it.
    pub fn shift_delta(&mut self, item: usize, to: usize) -> Option<Cost> {
        let step = Step { item, from: self.at[item], to: to as u32 };
        if step.from == step.to || !self.allows(step, None) {
            return None;
        }
        Some(self.local_delta(step) + self.traffic_delta(step, NOWHERE))
    }

    /// The cost of moving an item, without that of traffic, which the caller knows; `None` if a constraint forbids it.
    pub fn shift_delta_without_traffic(&mut self, item: usize, to: usize) -> Option<Cost> {
        let step = Step { item, from: self.at[item], to: to as u32 };
        (step.from != step.to && self.allows(step, None)).then(|| self.local_delta(step))
    }

    /// The cost of exchanging the places of two items; `None` if they share one, or a constraint forbids it.
    pub fn swap_delta(&mut self, one: usize, other: usize) -> Option<Cost> {
        let [first, second] = self.exchange(one, other)?;
        let traffic = self.traffic_delta(first, other as u32) + self.traffic_delta(second, one as u32);
        Some(self.local_swap_delta(first, second) + traffic)
    }

    /// As [`State::swap_delta`], without traffic.
    pub fn swap_delta_without_traffic(&mut self, one: usize, other: usize) -> Option<Cost> {
        let [first, second] = self.exchange(one, other)?;
        Some(self.local_swap_delta(first, second))
    }

    /// The most that another place of an item can lower the cost. Balances have no such bound.
    pub fn most_gain(&self, item: usize) -> Cost {
        let problem = self.problem;
        let Some(place) = self.place_of(item).filter(|_| problem.balances.is_empty()) else {
            return Cost::MAX;
        };
        // Without traffic there may be no distances.
        let traffic = |neighbour: &Neighbour| match self.at[neighbour.item as usize] {
            NOWHERE => 0,
            at => neighbour.amount * Cost::from(problem.distances_of(place)[at as usize]),
        };
        let traffic: Cost = problem.neighbours_of(item).iter().map(traffic).sum();
        let leaving = if problem.start[item] == place as u32 { problem.move_cost[item] } else { 0 };
        let disturbance = problem.disturbance * self.sets.most_moved() as Cost;
        traffic + self.place_cost[place] + problem.moved(item, place) + disturbance - leaving
    }

    fn exchange(&self, one: usize, other: usize) -> Option<[Step; 2]> {
        let (from, to) = (self.at[one], self.at[other]);
        let (first, second) = (Step { item: one, from, to }, Step { item: other, from: to, to: from });
        let is_move = from != to && from != NOWHERE && to != NOWHERE;
        (is_move && self.allows(first, Some(other)) && self.allows(second, Some(one)))
            .then_some([first, second])
    }

    fn allows(&self, step: Step, exchanged: Option<usize>) -> bool {
        self.problem.may_have(step.item, step.to as usize)
            && self.fits(step, exchanged)
            && self.sets.allow(self.problem, step, exchanged)
    }

    /// Whether the item's demand fits into its new place, which the exchanged item leaves.
    fn fits(&self, step: Step, exchanged: Option<usize>) -> bool {
        let problem = self.problem;
        let (resources, to) = (problem.resources, step.to as usize);
        let slots = to * resources..(to + 1) * resources;
        let leaving = |resource: usize| exchanged.map_or(0, |other| problem.demand_of(other)[resource]);
        let demand = problem.demand_of(step.item);
        let (capacity, load) = (&problem.capacity[slots.clone()], &self.load[slots.clone()]);
        // What becomes less fits, even if it is too much.
        let has_room = |resource: usize, load: i64, more: i64| more <= 0 || load + more <= capacity[resource];
        if !(0..resources)
            .all(|resource| has_room(resource, load[resource], demand[resource] - leaving(resource)))
        {
            return false;
        }
        if !problem.has_transient {
            return true;
        }
        let held = &self.held[slots];
        let comes = problem.start[step.item] != step.to;
        let goes = exchanged.is_some_and(|other| problem.start[other] != step.to);
        (0..resources).filter(|resource| problem.is_transient[*resource]).all(|resource| {
            let more = if comes { demand[resource] } else { 0 } - if goes { leaving(resource) } else { 0 };
            has_room(resource, held[resource], more)
        })
    }

    /// The change of the costs of both places and of moving.
    fn local_delta(&mut self, step: Step) -> Cost {
        let problem = self.problem;
        let demand = problem.demand_of(step.item);
        let to = step.to as usize;
        let mut delta = self.cost_of_place(to, |resource| demand[resource]) - self.place_cost[to];
        delta += problem.moved(step.item, to);
        if step.from != NOWHERE {
            let from = step.from as usize;
            delta += self.cost_of_place(from, |resource| -demand[resource]) - self.place_cost[from];
            delta -= problem.moved(step.item, from);
        }
        delta + self.disturbance_delta(&[step])
    }

    fn local_swap_delta(&mut self, first: Step, second: Step) -> Cost {
        let problem = self.problem;
        let (one, other) = (problem.demand_of(first.item), problem.demand_of(second.item));
        let (from, to) = (first.from as usize, first.to as usize);
        let mut delta = 0;
        if one != other {
            delta += self.cost_of_place(to, |resource| one[resource] - other[resource]) - self.place_cost[to];
            delta +=
                self.cost_of_place(from, |resource| other[resource] - one[resource]) - self.place_cost[from];
        }
        delta += problem.moved(first.item, to) - problem.moved(first.item, from);
        delta += problem.moved(second.item, from) - problem.moved(second.item, to);
        delta + self.disturbance_delta(&[first, second])
    }

    fn disturbance_delta(&mut self, steps: &[Step]) -> Cost {
        if self.problem.disturbance == 0 {
            return 0;
        }
        let before = self.sets.most_moved();
        steps.iter().for_each(|step| self.sets.count_moved(self.problem, *step));
        let after = self.sets.most_moved();
        for Step { item, from, to } in steps.iter().copied() {
            self.sets.count_moved(self.problem, Step { item, from: to, to: from });
        }
        self.problem.disturbance * (after as Cost - before as Cost)
    }

    /// The change of the cost of traffic, without that to `exchanged`.
    fn traffic_delta(&self, step: Step, exchanged: u32) -> Cost {
        let neighbours = self.problem.neighbours_of(step.item);
        if neighbours.is_empty() {
            return 0;
        }
        let to = self.problem.distances_of(step.to as usize);
        let from = (step.from != NOWHERE).then(|| self.problem.distances_of(step.from as usize));
        let mut delta = 0;
        for neighbour in neighbours {
            let at = self.at[neighbour.item as usize];
            if neighbour.item == exchanged || at == NOWHERE {
                continue;
            }
            let before = from.map_or(0, |from| from[at as usize]);
            delta += neighbour.amount * Cost::from(to[at as usize] - before);
        }
        delta
    }

    /// The cost of a place with a changed load.
    fn cost_of_place(&self, place: usize, change: impl Fn(usize) -> i64) -> Cost {
        let problem = self.problem;
        let slots = place * problem.resources..(place + 1) * problem.resources;
        let (load, level, capacity) =
            (&self.load[slots.clone()], &problem.level[slots.clone()], &problem.capacity[slots]);
        let mut cost = 0;
        for (resource, overload) in problem.overload.iter().enumerate() {
            let load = load[resource] + change(resource);
            cost += overload * (load - level[resource]).max(0);
            cost += problem.excess * (load - capacity[resource]).max(0);
        }
        let free = |resource: usize| capacity[resource] - load[resource] - change(resource);
        for balance in &problem.balances {
            cost += balance.weight * (balance.factor * free(balance.of) - free(balance.per)).max(0);
        }
        cost
    }

    /// Moves an item, without a look at constraints.
    pub fn shift(&mut self, item: usize, to: usize) {
        let step = Step { item, from: self.at[item], to: to as u32 };
        if step.from == step.to {
            return;
        }
        self.cost += self.local_delta(step) + self.traffic_delta(step, NOWHERE);
        self.sets.apply(self.problem, step);
        let start = self.problem.start[item];
        if step.from != NOWHERE && !self.leavers_keep_room {
            self.add(step.from as usize, item, -1, step.from != start);
        }
        self.add(to, item, 1, step.to != start || step.from == NOWHERE);
        self.at[item] = step.to;
    }

    /// Exchanges the places of two items, without a look at constraints.
    pub fn swap(&mut self, one: usize, other: usize) {
        let (Some(from), Some(to)) = (self.place_of(one), self.place_of(other)) else { return };
        self.shift(one, to);
        self.shift(other, from);
    }

    fn add(&mut self, place: usize, item: usize, sign: i64, changes_held: bool) {
        let resources = self.problem.resources;
        for (resource, demand) in self.problem.demand_of(item).iter().enumerate() {
            self.load[place * resources + resource] += sign * demand;
            if changes_held {
                self.held[place * resources + resource] += sign * demand;
            }
        }
        self.place_cost[place] = self.cost_of_place(place, |_| 0);
    }
}
