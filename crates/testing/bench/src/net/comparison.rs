//! All paths in turn, so that they see the same machine.

use std::time::Duration;

use anyhow::Result;
use e2e::interrupt;

use super::ground::Ground;
use super::measure::Quantity;
use super::peer::Peer;
use super::{Missing, PLAIN, Path};
use crate::report::Row;

/// The place of the bare path among the paths.
const BARE: usize = 0;

/// The place of the overlay's.
const OURS: usize = 1;

/// The contenders, and how often each is measured.
pub struct Comparison<'a> {
    /// Where.
    pub ground: &'a Ground,
    /// The bare path, the overlay's, and the peers'.
    pub paths: Vec<Path>,
    /// How many times each.
    pub runs: u16,
    /// How long each time.
    pub seconds: u16,
}

/// The measurements of one quantity.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The quantity.
    pub quantity: Quantity,
    /// The figures of each path, in the order of the paths; none if there is one that could not be measured.
    pub of_paths: Vec<(&'static str, Vec<f64>)>,
}

impl Comparison<'_> {
    /// Measures `quantity`. Adds failed measurements to `missing`.
    ///
    /// # Errors
    /// If the lab cannot be made to lose packets.
    pub fn measure(&self, quantity: Quantity, missing: &mut Vec<Missing>) -> Result<Figures> {
        let loss = quantity.loss();
        let _lossy = (loss > 0).then(|| self.ground.lossy(loss)).transpose()?;
        let parts = quantity.parts();
        let time = Duration::from_secs(self.seconds.into()) / u32::from(parts);
        let measure = |path: &Path| {
            self.ground.prepare(path)?;
            quantity.measure(self.ground, path, time)
        };
        let (figures, failures) = in_turn(quantity, &self.paths, self.runs * parts, measure);
        if !failures.is_empty() {
            interrupt::stand_still_if_it_has_come();
        }
        missing.extend(failures);
        Ok(figures)
    }
}

/// Measures each path so many times. One that fails is not measured again, and has no figures.
fn in_turn(
    quantity: Quantity,
    paths: &[Path],
    turns: u16,
    mut measure: impl FnMut(&Path) -> Result<f64>,
) -> (Figures, Vec<Missing>) {
    let mut results: Vec<Result<Vec<f64>>> = paths.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..turns {
        for (path, result) in paths.iter().zip(&mut results) {
            if let Ok(figures) = result {
                match measure(path) {
                    Ok(figure) => figures.push(figure),
                    Err(error) => *result = Err(error),
                }
            }
        }
    }
    let (mut of_paths, mut missing) = (Vec::new(), Vec::new());
    for (path, result) in paths.iter().zip(results) {
        let figures = result.unwrap_or_else(|error| {
            let (quantity, reason) = (Some(quantity.name()), format!("{error:#}"));
            missing.push(Missing { name: path.name, quantity, reason });
            Vec::new()
        });
        of_paths.push((path.name, figures));
    }
    if quantity.is_latency() {
        subtract_bare(&mut of_paths);
    }
    (Figures { quantity, of_paths }, missing)
}

