//! The problem: items, places, and the cost of each placement.
//!
//! ```text
//! cost = Σ places      overload + excess + imbalance
//!      + Σ flows       amount × distance between the places of both ends
//!      + Σ moved items their cost of moving + relocation from start to place
//!      + disturbance × the largest number of moved members of one set
//! ```

use crate::compact::Compact;

/// Costs, without a unit. A problem must not reach `Cost::MAX / 4`.
pub type Cost = i64;

/// A resource that places have and items need, such as memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The cost of each unit of load above the level of its place.
    pub overload: Cost,
    /// A moved item keeps what it has at its start until all moves are done.
    pub is_transient: bool,
}

/// A place for items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The limit of each resource's load.
    pub capacity: Vec<i64>,
    /// The load of each resource up to which the place is not overloaded.
    pub level: Vec<i64>,
    /// The region for sets that spread: places of one region fail together.
    pub region: usize,
    /// The zone for sets that want each other near.
    pub zone: usize,
}

/// An item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// The load of each resource where it is.
    pub demand: Vec<i64>,
    /// Its place before the plan; `None` for a new item.
    pub start: Option<usize>,
    /// The cost of moving it away from its start.
    pub move_cost: Cost,
    /// The places that it may have, in ascending order; all places, if this is `None`.
    pub places: Option<Vec<usize>>,
}

/// A set of items with a common constraint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// The items.
    pub members: Vec<usize>,
    /// No two members share a place.
    pub is_apart: bool,
    /// The least number of regions that have a member.
    pub regions: usize,
    /// Sets of which each zone needs a member, if it has a member of this set.
    pub near: Vec<usize>,
    /// Its moved members count as a disturbance.
    pub is_counted: bool,
}

/// The cost of an imbalance of two resources at each place: `weight × max(0, factor × free(of) − free(per))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// A resource.
    pub of: usize,
    /// The resource that must be free in proportion to it.
    pub per: usize,
    /// How much of `per` is wanted for each free unit of `of`.
    pub factor: i64,
    /// The cost of each missing unit.
    pub weight: Cost,
}

/// Traffic between two items, in both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// One end.
    pub from: usize,
    /// The other end.
    pub to: usize,
    /// Its amount.
    pub amount: i64,
}

/// A square matrix over the places; empty stands for zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix(pub Vec<i32>);

/// A problem in words that a person can check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// The resources.
    pub resources: Vec<Resource>,
    /// The places.
    pub places: Vec<Place>,
    /// The items.
    pub items: Vec<Item>,
    /// The sets.
    pub sets: Vec<Set>,
    /// The costs of imbalance.
    pub balances: Vec<Balance>,
    /// The traffic.
    pub flows: Vec<Flow>,
    /// The distances between places: symmetric, with a diagonal of zeros.
    pub distances: Matrix,
    /// The cost of moving any item from one place (row) to another.
    pub relocation: Matrix,
    /// The cost of each moved member of the set with the most moved members.
    pub disturbance: Cost,
    /// The cost of each unit of load above a capacity, which only items at their start can cause.
    pub excess: Cost,
}

/// Why a problem is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A part refers to an item, place, set or resource that does not exist.
    #[error("{0} does not exist")]
    Unknown(String),
    /// A list has not one entry for each resource, or a matrix not one for each pair of places.
    #[error("{0} has a wrong length")]
    Length(String),
    /// The distances are not symmetric, or a place has a distance to itself.
    #[error("the distances are not symmetric with a diagonal of zeros")]
    Distances,
}

/// A checked problem.
#[derive(Debug)]
pub struct Problem(pub(crate) Compact);

impl Problem {
    /// Checks a problem.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn new(spec: &Spec) -> Result<Self, Invalid> {
        check(spec)?;
        Ok(Self(Compact::of(spec)))
    }

    /// How many items there are.
    #[must_use]
    pub fn items(&self) -> usize {
        self.0.items
    }

    /// How many places there are.
    #[must_use]
    pub fn places(&self) -> usize {
        self.0.places
    }
}

fn check(spec: &Spec) -> Result<(), Invalid> {
    let (resources, places, items, sets) =
        (spec.resources.len(), spec.places.len(), spec.items.len(), spec.sets.len());
    let known = |what: &str, index: usize, count: usize| {
        (index < count).then_some(()).ok_or_else(|| Invalid::Unknown(format!("{what} {index}")))
    };
    let long =
        |what: &str, is_right: bool| is_right.then_some(()).ok_or_else(|| Invalid::Length(what.to_owned()));
    for place in &spec.places {
        long("a capacity", place.capacity.len() == resources)?;
        long("a level", place.level.len() == resources)?;
    }
    for item in &spec.items {
        long("a demand", item.demand.len() == resources)?;
        let allowed = item.places.iter().flatten();
        item.start.iter().chain(allowed).try_for_each(|place| known("place", *place, places))?;
    }
    for set in &spec.sets {
        set.members.iter().try_for_each(|member| known("item", *member, items))?;
        set.near.iter().try_for_each(|near| known("set", *near, sets))?;
    }
    for balance in &spec.balances {
        [balance.of, balance.per].iter().try_for_each(|resource| known("resource", *resource, resources))?;
    }
    for flow in &spec.flows {
        [flow.from, flow.to].iter().try_for_each(|item| known("item", *item, items))?;
    }
    for (what, Matrix(matrix)) in [("distances", &spec.distances), ("relocation", &spec.relocation)] {
        long(what, matrix.is_empty() || matrix.len() == places * places)?;
    }
    match is_metric(&spec.distances, places) {
        true => Ok(()),
        false => Err(Invalid::Distances),
    }
}

fn is_metric(Matrix(distances): &Matrix, places: usize) -> bool {
    let at = |from: usize, to: usize| distances[from * places + to];
    distances.is_empty()
        || (0..places).all(|from| at(from, from) == 0 && (0..from).all(|to| at(from, to) == at(to, from)))
}
