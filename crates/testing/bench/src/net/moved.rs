//! For how long a station is silent while it moves, as a prober on a third host sees it.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::asked::{Asked, beside};
use e2e::overlay::{Stream, await_kernel};

use super::{PLAIN, SEALED};
use crate::report::{Row, quantile};

/// The begin of the rows' names.
pub const NAME: &str = "silence of a moved station";

/// For how long the station is asked where it is, before it moves.
const STILL: Duration = Duration::from_secs(10);

/// Moves a station to and fro between two hosts, `moves` times on sealed links, and as often on links that are not
/// sealed. Meanwhile a stream from one host to the other keeps the processors busy. The silence without a move is
/// measured for comparison.
///
/// # Errors
/// If a move fails, an answer comes twice, or the former host answers once the next one has.
pub fn rows(moves: u16) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, layout) in [(SEALED, &["mesh"][..]), (PLAIN, &["mesh", "--plain"])] {
        rows.extend(rows_of(name, layout, moves.into()).with_context(|| format!("{NAME}, {name}"))?);
    }
    Ok(rows)
}

fn rows_of(name: &str, layout: &[&str], moves: usize) -> Result<[Row; 6]> {
    let mut asked = Asked::begin(layout)?;
    if name == PLAIN {
        for hosts in [["h1", "h2"], ["h1", "h3"], ["h2", "h3"]] {
            await_kernel(&asked.lab, hosts, true)?;
        }
    }
    let mut stream = Stream::start(&asked.lab, &["h1", "--"], &["h2", "--"], &beside("h2"))?;
    stream.goes_on()?;
    asked.answered_by("h1")?;
    sleep(STILL);
    let pauses = asked.move_to_and_fro(moves)?;
    stream.goes_on().context("the stream beside the moves")?;
    let (summary, _lab) = asked.end()?;
    stream.end().context("the stream beside the moves")?;
    summary.require_one_place(moves)?;
    let silence = |what: &str, share| {
        let [ours, still] = [&summary.hand_overs, &summary.still].map(|silences| quantile(silences, share));
        let name = format!("{NAME}, {what}, {name}");
        Row { runs: moves, ..Row::compared(name, &[ours], ("no move", &[still]), "ms") }
    };
    let pauses: Vec<_> = pauses.iter().map(Duration::as_secs_f64).map(|pause| pause * 1e3).collect();
    let alone = |what: &str, values: &[f64], unit| Row {
        runs: moves,
        ..Row::alone(format!("{what} of a moved station, {name}"), values, unit)
    };
    Ok([
        silence("median", 0.5),
        silence("99th percentile", 0.99),
        silence("longest", 1.0),
        alone("pause", &pauses, "ms"),
        alone("answers twice", &[summary.twice as f64], ""),
        alone("ways back to the former place", &[(summary.hand_overs.len() - moves) as f64], ""),
    ])
}
