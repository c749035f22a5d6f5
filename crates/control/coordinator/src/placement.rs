//! Labels and anti-affinity of instances, as users write them.

use std::collections::{BTreeMap, BTreeSet};

use api::Failure;
use moves::placement::Placement;

use crate::failure;

/// The limit of labels of an instance.
const MAX_LABELS: usize = 16;

/// The longest key, and the longest value, in bytes.
const MAX_WORD: usize = 63;

/// Validates the requested placement.
///
/// # Errors
/// If a label is invalid, there are too many, or anti-affinity names a label that the instance does not have.
pub fn wanted(
    labels: BTreeMap<String, String>,
    anti_affinity: BTreeSet<String>,
) -> Result<Placement, Failure> {
    if labels.len() > MAX_LABELS {
        return Err(failure::too_many_labels(labels.len(), MAX_LABELS));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let is_word = |text: &str| (1..=MAX_WORD).contains(&text.len()) && text.bytes().all(allowed);
    if let Some((key, value)) = labels.iter().find(|(key, value)| !(is_word(key) && is_word(value))) {
        return Err(failure::no_label(key, value, MAX_WORD));
    }
    match anti_affinity.iter().find(|key| !labels.contains_key(*key)) {
        Some(key) => Err(failure::apart_without_label(key)),
        None => Ok(Placement { labels, anti_affinity, ..Placement::default() }),
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
            wanted(labels(of), apart).err().map(|failure| failure.message)
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
}
