//! An order of moves from the start to a placement, in which every instant obeys the constraints.

use crate::compact::{Compact, NOWHERE};
use crate::problem::{Cost, Problem};
use crate::state::State;

/// One move of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The item.
    pub item: usize,
    /// Its place before.
    pub from: usize,
    /// Its place afterwards.
    pub to: usize,
    /// How much the move lowers the cost, its own cost of moving included. It may be negative if the move makes room for others.
    pub gain: Cost,
}

/// Moves in waves: those of one wave may run at the same time, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The waves, one after the other.
    pub waves: Vec<Vec<Move>>,
    /// Items that stay where they are, because no order brings them to their place.
    pub stuck: Vec<usize>,
}

/// Orders the moves from the items' starts to `places`, with at most `at_once` moves in a wave. While it moves, an item needs its demand at both
/// places. Where items are in each other's way, one of them goes to a third place first.
#[must_use]
pub fn order(problem: &Problem, places: &[Option<usize>], at_once: usize) -> Order {
    let mut ordering = Ordering::new(problem, places);
    let mut order = Order::default();
    loop {
        let mut wave = ordering.wave(at_once.max(1));
        if wave.is_empty() {
            wave.extend(ordering.detour());
        }
        if wave.is_empty() {
            break;
        }
        order.waves.push(wave);
    }
    order.stuck = ordering.left;
    order
}

struct Ordering<'p> {
    state: State<'p>,
    goals: Vec<Option<usize>>,
    /// Items that have not arrived, in ascending order.
    left: Vec<usize>,
    /// By item: whether it has made a detour, which it does once.
    has_detoured: Vec<bool>,
}

impl<'p> Ordering<'p> {
    fn new(problem: &'p Problem, places: &[Option<usize>]) -> Self {
        let state = State::new(&problem.0);
        let moves = |item: &usize| state.places()[*item] != NOWHERE && state.place_of(*item) != places[*item];
        let left = (0..places.len()).filter(moves).collect();
        Self { goals: places.to_vec(), left, has_detoured: vec![false; places.len()], state }
    }

    /// The moves that can all run now, those with the highest gain first.
    fn wave(&mut self, at_once: usize) -> Vec<Move> {
        let mut wave = Vec::new();
        // Until a wave ends, what has left a place still needs its room there.
        let mut during = self.state.clone();
        during.keep_room_of_leavers();
        while wave.len() < at_once {
            let candidates = self.left.iter().filter_map(|item| {
                let to = self.goals[*item]?;
                if wave.iter().any(|chosen: &Move| are_bound(self.state.problem, chosen.item, *item)) {
                    return None;
                }
                during.shift_delta(*item, to)?;
                Some((self.state.shift_delta(*item, to)?, *item, to))
            });
            let Some((delta, item, to)) = candidates.min() else { break };
            let from = self.state.places()[item] as usize;
            during.shift(item, to);
            self.state.shift(item, to);
            self.left.retain(|other| *other != item);
            wave.push(Move { item, from, to, gain: -delta });
        }
        wave
    }

    /// A move of an item to a third place, so that it is not in another item's way any more. The cheapest of those moves.
    fn detour(&mut self) -> Option<Move> {
        let mut best = None::<(Cost, usize, usize, usize)>;
        for item in self.left.iter().filter(|item| !self.has_detoured[**item]) {
            let from = self.state.places()[*item] as usize;
            let is_wanted = self.left.iter().any(|other| other != item && self.goals[*other] == Some(from));
            if !is_wanted {
                continue;
            }
            for to in 0..self.state.problem.places {
                if self.goals[*item] != Some(to)
                    && let Some(delta) = self.state.shift_delta(*item, to)
                    && best.is_none_or(|(least, ..)| delta < least)
                {
                    best = Some((delta, *item, from, to));
                }
            }
        }
        let (delta, item, from, to) = best?;
        self.state.shift(item, to);
        self.has_detoured[item] = true;
        Some(Move { item, from, to, gain: -delta })
    }
}

/// Whether a constraint that depends on the place of one item may depend on the place of the other, too.
fn are_bound(problem: &Compact, one: usize, other: usize) -> bool {
    let (ones, others) = (problem.sets_of.of_index(one), problem.sets_of.of_index(other));
    let wants =
        |set: &u32, list: &[u32]| problem.near.of_index(*set as usize).iter().any(|near| list.contains(near));
    ones.iter().any(|set| others.contains(set) || wants(set, others))
        || others.iter().any(|set| wants(set, ones))
}
