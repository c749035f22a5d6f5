//! Problems of QAPLIB, the library of quadratic assignment problems, as items of which each needs a place for itself.

use std::path::Path;

use anyhow::{Result, bail};
use solver::problem::{Flow, Item, Matrix, Place, Resource, Spec};

use super::numbers::Numbers;

/// The lowest costs that are known for problems, from QAPLIB and the literature.
pub const BEST: [(&str, i64); 19] = [
    ("nug30", 6_124),
    ("tai20a", 703_482),
    ("tai40a", 3_139_370),
    ("tai60a", 7_205_962),
    ("tai80a", 13_499_184),
    ("tai100a", 21_052_466),
    ("tai50b", 458_821_517),
    ("tai100b", 1_185_996_137),
    ("tai150b", 498_896_643),
    ("tai256c", 44_759_294),
    ("sko81", 90_998),
    ("sko90", 115_534),
    ("sko100a", 152_002),
    ("sko100f", 149_036),
    ("tho40", 240_516),
    ("tho150", 8_133_398),
    ("wil50", 48_816),
    ("wil100", 273_038),
    ("esc128", 64),
];

/// A problem as QAPLIB states it: two square matrices.
pub struct Assignment {
    size: usize,
    flows: Vec<i64>,
    distances: Vec<i64>,
}

impl Assignment {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is not a file of QAPLIB, or neither matrix is symmetric with a diagonal of zeros.
    pub fn read(path: &Path) -> Result<Self> {
        Self::of(Numbers::read(path)?)
    }

    fn of(mut numbers: Numbers) -> Result<Self> {
        let size = numbers.index()?;
        let (one, other) = (numbers.take(size * size)?, numbers.take(size * size)?);
        numbers.end()?;
        // Exchanging the matrices inverts the permutation and keeps its cost.
        let (flows, distances) = match (is_metric(&other, size), is_metric(&one, size)) {
            (true, _) => (one, other),
            (false, true) => (other, one),
            (false, false) => bail!("neither matrix is symmetric with a diagonal of zeros"),
        };
        Ok(Self { size, flows, distances })
    }

    /// The problem for the solver.
    ///
    /// # Errors
    /// If a distance is too large.
    pub fn spec(&self) -> Result<Spec> {
        let size = self.size;
        let place = Place { capacity: vec![1], level: vec![1], ..Place::default() };
        let item = |start| Item { demand: vec![1], start: Some(start), ..Item::default() };
        let pairs = (0..size).flat_map(|from| (0..from).map(move |to| (from, to)));
        let flow = |(from, to)| {
            let amount = self.flows[from * size + to] + self.flows[to * size + from];
            (amount != 0).then_some(Flow { from, to, amount })
        };
        let distances = self.distances.iter().map(|distance| i32::try_from(*distance));
        Ok(Spec {
            resources: vec![Resource { overload: 0, is_transient: false }],
            places: vec![place; size],
            items: (0..size).map(item).collect(),
            flows: pairs.filter_map(flow).collect(),
            distances: Matrix(distances.collect::<Result<_, _>>()?),
            ..Spec::default()
        })
    }

    /// The cost of a permutation, by QAPLIB's definition.
    #[must_use]
    pub fn cost(&self, permutation: &[usize]) -> i64 {
        let row = |(from, at): (usize, &usize)| -> i64 {
            let flows = &self.flows[from * self.size..(from + 1) * self.size];
            let distances = permutation.iter().map(|to| self.distances[at * self.size + to]);
            flows.iter().zip(distances).map(|(flow, distance)| flow * distance).sum()
        };
        permutation.iter().enumerate().map(row).sum()
    }
}

fn is_metric(matrix: &[i64], size: usize) -> bool {
    let at = |row: usize, column: usize| matrix[row * size + column];
    (0..size).all(|row| at(row, row) == 0 && (0..row).all(|column| at(row, column) == at(column, row)))
}

#[cfg(test)]
mod tests {
    use solver::problem::Problem;

    use super::*;

    const DISTANCES: &str = "0 1 2  1 0 3  2 3 0 ";
    const FLOWS: &str = "0 5 1  2 0 0  1 4 9 ";

    #[test]
    fn the_solver_sees_the_cost_of_the_definition_whichever_matrix_has_the_distances() {
        for text in [format!("3 {DISTANCES}{FLOWS}"), format!("3 {FLOWS}{DISTANCES}")] {
            let assignment = Assignment::of(Numbers::parse("x", &text).unwrap()).unwrap();
            let problem = Problem::new(&assignment.spec().unwrap()).unwrap();
            // 5·d(2,0) + 1·d(2,1) + 2·d(0,2) + 1·d(1,2) + 4·d(1,0)
            let found = solver::evaluate(&problem, &[Some(2), Some(0), Some(1)]);
            assert_eq!((found.cost, assignment.cost(&[2, 0, 1])), (24, 24));
        }
    }

    #[test]
    fn matrices_that_are_both_asymmetric_are_refused() {
        let text = format!("3 {FLOWS}{FLOWS}");
        assert!(Assignment::of(Numbers::parse("x", &text).unwrap()).is_err());
    }
}
