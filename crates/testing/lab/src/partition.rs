//! Partitions: pairs of places between which the switch drops all packets.
//!
//! One nftables set in the switch's namespace holds the pairs of ports, one element per
//! direction, so the kernel holds the only copy of this state.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::layout::{Layout, place_of_port, port};
use crate::network::namespace_file;
use crate::tool::{NFT, NSENTER, Tool};
use crate::{Error, Place, Result};

const TABLE: &str = "transhume";
const SET: &str = "cuts";

/// Two places that cannot reach each other, the lesser first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut(Place, Place);

impl Cut {
    /// The cut between `one` and `other`.
    ///
    /// # Errors
    /// [`Error::SamePlace`].
    pub fn between(one: Place, other: Place) -> Result<Self> {
        if one == other {
            return Err(Error::SamePlace(one.to_string()));
        }
        Ok(Self(one.min(other), one.max(other)))
    }

    /// The two places, the lesser first.
    #[must_use]
    pub fn places(self) -> (Place, Place) {
        (self.0, self.1)
    }

    fn elements(self) -> String {
        let (one, other) = (port(self.0), port(self.1));
        format!("{{ \"{one}\" . \"{other}\", \"{other}\" . \"{one}\" }}")
    }
}

/// Prepares the switch for partitions.
pub(crate) fn prepare(layout: &Layout, lab_id: &str) -> Result<()> {
    let rules = format!(
        "add table bridge {TABLE}
         add set bridge {TABLE} {SET} {{ typeof iifname . oifname; }}
         add chain bridge {TABLE} forward {{ type filter hook forward priority 0; }}
         add rule bridge {TABLE} forward iifname . oifname @{SET} drop\n"
    );
    in_switch(NSENTER.of_lab(lab_id), layout, &["-f", "-"], &rules).map(drop)
}

/// Separates two places. It is idempotent.
///
/// # Errors
/// The errors of [`crate::tool::Tool::run`].
pub fn cut(layout: &Layout, cut: Cut) -> Result<()> {
    nft(layout, &format!("add element bridge {TABLE} {SET} {}\n", cut.elements())).map(drop)
}

/// Heals a partition. It is idempotent.
///
/// # Errors
/// The errors of [`crate::tool::Tool::run`].
pub fn heal(layout: &Layout, cut: Cut) -> Result<()> {
    if !cuts(layout)?.contains(&cut) {
        return Ok(());
    }
    nft(layout, &format!("delete element bridge {TABLE} {SET} {}\n", cut.elements())).map(drop)
}

/// Heals all partitions.
///
/// # Errors
/// The errors of [`crate::tool::Tool::run`].
pub fn heal_all(layout: &Layout) -> Result<()> {
    nft(layout, &format!("flush set bridge {TABLE} {SET}\n")).map(drop)
}

/// The present partitions.
///
/// # Errors
/// The errors of [`crate::tool::Tool::run`].
pub fn cuts(layout: &Layout) -> Result<BTreeSet<Cut>> {
    let listing = in_switch(NSENTER, layout, &["-j", "list", "set", "bridge", TABLE, SET], "")?;
    Ok(parse(&listing).unwrap_or_default())
}

fn nft(layout: &Layout, rules: &str) -> Result<String> {
    in_switch(NSENTER, layout, &["-f", "-"], rules)
}

fn in_switch(nsenter: Tool<'_>, layout: &Layout, arguments: &[&str], input: &str) -> Result<String> {
    NFT.check()?;
    let enter = format!("--net={}", namespace_file(&layout.switch()).display());
    nsenter.feed(&[&[enter.as_str(), "nft"], arguments].concat(), input)
}

/// The used part of nft's JSON.
#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    set: Option<Set>,
}

#[derive(Deserialize)]
struct Set {
    #[serde(default)]
    elem: Vec<Element>,
}

#[derive(Deserialize)]
struct Element {
    concat: (String, String),
}

fn parse(listing: &str) -> Option<BTreeSet<Cut>> {
    let listing: Listing = serde_json::from_str(listing).ok()?;
    let elements = listing.nftables.into_iter().filter_map(|object| object.set).flat_map(|set| set.elem);
    let cuts = elements.filter_map(|Element { concat: (one, other) }| {
        Cut::between(place_of_port(&one)?, place_of_port(&other)?).ok()
    });
    Some(cuts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_one_cut() {
        let listing = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "bridge",
            "name": "cuts", "elem": [{"concat": ["h1", "h2"]}, {"concat": ["h2", "h1"]}, {"concat": ["c", "h3"]}]}}]}"#;
        let place = |name: &str| name.parse().unwrap();
        let expected = [("h2", "h1"), ("h3", "coordinator")]
            .map(|(one, other)| Cut::between(place(one), place(other)).unwrap());
        assert_eq!(parse(listing).unwrap(), BTreeSet::from(expected));
    }

    #[test]
    fn a_place_cannot_be_cut_from_itself() {
        assert!(Cut::between(Place::Coordinator, Place::Coordinator).is_err());
    }
}
