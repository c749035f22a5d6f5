//! The results for people: a line for each quantity, a column for each path.

use super::comparison::Figures;
use crate::report::median;

/// Characters of the first column.
const NAME: usize = 38;

/// Characters of each other one.
const COLUMN: usize = 15;

/// The table's columns.
pub struct Table {
    names: Vec<&'static str>,
}

impl Table {
    /// A table of these paths.
    #[must_use]
    pub fn new(names: Vec<&'static str>) -> Self {
        Self { names }
    }

    /// The heading.
    #[must_use]
    pub fn heading(&self) -> String {
        let notes = "Medians; x: the overlay's divided by this one. Latency: half a round trip, with the bare veth's taken \
                     from all others.\n";
        let columns: String = self.names.iter().map(|name| format!("{name:>COLUMN$}")).collect();
        format!("{notes}{:NAME$}{columns}", "")
    }

    /// The line of `figures`. A column without figures says so.
    #[must_use]
    pub fn line(&self, figures: &Figures) -> String {
        let rows = figures.rows();
        let cell = |name: &&'static str| {
            let found = figures.of_paths.iter().find(|(of, figures)| of == name && !figures.is_empty());
            let Some((_, values)) = found else { return "missing".to_owned() };
            let row = rows.iter().find(|row| row.peer_name.as_deref() == Some(name));
            let ratio =
                row.and_then(|row| row.ratio).map(|ratio| format!(" x{ratio:.2}")).unwrap_or_default();
            format!("{:.2}{ratio}", median(values))
        };
        let name = format!("{}, {}", figures.quantity.name(), figures.quantity.unit());
        let cells: String = self.names.iter().map(|name| format!("{:>COLUMN$}", cell(name))).collect();
        format!("{name:NAME$}{cells}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::measure::Quantity;

    #[test]
    fn every_path_has_its_column_and_a_missing_one_says_so() {
        let table = Table::new(vec!["bare", "overlay", "one", "two", "three"]);
        let of_paths = vec![
            ("bare", vec![8.0]),
            ("overlay", vec![3.0, 4.0, 5.0]),
            ("two", vec![2.0]),
            ("three", vec![]),
        ];
        let line = table.line(&Figures { quantity: Quantity::Streams { count: 1, loss: 0 }, of_paths });
        let words: Vec<_> = line[NAME..].split_whitespace().collect();
        assert_eq!(words, ["8.00", "x0.50", "4.00", "missing", "2.00", "x2.00", "missing"]);
        assert!(table.heading().ends_with("overlay            one            two          three"));
    }
}
