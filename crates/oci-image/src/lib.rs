//! Container images: where they are, what they say, and how their files are unpacked (ADR 0029).
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
//! * [`digest`]: what a part, or the files of an image, are known by;
//! * [`unpack`]: from layers to files, in a process of its own.

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