/// Takes from each figure that of the bare path in the same run; without one nothing remains.
fn subtract_bare(of_paths: &mut [(&'static str, Vec<f64>)]) {
    let Some(((_, bare), others)) = of_paths.split_first_mut() else { return };
    for (_, figures) in others {
        *figures = figures.iter().zip(&*bare).map(|(figure, bare)| figure - bare).collect();
    }
}

impl Figures {
    /// The overlay against each other path that has figures; nothing if the overlay has none.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let (name, unit) = (self.quantity.name(), self.quantity.unit());
        let Some(ours) = self.ours() else { return Vec::new() };
        let others =
            self.of_paths.iter().enumerate().filter(|(at, (_, figures))| *at != OURS && !figures.is_empty());
        let row = |(at, (other, figures)): (usize, &(&'static str, Vec<f64>))| match (at, self.quantity) {
            (BARE, Quantity::Latency { .. }) => {
                Row::alone(name.replace(" added", &format!(", {other}")), figures, unit)
            }
            _ => Row::compared(name.clone(), ours, (other, figures), unit),
        };
        others.map(row).chain(self.plain_row()).collect()
    }

    /// The overlay that does not seal against the peer that does not.
    fn plain_row(&self) -> Option<Row> {
        let of = |name: &str| {
            let found = self.of_paths.iter().find(|(of, _)| *of == name);
            found.map(|(_, figures)| &figures[..]).filter(|figures| !figures.is_empty())
        };
        let (ours, vxlan) = (of(PLAIN)?, of(Peer::Vxlan.name())?);
        let name = format!("{}, not sealed", self.quantity.name());
        Some(Row::compared(name, ours, (Peer::Vxlan.name(), vxlan), self.quantity.unit()))
    }

    /// The overlay's figures, if there are any.
    #[must_use]
    pub fn ours(&self) -> Option<&[f64]> {
        self.of_paths.get(OURS).map(|(_, figures)| &figures[..]).filter(|figures| !figures.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use anyhow::bail;

    use super::*;

    const STREAM: Quantity = Quantity::Streams { count: 1, loss: 0 };

    fn paths() -> [Path; 4] {
        ["bare", "overlay", "one", "two"].map(|name| Path {
            name,
            address: Ipv4Addr::LOCALHOST,
            sealed: None,
        })
    }

    #[test]
    fn paths_take_turns_and_one_that_fails_has_no_figures() {
        let (mut order, failing) = (Vec::new(), Cell::new(0));
        let (figures, missing) = in_turn(STREAM, &paths(), 3, |path| {
            order.push(path.name);
            failing.set(failing.get() + u32::from(path.name == "one"));
            if failing.get() == 2 {
                failing.set(0);
                bail!("it hangs");
            }
            Ok(2.0)
        });
        let turns =
            ["bare", "overlay", "one", "two", "bare", "overlay", "one", "two", "bare", "overlay", "two"];
        assert_eq!(order, turns);
        let reason = "it hangs".to_owned();
        assert_eq!(missing, [Missing { name: "one", quantity: Some(STREAM.name()), reason }]);
        let rows = figures.rows();
        let peers: Vec<_> = rows.iter().map(|row| (row.peer_name.as_deref(), row.ratio, row.runs)).collect();
        assert_eq!(peers, [(Some("bare"), Some(1.0), 3), (Some("two"), Some(1.0), 3)]);
    }

    #[test]
    fn latency_excludes_the_time_of_the_bare_path() {
        let times = |path: &Path| Ok(if path.name == "bare" { 10.0 } else { 14.0 + path.name.len() as f64 });
        let (figures, missing) = in_turn(Quantity::Latency { awake: false }, &paths(), 2, times);
        assert!(missing.is_empty());
        let rows = figures.rows();
        assert_eq!((rows[0].ours, rows[0].peer), (10.0, None));
        assert_eq!((rows[1].ours, rows[1].peer, rows[1].ratio), (11.0, Some(7.0), Some(1.571)));
    }

    #[test]
    fn plain_paths_are_compared_with_plain_peers() {
        let figures = [("bare", 9.0), ("overlay", 4.0), (PLAIN, 6.0), (Peer::Vxlan.name(), 8.0)];
        let of_paths = figures.map(|(name, figure)| (name, vec![figure])).into();
        let rows = Figures { quantity: STREAM, of_paths }.rows();
        let last = rows.last().unwrap();
        assert_eq!((last.ours, last.ratio), (6.0, Some(0.75)));
        assert_eq!((&last.name[..], rows.len()), ("one TCP stream, not sealed", 4));
    }

    #[test]
    fn without_the_overlay_no_peer_is_compared() {
        let measure = |path: &Path| if path.name == "overlay" { bail!("down") } else { Ok(1.0) };
        let (figures, missing) = in_turn(STREAM, &paths(), 1, measure);
        assert!(figures.rows().is_empty() && figures.ours().is_none());
        assert_eq!(missing.len(), 1);
    }
}
