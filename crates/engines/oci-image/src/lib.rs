//! Container images: locates, reads and unpacks them (ADR 0029).
//!
//! ```text
//! Source ──▶ Layout   index.json ─▶ manifest ─▶ configuration ─▶ Image     by digest, each of them checked
//!    └─────▶ podman   inspect; save ─▶ Layout
//!                                                 Image ──unpack──▶ the files of its layers, one above the other
//! ```
//!
//! * [`Source`]: how a user names an image;
//! * [`Layout`]: an OCI image layout, a directory with the parts of images under their digests;
//! * [`podman`]: images of the local podman;
//! * [`digest`]: identifies a part of an image, or its files;
//! * [`unpack`]: unpacks layers to files, in a confined process.

mod blob;
pub mod digest;
mod error;
mod layer;
mod layout;
pub mod podman;
mod source;
#[cfg(test)]
mod tests;
mod unpack;

pub use blob::description;
pub use error::{Error, Result};
pub use instance::{BadDigest, Digest};
pub use layout::{Config, Image, Layout};
pub use source::Source;
pub use unpack::{Limits, unpack};
