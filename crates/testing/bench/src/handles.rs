//! The cost of virtual handles: posting and polling where every virtual handle differs from the real one, compared with the same where
//! they are equal.

use anyhow::Result;
use verbs::Policy;

use crate::inside::Exchange;
use crate::report::Row;

/// Pairs of measurements per run.
const PAIRS: u16 = 10;

/// The compared messages.
const KINDS: [(&str, bool); 2] = [("SEND", false), ("WRITE with immediate data", true)];

/// For each kind of message, the time of a post and its polls with and without virtual handles, and the difference
/// within the pairs.
///
/// # Errors
/// If the device refuses something.
pub fn rows(runs: u16) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, writes) in KINDS {
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for _ in 0..runs * PAIRS {
            on.push(Exchange::new(Policy::Random, writes)?.time()?);
            off.push(Exchange::new(Policy::Stable, writes)?.time()?);
        }
        let costs: Vec<f64> = on.iter().zip(&off).map(|(on, off)| on - off).collect();
        rows.push(Row::compared(
            format!("post + poll, {name}"),
            &on,
            ("without virtual handles", &off),
            "ns",
        ));
        rows.push(Row::alone(format!("cost of virtual handles, {name}"), &costs, "ns"));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_pass_with_all_handles() {
        for (_, writes) in KINDS {
            for policy in [Policy::Random, Policy::Stable] {
                assert!(Exchange::new(policy, writes).unwrap().time().unwrap() > 0.0);
            }
        }
    }
}
