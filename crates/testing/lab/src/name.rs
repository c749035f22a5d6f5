//! Names of labs and of the places in them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::layout::MAX_HOSTS;

/// A lab's name: 1 to 12 lower-case letters and digits, so that it fits into the names of
/// namespaces and that no lab's prefix is another lab's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabName(String);

impl LabName {
    /// The default name of a lab.
    pub const DEFAULT: &'static str = "lab";

    /// The name of the demo's lab.
    pub const DEMO: &'static str = "demo";

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LabName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if (1..=12).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::BadName(text.to_owned()))
        }
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host of a lab, numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Host(u16);

impl Host {
    /// `None` outside of 1 to [`MAX_HOSTS`].
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (1..=MAX_HOSTS).contains(&number).then_some(Self(number))
    }

    /// The host's number, from 1.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// The first `count` hosts.
    pub fn first(count: u16) -> impl Iterator<Item = Self> {
        (1..=count.min(MAX_HOSTS)).map(Self)
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = text.strip_prefix('h').and_then(|digits| digits.parse().ok());
        number.and_then(Self::new).ok_or_else(|| Error::BadPlace(text.to_owned()))
    }
}

impl TryFrom<String> for Host {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

/// The place of a daemon, and an end of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Place {
    /// The place of the coordinator.
    Coordinator,
    /// A host with its node.
    Host(Host),
}

impl Place {
    /// The coordinator's place, then that of each of the first `hosts` hosts.
    pub fn all(hosts: u16) -> impl Iterator<Item = Self> {
        std::iter::once(Self::Coordinator).chain(Host::first(hosts).map(Self::Host))
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "coordinator" { Ok(Self::Coordinator) } else { text.parse().map(Self::Host) }
    }
}

impl TryFrom<String> for Place {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Host(host) => host.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_names_cannot_contain_paths_or_prefixes() {
        for bad in ["", "a-b", "../x", "Lab", "a234567890123"] {
            assert!(bad.parse::<LabName>().is_err(), "{bad}");
        }
        assert_eq!("demo2".parse::<LabName>().unwrap().as_str(), "demo2");
    }

    #[test]
    fn places_read_as_they_are_written() {
        for place in Place::all(MAX_HOSTS) {
            assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        }
        for bad in ["h0", "h", "1", "h251", "h-1", "c"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
