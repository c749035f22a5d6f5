//! A plan as text.

use api::{Improvement, ImprovementStep, PlacementFigures, Stays};

use crate::figures::{mebibytes, rate};
use crate::table;

/// The figures and the moves. With `explain`, or if nothing moves, also the instances that stay for a reason of their own.
pub fn text(improvement: &Improvement, horizon_s: u64, explain: bool) -> String {
    let Improvement { before, after, waves, stay, unjudged } = improvement;
    let mut text = format!("Now:   {}\n", in_words(before));
    if waves.is_empty() {
        text += &format!("No move pays within {horizon_s} s.\n");
    } else {
        text += &format!("After: {}\n\n", in_words(after));
        let numbered =
            waves.iter().zip(1..).flat_map(|(wave, number)| wave.iter().map(move |step| (number, step)));
        let rows: Vec<_> = numbered.map(|(number, step)| row(number, step)).collect();
        text += &table::render(["WAVE", "INSTANCE", "FROM", "TO", "COPIED", "TRAFFIC THEN", "NOTE"], &rows);
    }
    let reasons = |title: &str, of: &[Stays]| {
        let rows: Vec<_> = of.iter().map(|stays| [stays.name.clone(), stays.why.clone()]).collect();
        format!("\n{}", table::render([title, "REASON"], &rows))
    };
    if (explain || waves.is_empty()) && !stay.is_empty() {
        text += &reasons("STAYS", stay);
    }
    if !unjudged.is_empty() {
        text += &reasons("NOT KNOWN", unjudged);
    }
    text
}

fn row(wave: usize, step: &ImprovementStep) -> [String; 7] {
    let ImprovementStep { name, from, to, copied_bytes, after, is_detour } = step;
    let note = if *is_detour { "makes room" } else { "" };
    [
        wave.to_string(),
        name.clone(),
        from.clone(),
        to.clone(),
        mebibytes(*copied_bytes),
        rate(after.traffic),
        note.into(),
    ]
}

fn in_words(figures: &PlacementFigures) -> String {
    let PlacementFigures { traffic, overload_milli, spread_permille, hosts } = figures;
    let overload = match overload_milli {
        0 => "no overload".to_owned(),
        milli => format!("{} processors too few", thousandths(*milli, 1000)),
    };
    format!(
        "{} between hosts, {overload}, hosts differ by {} % of their processors, {hosts} hosts in use",
        rate(*traffic),
        thousandths(*spread_permille, 10)
    )
}

/// A number of thousandths, in units of so many, with one decimal.
fn thousandths(number: u64, unit: u64) -> String {
    format!("{}.{}", number / unit, number % unit * 10 / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(traffic: u64) -> PlacementFigures {
        PlacementFigures { traffic, overload_milli: 1250, spread_permille: 375, hosts: 2 }
    }

    #[test]
    fn a_plan_names_its_moves_and_a_plan_without_any_says_so() {
        let step = ImprovementStep {
            name: "job".into(),
            from: "h1".into(),
            to: "h2".into(),
            copied_bytes: 3 << 20,
            after: figures(0),
            is_detour: true,
        };
        let stay = vec![Stays { name: "db".into(), why: "it is pinned".into() }];
        let mut improvement = Improvement {
            before: figures(5 << 20),
            after: figures(0),
            waves: vec![vec![step]],
            stay,
            unjudged: Vec::new(),
        };
        let shown = text(&improvement, 600, true);
        for part in
            ["5.0 MiB/s between hosts, 1.2 processors too few", "37.5 %", "makes room", "it is pinned"]
        {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(!text(&improvement, 600, false).contains("pinned"));
        improvement.unjudged = vec![Stays { name: "far".into(), why: "it is too far, perhaps".into() }];
        assert!(text(&improvement, 600, false).contains("it is too far, perhaps"));
        improvement.waves.clear();
        let shown = text(&improvement, 600, false);
        assert!(shown.contains("No move pays within 600 s.") && shown.contains("it is pinned"), "{shown}");
    }
}
