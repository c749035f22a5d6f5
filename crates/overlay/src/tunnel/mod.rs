//! What protects datagrams between two nodes.
//!
//! Two nodes that speak to each other have a TLS connection with both their certificates; a secret that TLS exports
//! from it is the root of all keys here. Nothing is agreed upon in datagrams: one from somebody else costs a look at its
//! header, and at most one failed opening.
//!
//! ```text
//!  TLS exporter ─▶ Root ─▶ HKDF(direction, lane, generation) ─▶ key of AES-256-GCM ─▶ datagrams, counted by their nonces
//! ```
//!
//! A link that is trusted may do without keys: then there are the counters only.
//!
//! * [`header`]: what stands at the front of a datagram, in clear.
//! * [`keys`]: keys from the secret. * [`lane`]: who seals and who opens, and when keys change.
//! * [`replay`]: that nothing is taken twice.

pub mod header;
pub mod keys;
pub mod lane;
pub mod replay;
