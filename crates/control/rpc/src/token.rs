//! Join tokens: one word with the coordinator's address, its authority's fingerprint and a secret that admits a machine.
//!
//! | bytes | |
//! |---|---|
//! | 1 | version of the layout: 1 |
//! | 1 | 4 or 6: the kind of address |
//! | 4 or 16, 2 | the coordinator's address and port, most significant byte first |
//! | 32 | BLAKE3 of the authority's certificate |
//! | 16 | the secret; the coordinator stores only its hash |
//! | 4 | checksum: the first bytes of the BLAKE3 of all previous bytes |
//!
//! As text it is base64 with the alphabet for URLs, without padding.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const VERSION: u8 = 1;

/// Bytes of the checksum.
const CHECKSUM: usize = 4;

/// The longest text that is parsed.
const MAX_TEXT: usize = 256;

/// The fingerprint of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate in DER.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(*blake3::hash(certificate).as_bytes())
    }
}

/// The secret of a token. Its `Debug` form is redacted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// A random secret.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The coordinator's address.
    pub coordinator: SocketAddr,
    /// The fingerprint of the coordinator's authority.
    pub authority: Fingerprint,
    /// The secret.
    pub secret: Secret,
}

/// Why a text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It contains characters outside the base64 alphabet.
    #[error("not a valid join token: a token has only letters, digits, `-` and `_`")]
    Alphabet,
    /// It is truncated, mistyped, or something else.
    #[error("not a valid join token: it is truncated or mistyped (wrong checksum)")]
    Checksum,
    /// Another release has made it.
    #[error("the join token is from another release (version {0}): install the same release on all machines")]
    Version(u8),
    /// Its contents are invalid although its checksum is right.
    #[error("not a valid join token: it has invalid contents")]
    Meaning,
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        match self.coordinator.ip() {
            IpAddr::V4(address) => {
                bytes.push(4);
                bytes.extend(address.octets());
            }
            IpAddr::V6(address) => {
                bytes.push(6);
                bytes.extend(address.octets());
            }
        }
        bytes.extend(self.coordinator.port().to_be_bytes());
        bytes.extend(self.authority.0);
        bytes.extend(self.secret.0);
        bytes.extend(checksum(&bytes));
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        if text.len() > MAX_TEXT {
            return Err(TokenError::Checksum);
        }
        let in_alphabet = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !text.bytes().all(in_alphabet) {
            return Err(TokenError::Alphabet);
        }
        // The remaining errors are an invalid length, or unused bits that are set.
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Checksum)?;
        let (said, found) = bytes.split_last_chunk::<CHECKSUM>().ok_or(TokenError::Checksum)?;
        if checksum(said) != *found {
            return Err(TokenError::Checksum);
        }
        parse(said)
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut first = [0; CHECKSUM];
    first.copy_from_slice(&blake3::hash(bytes).as_bytes()[..CHECKSUM]);
    first
}

fn parse(bytes: &[u8]) -> Result<JoinToken, TokenError> {
    let meaning = TokenError::Meaning;
    let (&version, bytes) = bytes.split_first().ok_or(meaning)?;
    if version != VERSION {
        return Err(TokenError::Version(version));
    }
    let (&kind, bytes) = bytes.split_first().ok_or(meaning)?;
    let (address, bytes): (IpAddr, _) = match kind {
        4 => bytes.split_first_chunk::<4>().map(|(address, rest)| (Ipv4Addr::from(*address).into(), rest)),
        6 => bytes.split_first_chunk::<16>().map(|(address, rest)| (Ipv6Addr::from(*address).into(), rest)),
        _ => None,
    }
    .ok_or(meaning)?;
    let (port, bytes) = bytes.split_first_chunk().ok_or(meaning)?;
    let (authority, secret) = bytes.split_first_chunk().ok_or(meaning)?;
    Ok(JoinToken {
        coordinator: SocketAddr::new(address, u16::from_be_bytes(*port)),
        authority: Fingerprint(*authority),
        secret: Secret(secret.try_into().map_err(|_| meaning)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(coordinator: &str) -> JoinToken {
        let coordinator = coordinator.parse().unwrap();
        JoinToken { coordinator, authority: Fingerprint::of(b"authority"), secret: Secret([7; 16]) }
    }

    /// The text of a token with these contents, with a valid checksum.
    fn text(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode([bytes, &checksum(bytes)].concat())
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        for coordinator in ["192.0.2.1:7700", "[2001:db8::1]:7700"] {
            let token = token(coordinator);
            let text = token.to_string();
            assert_eq!(text.parse(), Ok(token));
            // It is one word for a shell, and not an option of a command.
            assert!(text.starts_with('A') && text.len() < 120, "{text}");
        }
    }

    #[test]
    fn rejects_truncated_and_mistyped_tokens() {
        let text = token("192.0.2.1:7700").to_string();
        for cut in 0..text.len() {
            assert!(text[..cut].parse::<JoinToken>().is_err(), "{cut}");
        }
        for (at, old) in text.char_indices() {
            let other = if old == 'x' { "y" } else { "x" };
            let wrong = [&text[..at], other, &text[at + 1..]].concat();
            assert_eq!(wrong.parse::<JoinToken>(), Err(TokenError::Checksum), "{wrong}");
        }
        assert_eq!(format!("{text} ").parse::<JoinToken>(), Err(TokenError::Alphabet));
        assert_eq!("A".repeat(MAX_TEXT + 1).parse::<JoinToken>(), Err(TokenError::Checksum));
    }

    #[test]
    fn tokens_of_another_release_are_recognised() {
        assert_eq!(text(&[2, 4, 1, 2]).parse::<JoinToken>(), Err(TokenError::Version(2)));
        for meaningless in [&[1][..], &[1, 5, 0], &[1, 4, 10, 0, 0, 1, 30, 20, 9]] {
            assert_eq!(text(meaningless).parse::<JoinToken>(), Err(TokenError::Meaning));
        }
    }

    #[test]
    fn debug_output_redacts_the_secret() {
        assert_eq!(format!("{:?}", Secret([7; 16])), "Secret(…)");
    }
}
