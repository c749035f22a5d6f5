//! Keys from the secret that two nodes share.

use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};

/// Bytes of the secret.
pub const SECRET: usize = 32;

/// Which of the two nodes sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Who has opened the TLS connection.
    FromDialer,
    /// Who has accepted it.
    FromListener,
}

impl Direction {
    /// The other way.
    #[must_use]
    pub fn reverse(self) -> Self {
        match self {
            Self::FromDialer => Self::FromListener,
            Self::FromListener => Self::FromDialer,
        }
    }
}

/// What all keys of a session are made from.
#[derive(Clone)]
pub struct Root(Prk);

impl Root {
    /// The root of a session whose TLS connection has exported `secret` under [`Root::LABEL`].
    #[must_use]
    pub fn new(secret: &[u8; SECRET]) -> Self {
        Self(Prk::new_less_safe(HKDF_SHA256, secret))
    }

    /// What the secret is exported under (RFC 8446, section 7.5).
    pub const LABEL: &[u8] = b"EXPERIMENTAL transhume tunnel 1";

    /// The key for what is sent in `direction` by worker `lane` in `generation`.
    pub(super) fn key(&self, direction: Direction, lane: u8, generation: u16) -> LessSafeKey {
        let direction = match direction {
            Direction::FromDialer => 0,
            Direction::FromListener => 1,
        };
        let [low, high] = generation.to_le_bytes();
        let info = [direction, lane, low, high];
        let info: [&[u8]; 2] = [b"datagrams", &info];
        let expanded = self.0.expand(&info, &AES_256_GCM);
        LessSafeKey::new(UnboundKey::from(expanded.expect("a key is shorter than 255 hashes")))
    }
}
