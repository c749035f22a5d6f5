//! The user's name of an image.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::layout::{Config, Layout};
use crate::{Error, Result, podman};
use instance::Digest;

/// The location of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In an OCI image layout: `oci:DIR` or `oci:DIR:TAG`.
    Layout {
        /// The layout.
        directory: PathBuf,
        /// The image's tag in the layout. Without one, the layout must have a single image, or one tagged `latest`.
        tag: Option<String>,
    },
    /// In podman's storage: `podman:NAME`.
    Podman(String),
}

impl Source {
    const LAYOUT: &str = "oci:";
    const PODMAN: &str = "podman:";

    /// The configuration of the image, and the digest of its files.
    ///
    /// # Errors
    /// If it does not exist, or is damaged.
    pub fn look(&self) -> Result<(Config, Digest)> {
        match self {
            Self::Layout { directory, tag } => {
                let image = Layout::open(directory)?.tagged(tag.as_deref())?;
                Ok((image.config.clone(), image.root().clone()))
            }
            Self::Podman(name) => podman::look(name),
        }
    }

    /// Checks that the image with the files `root` exists, in a layout under any tag.
    ///
    /// # Errors
    /// If it does not exist, or another image has its name.
    pub fn must_have(&self, root: &Digest) -> Result<()> {
        let found = match self {
            Self::Layout { directory, .. } => Layout::open(directory)?.with_root(root)?.is_some(),
            Self::Podman(name) => podman::look(name)?.1 == *root,
        };
        if found {
            return Ok(());
        }
        Err(Error::new(
            format!("image differs: {self} is another image there"),
            "copy the same image to all hosts, under the same name",
        ))
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(name) = text.strip_prefix(Self::PODMAN).filter(|name| !name.is_empty()) {
            // A name that begins with a hyphen would be an option of podman.
            if name.starts_with('-') {
                return Err(format!("`{name}` is not the name of an image"));
            }
            return Ok(Self::Podman(name.to_owned()));
        }
        let place = text.strip_prefix(Self::LAYOUT).unwrap_or_default();
        let (directory, tag) = match place.split_once(':') {
            Some((directory, tag)) => (directory, Some(tag.to_owned())),
            None => (place, None),
        };
        if directory.is_empty() || tag.as_ref().is_some_and(String::is_empty) {
            return Err("an image must be given as oci:DIR, oci:DIR:TAG or podman:NAME".into());
        }
        Ok(Self::Layout { directory: directory.into(), tag })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout { directory, tag: None } => write!(f, "{}{}", Self::LAYOUT, directory.display()),
            Self::Layout { directory, tag: Some(tag) } => {
                write!(f, "{}{}:{tag}", Self::LAYOUT, directory.display())
            }
            Self::Podman(name) => write!(f, "{}{name}", Self::PODMAN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_source_is_displayed_unchanged() {
        for text in ["oci:/srv/a", "oci:/srv/a:1.0", "podman:debian:12", "podman:localhost/a:b"] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        for bad in ["", "oci:", "oci::a", "oci:/a:", "podman:", "podman:--root=/x", "docker://a"] {
            assert!(bad.parse::<Source>().is_err(), "{bad}");
        }
    }
}
