//! Encryption and replay protection of datagrams between two nodes.
//!
//! Two linked nodes have a TLS connection with both their certificates; a secret exported
//! from it is the root of all keys here. Datagrams carry no negotiation: a forged one costs a look at its
//! header, and at most one failed decryption.
//!
//! ```text
//!  TLS exporter ─▶ Root ─▶ HKDF(direction, lane, generation) ─▶ key of AES-256-GCM ─▶ datagrams, counted by their nonces
//! ```
//!
//! A trusted link may do without keys: then only the counters remain.
//!
//! * [`header`]: the header of a datagram, in clear.
//! * [`keys`]: keys from the secret. * [`lane`]: sealing, opening, and key changes.
//! * [`replay`]: replay protection.

pub mod header;
pub mod keys;
pub mod lane;
pub mod replay;
