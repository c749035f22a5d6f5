//! Labels, affinity and demands of instances, as users write them.

use std::collections::{BTreeMap, BTreeSet};

use api::{Failure, RunRequest};
use instance::InstanceName;
use moves::placement::{Demand, Placement};

use crate::core::State;
use crate::failure;

/// The limit of labels of an instance.
const MAX_LABELS: usize = 16;

/// The longest key, and the longest value, in bytes.
const MAX_WORD: usize = 63;

/// The limit of other instances to which an instance demands bandwidth, and latency.
const MAX_OTHERS: usize = 64;

/// The limits of demands: thousandths of processors, bytes, bytes a second, and microseconds.
const MAX_CPU_MILLI: u64 = 1_000_000_000;
const MAX_MEMORY: u64 = 1 << 50;
const MAX_RATE: u64 = 1 << 40;
const MAX_LATENCY_US: u64 = 3_600_000_000;

/// Validates the requested placement.
///
/// # Errors
/// If a label is invalid, there are too many, affinity or anti-affinity names a label that the instance does not have, both name the same
/// one, or a demand is out of bounds or names an instance that does not exist.
pub fn wanted(state: &State, request: &RunRequest) -> Result<Placement, Failure> {
    let RunRequest { labels, anti_affinity, affinity, .. } = request;
    check_labels(labels, anti_affinity, affinity)?;
    let demand = Demand {
        cpu_milli: request.demand.cpu_milli,
        memory: request.demand.memory_bytes.or(request.vm.as_ref().map(|vm| vm.memory_bytes)),
        bandwidth_to: request.demand.bandwidth_to.clone(),
        latency_to: request.demand.latency_to_us.clone(),
    };
    check_demand(&demand)?;
    let others = demand.bandwidth_to.keys().zip(std::iter::repeat("--bandwidth-to"));
    let mut others = others.chain(demand.latency_to.keys().zip(std::iter::repeat("--latency-to")));
    if let Some((name, option)) = others.find(|(name, _)| state.find(name).is_none()) {
        return Err(failure::no_other(option, name));
    }
    Ok(Placement {
        labels: labels.clone(),
        anti_affinity: anti_affinity.clone(),
        affinity: affinity.clone(),
        cool_down_s: request.cool_down_s,
        is_pinned: request.pin,
        demand,
    })
}

fn check_labels(
    labels: &BTreeMap<String, String>,
    anti_affinity: &BTreeSet<String>,
    affinity: &BTreeSet<String>,
) -> Result<(), Failure> {
    if labels.len() > MAX_LABELS {
        return Err(failure::too_many_labels(labels.len(), MAX_LABELS));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let is_word = |text: &str| (1..=MAX_WORD).contains(&text.len()) && text.bytes().all(allowed);
    if let Some((key, value)) = labels.iter().find(|(key, value)| !(is_word(key) && is_word(value))) {
        return Err(failure::no_label(key, value, MAX_WORD));
    }
    let named = |what: &'static str, keys: &BTreeSet<String>| {
        let missing = keys.iter().find(|key| !labels.contains_key(*key));
        missing.map_or(Ok(()), |key| Err(failure::without_label(what, key)))
    };
    named("anti-affinity", anti_affinity)?;
    named("affinity", affinity)?;
    match affinity.intersection(anti_affinity).next() {
        Some(key) => Err(failure::together_and_apart(key)),
        None => Ok(()),
    }
}

fn check_demand(demand: &Demand) -> Result<(), Failure> {
    let within = |option: &'static str, amount: Option<u64>, most: u64| match amount {
        Some(amount) if !(1..=most).contains(&amount) => Err(failure::wrong_demand(option, amount, most)),
        _ => Ok(()),
    };
    within("--cpus, in thousandths", demand.cpu_milli, MAX_CPU_MILLI)?;
    within("--memory, in bytes", demand.memory, MAX_MEMORY)?;
    let ways = [
        ("--bandwidth-to", "--bandwidth-to, in bytes a second", &demand.bandwidth_to, MAX_RATE),
        ("--latency-to", "--latency-to, in microseconds", &demand.latency_to, MAX_LATENCY_US),
    ];
    for (option, amount_of, amounts, most) in ways {
        if amounts.len() > MAX_OTHERS {
            return Err(failure::too_many_others(option, amounts.len(), MAX_OTHERS));
        }
        if let Some(name) = amounts.keys().find(|name| InstanceName::new(name).is_none()) {
            return Err(failure::no_other(option, name));
        }
        amounts.values().try_for_each(|amount| within(amount_of, Some(*amount), most))?;
    }
    Ok(())
}

/// A demand as users see it.
pub fn described(demand: &Demand) -> api::Demand {
    api::Demand {
        cpu_milli: demand.cpu_milli,
        memory_bytes: demand.memory,
        bandwidth_to: demand.bandwidth_to.clone(),
        latency_to_us: demand.latency_to.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn invalid_labels_are_refused() {
        let refused = |of: &[(&str, &str)], apart: &[&str]| {
            let apart = apart.iter().map(|key| (*key).into()).collect();
            check_labels(&labels(of), &apart, &BTreeSet::new()).err().map(|failure| failure.message)
        };
        assert_eq!(refused(&[("app.org/role", "db-1")], &["app.org/role"]), None);
        let long = "x".repeat(MAX_WORD + 1);
        for (key, value) in [("", "a"), ("a", ""), ("a", "b c"), (&long, "a"), ("a", &long), ("ä", "a")] {
            assert!(
                refused(&[(key, value)], &[]).is_some_and(|why| why.contains("is not a valid label")),
                "{key}"
            );
        }
        assert!(refused(&[("a", "b")], &["c"]).is_some_and(|why| why.contains("`c`")));
        let keys: Vec<_> = (0..=MAX_LABELS).map(|number| format!("k{number}")).collect();
        let many: Vec<_> = keys.iter().map(|key| (key.as_str(), "v")).collect();
        assert!(refused(&many, &[]).is_some_and(|why| why.contains("17 labels")));
    }

    #[test]
    fn affinity_and_anti_affinity_by_one_label_contradict_each_other() {
        let keys = BTreeSet::from(["app".to_owned()]);
        let failure = check_labels(&labels(&[("app", "db")]), &keys, &keys).unwrap_err();
        assert!(failure.message.contains("`--affinity app` and `--anti-affinity app`"), "{failure:?}");
        let failure = check_labels(&labels(&[]), &BTreeSet::new(), &keys).unwrap_err();
        assert!(failure.message.starts_with("affinity names the label `app`"), "{failure:?}");
    }

    #[test]
    fn demands_out_of_bounds_are_refused() {
        let refused = |demand: Demand| check_demand(&demand).err().map(|failure| failure.message);
        assert_eq!(refused(Demand { memory: Some(MAX_MEMORY), ..Demand::default() }), None);
        let wrong = [
            Demand { cpu_milli: Some(0), ..Demand::default() },
            Demand { memory: Some(MAX_MEMORY + 1), ..Demand::default() },
            Demand { bandwidth_to: BTreeMap::from([("db".into(), 0)]), ..Demand::default() },
            Demand { latency_to: BTreeMap::from([("No Name".into(), 1)]), ..Demand::default() },
            Demand {
                latency_to: (0..=MAX_OTHERS).map(|number| (format!("i{number}"), 1)).collect(),
                ..Demand::default()
            },
        ];
        for demand in wrong {
            assert!(refused(demand.clone()).is_some_and(|why| why.contains("--")), "{demand:?}");
        }
    }
}
