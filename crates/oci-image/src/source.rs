//! How a user names an image.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::layout::{Config, Layout};
use crate::{Error, Result, podman};
use instance::Digest;

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In an OCI image layout: `oci:DIR` or `oci:DIR:TAG`.
    Layout {
        /// The layout.
        directory: PathBuf,
        /// The image in it. Without it there must be one only, or one that is called `latest`.
        tag: Option<String>,
    },
    /// In podman's storage: `podman:NAME`.
    Podman(String),
}

impl Source {
    const LAYOUT: &str = "oci:";
    const PODMAN: &str = "podman:";

    /// What the image says of its command, and what its files are known by.
    ///
    /// # Errors
    /// If it is not there, or is not whole.
    pub fn look(&self) -> Result<(Config, Digest)> {
        match self {
            Self::Layout { directory, tag } => {
                let image = Layout::open(directory)?.tagged(tag.as_deref())?;
                Ok((image.config.clone(), image.root().clone()))
            }
            Self::Podman(name) => podman::look(name),
        }
    }

    /// Checks that the image whose files are `root` is there: in a layout under whatever tag.
    ///
    /// # Errors
    /// If it is not, or another image is in its place.
    pub fn must_have(&self, root: &Digest) -> Result<()> {
        let found = match self {
            Self::Layout { directory, .. } => Layout::open(directory)?.with_root(root)?.is_some(),
            Self::Podman(name) => podman::look(name)?.1 == *root,
        };
        if found {
            return Ok(());
        }
        Err(Error::new(
            format!("image differs: {self} is another one there"),
            "put the same image on all hosts, by the same name",
        ))
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(name) = text.strip_prefix(Self::PODMAN).filter(|name| !name.is_empty()) {
            // What begins with a hyphen would be an option of podman's.
            if name.starts_with('-') {
                return Err(format!("`{name}` is no name of an image"));
            }
            return Ok(Self::Podman(name.to_owned()));
        }
        let place = text.strip_prefix(Self::LAYOUT).unwrap_or_default();
        let (directory, tag) = match place.split_once(':') {
            Some((directory, tag)) => (directory, Some(tag.to_owned())),
            None => (place, None),
        };
        if directory.is_empty() || tag.as_ref().is_some_and(String::is_empty) {
            return Err("an image is oci:DIR, oci:DIR:TAG or podman:NAME".into());
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
    fn names_are_read_as_they_are_written() {
        for text in ["oci:/srv/a", "oci:/srv/a:1.0", "podman:debian:12", "podman:localhost/a:b"] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        for bad in ["", "oci:", "oci::a", "oci:/a:", "podman:", "podman:--root=/x", "docker://a"] {
            assert!(bad.parse::<Source>().is_err(), "{bad}");
        }
    }
}
