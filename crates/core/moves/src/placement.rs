//! Settings of an instance that restrict its host and the times of its moves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// An instance's labels, anti-affinity and cool-down, and whether it stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// Anti-affinity: no instance with the same value of one of these labels shares a host with this one.
    pub anti_affinity: BTreeSet<String>,
    /// Its own cool-down in seconds, if it has one.
    #[serde(default)]
    pub cool_down_s: Option<u64>,
    /// Whether no plan moves it to a better host.
    #[serde(default)]
    pub is_pinned: bool,
}

impl Placement {
    /// The label that forbids the two to share a host, if any. It is enough that one of them requests it.
    #[must_use]
    pub fn apart<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str)> {
        let keys = self.anti_affinity.iter().chain(&other.anti_affinity);
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
    }
}
