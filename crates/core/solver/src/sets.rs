//! Where the members of sets are, and what their constraints allow.

use crate::compact::{Compact, NOWHERE};

/// A change of an item's place.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub item: usize,
    /// [`NOWHERE`] for an item without a place.
    pub from: u32,
    pub to: u32,
}

/// Counts of members.
#[derive(Clone, Debug)]
pub struct Sets {
    /// By set and place, region, zone.
    at_place: Vec<u16>,
    at_region: Vec<u16>,
    at_zone: Vec<u16>,
    /// By set: regions that have a member.
    regions: Vec<u32>,
    /// By set: members that are away from their start.
    moved: Vec<u32>,
    /// By number: sets with so many moved members.
    with_moved: Vec<u32>,
    most_moved: usize,
}

impl Sets {
    /// Counts without any item.
    pub fn new(problem: &Compact) -> Self {
        let sets = problem.rules.len();
        let mut with_moved = vec![0; problem.items + 1];
        with_moved[0] = sets as u32;
        Self {
            at_place: vec![0; sets * problem.places],
            at_region: vec![0; sets * problem.regions],
            at_zone: vec![0; sets * problem.zones],
            regions: vec![0; sets],
            moved: vec![0; sets],
            with_moved,
            most_moved: 0,
        }
    }

    /// The moved members of the counted set that has most of them.
    pub fn most_moved(&self) -> usize {
        self.most_moved
    }

    /// Whether the constraints of the item's sets allow the step, together with the opposite step of the item `exchanged`. A constraint
    /// that is violated already may stay so.
    pub fn allow(&self, problem: &Compact, step: Step, exchanged: Option<usize>) -> bool {
        let others = exchanged.map_or(&[][..], |item| problem.sets_of.of_index(item));
        let own = problem.sets_of.of_index(step.item);
        own.iter().all(|set| self.allows(problem, *set as usize, step, own, others))
    }

    fn allows(&self, problem: &Compact, set: usize, step: Step, own: &[u32], others: &[u32]) -> bool {
        let Step { from, to, .. } = step;
        let rule = &problem.rules[set];
        let is_in = |list: &[u32], set: usize| u16::from(list.contains(&(set as u32)));
        let is_shared = is_in(others, set) == 1;
        if rule.is_apart && self.at_place[set * problem.places + to as usize] > u16::from(is_shared) {
            return false;
        }
        if from == NOWHERE || is_shared {
            return true;
        }
        let (region_from, region_to) =
            (problem.region[from as usize] as usize, problem.region[to as usize] as usize);
        if rule.regions > 0 && region_from != region_to {
            let at = |region: usize| self.at_region[set * problem.regions + region];
            let (before, lost, won) =
                (self.regions[set], u32::from(at(region_from) == 1), u32::from(at(region_to) == 0));
            if lost > won && before <= rule.regions {
                return false;
            }
        }
        let (zone_from, zone_to) = (problem.zone[from as usize] as usize, problem.zone[to as usize] as usize);
        if zone_from == zone_to {
            return true;
        }
        let at = |set: usize, zone: usize| self.at_zone[set * problem.zones + zone];
        let near = |other: &u32| {
            let other = *other as usize;
            at(other, zone_to) + is_in(own, other) > is_in(others, other)
        };
        let unwanted = |other: &u32| {
            let other = *other as usize;
            at(other, zone_from) + is_in(others, other) == is_in(own, other)
        };
        let is_last = at(set, zone_from) == 1;
        problem.near.of_index(set).iter().all(near)
            && (!is_last || problem.wanted_by.of_index(set).iter().all(unwanted))
    }

    /// Counts the step.
    pub fn apply(&mut self, problem: &Compact, step: Step) {
        for set in problem.sets_of.of_index(step.item) {
            let set = *set as usize;
            if step.from != NOWHERE {
                self.leave(problem, set, step.from as usize);
            }
            self.enter(problem, set, step.to as usize);
        }
        self.count_moved(problem, step);
    }

    fn leave(&mut self, problem: &Compact, set: usize, place: usize) {
        self.at_place[set * problem.places + place] -= 1;
        self.at_zone[set * problem.zones + problem.zone[place] as usize] -= 1;
        let left = &mut self.at_region[set * problem.regions + problem.region[place] as usize];
        *left -= 1;
        self.regions[set] -= u32::from(*left == 0);
    }

    fn enter(&mut self, problem: &Compact, set: usize, place: usize) {
        self.at_place[set * problem.places + place] += 1;
        self.at_zone[set * problem.zones + problem.zone[place] as usize] += 1;
        let there = &mut self.at_region[set * problem.regions + problem.region[place] as usize];
        self.regions[set] += u32::from(*there == 0);
        *there += 1;
    }

    /// Counts that the step moves the item away from its start, or back. An item without a place counts as at its start.
    pub fn count_moved(&mut self, problem: &Compact, step: Step) {
        let start = problem.start[step.item];
        let is_away = |place: u32| start != NOWHERE && place != NOWHERE && place != start;
        let (was_away, is_away) = (is_away(step.from), is_away(step.to));
        if was_away == is_away {
            return;
        }
        for set in problem.sets_of.of_index(step.item) {
            let set = *set as usize;
            if problem.rules[set].is_counted {
                self.count(set, is_away);
            }
        }
    }

    fn count(&mut self, set: usize, is_away: bool) {
        let moved = &mut self.moved[set];
        self.with_moved[*moved as usize] -= 1;
        *moved = if is_away { *moved + 1 } else { *moved - 1 };
        self.with_moved[*moved as usize] += 1;
        self.most_moved = self.most_moved.max(*moved as usize);
        while self.most_moved > 0 && self.with_moved[self.most_moved] == 0 {
            self.most_moved -= 1;
        }
    }

    /// How many sets spread over fewer regions than they must, or lack a near set, or have members together that are apart.
    pub fn violations(&self, problem: &Compact) -> usize {
        let places = problem.places;
        let violates = |set: &usize| {
            let (set, rule) = (*set, &problem.rules[*set]);
            let together = || (0..places).any(|place| self.at_place[set * places + place] > 1);
            let zone = |set: usize, zone: usize| self.at_zone[set * problem.zones + zone];
            let lacks = |at: usize| {
                zone(set, at) > 0
                    && problem.near.of_index(set).iter().any(|near| zone(*near as usize, at) == 0)
            };
            rule.is_apart && together() || self.regions[set] < rule.regions || (0..problem.zones).any(lacks)
        };
        (0..problem.rules.len()).filter(violates).count()
    }
}
