//! Medians, and the line with which each benchmark ends.

use std::io::{self, Write as _};

use serde::Serialize;

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The compared quantity.
    pub name: String,
    /// Our median.
    pub ours: f64,
    /// The peer's median, if there is a peer.
    pub peer: Option<f64>,
    /// The name of the peer.
    pub peer_name: Option<String>,
    /// The unit of both.
    pub unit: &'static str,
    /// Ours divided by the peer's.
    pub ratio: Option<f64>,
    /// How many runs of each.
    pub runs: usize,
}

impl Row {
    /// The comparison of our runs with the peer's.
    #[must_use]
    pub fn compared(name: String, ours: &[f64], peer: (&str, &[f64]), unit: &'static str) -> Self {
        let (peer_name, peers) = peer;
        let (median, other) = (self::median(ours), self::median(peers));
        let ratio = (other > 0.0).then(|| rounded(median / other));
        let (ours, runs) = (rounded(median), ours.len());
        Self { name, ours, peer: Some(rounded(other)), peer_name: Some(peer_name.into()), unit, ratio, runs }
    }

    /// Our runs alone, where there is no peer.
    #[must_use]
    pub fn alone(name: String, ours: &[f64], unit: &'static str) -> Self {
        let (median, runs) = (self::median(ours), ours.len());
        Self { name, ours: rounded(median), peer: None, peer_name: None, unit, ratio: None, runs }
    }

    /// For people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let peer = self.peer.zip(self.ratio).map(|(peer, ratio)| {
            format!("  {:>12.3} {}  ratio {ratio:.3}", peer, self.peer_name.as_deref().unwrap_or_default())
        });
        format!("{:<44} {:>12.3} {:<5}{}", self.name, self.ours, self.unit, peer.unwrap_or_default())
    }
}

/// Prints the line at the end.
///
/// # Errors
/// If standard output is closed.
pub fn print(bench: &str, rows: &[Row]) -> io::Result<()> {
    print_line(&serde_json::json!({ "bench": bench, "rows": rows }))
}

/// The same, with the failed measurements.
///
/// # Errors
/// As [`print`].
pub fn print_with_missing(bench: &str, rows: &[Row], missing: &[impl Serialize]) -> io::Result<()> {
    print_line(&serde_json::json!({ "bench": bench, "rows": rows, "missing": missing }))
}

fn print_line(line: &serde_json::Value) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}

/// The middle one; of an even number, the mean of the middle two; 0 of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (length, middle) if length % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The least value that so much of all, of 0 to 1, is not above; 0 of none.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(0.0)
}

/// Digits beyond the thousandth are noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 100.0]) - 3.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 100.0]) - 3.0).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<_> = (1..=200).rev().map(f64::from).collect();
        for (share, expected) in [(0.0, 1.0), (0.5, 100.0), (0.99, 198.0), (1.0, 200.0)] {
            assert!((quantile(&values, share) - expected).abs() < f64::EPSILON, "{share}");
        }
        assert!(quantile(&[], 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_row_matches_its_line() {
        let row = Row::compared("x".into(), &[1.0], ("y", &[2.0]), "us");
        let json = serde_json::to_value(&row).unwrap();
        let expected = serde_json::json!({
            "name": "x", "ours": 1.0, "peer": 2.0, "peer_name": "y", "unit": "us", "ratio": 0.5, "runs": 1
        });
        assert_eq!(json, expected);
    }
}
