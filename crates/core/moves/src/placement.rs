//! Settings of an instance that restrict its host and the times of its moves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// An instance's labels, affinity, anti-affinity, cool-down and demand, and whether it stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// Anti-affinity: no instance with the same value of one of these labels shares a host with this one.
    pub anti_affinity: BTreeSet<String>,
    /// Affinity: all instances with the same value of one of these labels share a host with this one.
    #[serde(default)]
    pub affinity: BTreeSet<String>,
    /// Its own cool-down in seconds, if it has one.
    #[serde(default)]
    pub cool_down_s: Option<u64>,
    /// Whether no plan moves it to a better host.
    #[serde(default)]
    pub is_pinned: bool,
    /// What its user demands for it.
    #[serde(default)]
    pub demand: Demand,
}

/// A user's demands for an instance. The planner measures amounts that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Demand {
    /// Thousandths of a processor.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// By name of another instance: bytes a second between both.
    pub bandwidth_to: BTreeMap<String, u64>,
    /// By name of another instance: the most microseconds between both.
    pub latency_to: BTreeMap<String, u64>,
}

impl Placement {
    /// The label that forbids the two to share a host, if any. It is enough that one of them requests it.
    #[must_use]
    pub fn apart<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str)> {
        self.shared(other, self.anti_affinity.iter().chain(&other.anti_affinity))
    }

    /// The label that makes the two share a host, if any. It is enough that one of them requests it.
    #[must_use]
    pub fn together<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str)> {
        self.shared(other, self.affinity.iter().chain(&other.affinity))
    }

    /// The first of these labels of which both have the same value.
    fn shared<'a>(
        &'a self,
        other: &Self,
        keys: impl IntoIterator<Item = &'a String>,
    ) -> Option<(&'a str, &'a str)> {
        let shared = |key: &'a String| {
            let value = self.labels.get(key)?;
            (other.labels.get(key) == Some(value)).then_some((key.as_str(), value.as_str()))
        };
        keys.into_iter().find_map(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(labels: &[(&str, &str)], anti_affinity: &[&str]) -> Placement {
        let owned = |text: &str| text.to_owned();
        Placement {
            labels: labels.iter().map(|(key, value)| (owned(key), owned(value))).collect(),
            anti_affinity: anti_affinity.iter().map(|key| owned(key)).collect(),
            ..Placement::default()
        }
    }

    #[test]
    fn equal_values_keep_two_instances_apart_if_one_requires_it() {
        let (says, silent) = (placement(&[("app", "db")], &["app"]), placement(&[("app", "db")], &[]));
        let expected = Some(("app", "db"));
        assert_eq!(
            (says.apart(&silent), silent.apart(&says), says.apart(&says)),
            (expected, expected, expected)
        );
        assert_eq!(silent.apart(&silent), None);
        assert_eq!(says.apart(&placement(&[("app", "web")], &["app"])), None, "another value");
        assert_eq!(says.apart(&placement(&[("role", "db")], &["role"])), None, "another label");
        let near = Placement { affinity: says.anti_affinity.clone(), ..silent.clone() };
        assert_eq!((near.together(&silent), silent.together(&near)), (expected, expected));
        assert_eq!((near.apart(&silent), says.together(&silent)), (None, None));
    }
}
