//! Digests of parts of container images.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A SHA-256 digest, as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    const PREFIX: &str = "sha256:";
    const DIGITS: usize = 64;

    /// The digest with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{}{digits}", Self::PREFIX))
    }

    /// The digits alone, which are usable as a file name.
    #[must_use]
    pub fn digits(&self) -> &str {
        &self.0[Self::PREFIX.len()..]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let digits = text.strip_prefix(Self::PREFIX).unwrap_or_default();
        let plain = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let whole = plain && digits.len() == Self::DIGITS;
        if whole { Ok(Self(text.to_owned())) } else { Err(BadDigest(text.to_owned())) }
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

/// Not a [`Digest`].
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest")]
pub struct BadDigest(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_usable_as_a_file_name() {
        let digest = Digest::from_bytes(&[0xe3; 32]);
        assert_eq!(digest.to_string(), format!("sha256:{}", "e3".repeat(32)));
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        for bad in ["", "sha256:", "sha256:../../etc", "sha512:00", &digest.to_string().to_uppercase()] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
