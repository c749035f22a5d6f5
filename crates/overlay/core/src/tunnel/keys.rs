//! Keys from the secret that two nodes share.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};

use super::header::Protection;

/// Bytes of the tag behind the sealed bytes.
pub const TAG: usize = 16;

/// Bytes of the secret.
pub const SECRET: usize = 32;

/// Which of the two nodes sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The node that opened the TLS connection.
    FromDialer,
    /// The node that accepted it.
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

/// The root of all keys of a session.
#[derive(Clone)]
pub struct Root(Option<Prk>);

/// The key of one generation.
pub(super) struct Key(Option<LessSafeKey>);

impl Root {
    /// The root of a session. Its TLS connection has exported `secret` under [`Root::LABEL`].
    #[must_use]
    pub fn new(secret: &[u8; SECRET]) -> Self {
        Self(Some(Prk::new_less_safe(HKDF_SHA256, secret)))
    }

    /// The root of a session with plain datagrams.
    #[must_use]
    pub fn plain() -> Self {
        Self(None)
    }

    /// How the session's datagrams are protected.
    #[must_use]
    pub fn protection(&self) -> Protection {
        if self.0.is_some() { Protection::Sealed } else { Protection::Plain }
    }

    /// The exporter label of the secret (RFC 8446, section 7.5).
    pub const LABEL: &[u8] = b"EXPERIMENTAL transhume tunnel 1";

    /// The key for the traffic in `direction` by worker `lane` in `generation`.
    pub(super) fn key(&self, direction: Direction, lane: u8, generation: u16) -> Key {
        let Some(root) = &self.0 else { return Key(None) };
        let direction = match direction {
            Direction::FromDialer => 0,
            Direction::FromListener => 1,
        };
        let [low, high] = generation.to_le_bytes();
        let info = [direction, lane, low, high];
        let info: [&[u8]; 2] = [b"datagrams", &info];
        let expanded = root.expand(&info, &AES_256_GCM);
        Key(Some(LessSafeKey::new(UnboundKey::from(expanded.expect("a key is shorter than 255 hashes")))))
    }
}

impl Key {
    /// Seals `rest` but for the tag at its end, which is filled in. A plain one leaves it as it is.
    #[inline]
    pub fn seal(&self, counter: u64, front: &[u8], rest: &mut [u8]) {
        let Some(key) = &self.0 else { return };
        let (content, tag) = rest.split_at_mut(rest.len() - TAG);
        let sealed = key.seal_in_place_separate_tag(nonce(counter), Aad::from(front), content);
        tag.copy_from_slice(sealed.expect("every datagram is shorter than AES-GCM's limit").as_ref());
    }

    /// Opens `rest` in place, without the tag at its end; `None` if it is forged or damaged. A plain one is
    /// unchanged.
    #[inline]
    pub fn open<'a>(&self, counter: u64, front: &[u8], rest: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let Some(key) = &self.0 else { return Some(rest) };
        key.open_in_place(nonce(counter), Aad::from(front), rest).ok()
    }
}

/// The nonce of a key's datagram `counter`.
#[inline]
fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}
