//! An OCI image layout: `index.json` lists manifests, and `blobs/sha256` holds each part under its digest.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::blob::description;
use instance::Digest;

use crate::digest;
use crate::{Error, Result};

/// The most layers of an image, more than overlay file systems and other engines allow.
const MAX_LAYERS: usize = 512;
/// The most images to search.
const MAX_IMAGES: usize = 1024;
/// The most nested indexes, which list images for several platforms.
const MAX_DEPTH: usize = 3;

/// The annotation that is an image's tag.
const TAG: &str = "org.opencontainers.image.ref.name";
/// The default tag.
const LATEST: &str = "latest";

/// The platform of images: operating system and architecture.
const MACHINE: (&str, &str) = ("linux", "amd64");

/// A layout directory with its index.
pub struct Layout {
    directory: PathBuf,
    index: Index,
}

/// An image in a layout.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its configuration.
    pub config: Config,
    layers: Vec<Layer>,
    root: Digest,
}

/// A layer: its file, and the digest of its unpacked archive.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub blob: PathBuf,
    pub unpacked: Digest,
}

impl Image {
    /// The digest of its files.
    #[must_use]
    pub fn root(&self) -> &Digest {
        &self.root
    }

    /// The layers, the lowest first.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }
}

/// The configuration of an image's command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    /// Its user: `USER`, `UID`, `USER:GROUP` or `UID:GID`; empty for root.
    pub user: Option<String>,
    /// Its environment, as `NAME=VALUE`.
    pub env: Option<Vec<String>>,
    /// The beginning of the command.
    pub entrypoint: Option<Vec<String>>,
    /// Its default arguments.
    pub cmd: Option<Vec<String>>,
    /// Its working directory.
    pub working_dir: Option<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::HashMap<String, String>,
}

#[derive(Clone, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    config: Option<Config>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

impl Descriptor {
    fn tag(&self) -> Option<&str> {
        self.annotations.get(TAG).map(String::as_str)
    }

    /// Whether it is an index; Docker's media types have other names and the same contents.
    fn is_index(&self) -> bool {
        self.media_type.contains("image.index") || self.media_type.contains("manifest.list")
    }
}

impl Platform {
    fn fits(&self) -> bool {
        (self.os.as_str(), self.architecture.as_str()) == MACHINE
    }
}

impl Layout {
    /// Reads the index.
    ///
    /// # Errors
    /// If it does not exist, or is invalid.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join("index.json");
        let index = description(&path).map_err(|error| {
            let what = format!("{} is not an OCI image layout (index.json: {error})", directory.display());
            Error::new(what, "create one on each host with `skopeo copy … oci:DIR:TAG`")
        })?;
        let index = parse(&index, &path.display().to_string())?;
        Ok(Self { directory: directory.to_owned(), index })
    }

    /// The image with this tag; without a tag, the only image, or `latest`.
    ///
    /// # Errors
    /// If it does not exist, or is damaged.
    pub fn tagged(&self, tag: Option<&str>) -> Result<Image> {
        let manifests = &self.index.manifests;
        let found = match (tag, manifests.as_slice()) {
            (None, [only]) => Some(only),
            _ => manifests.iter().find(|one| one.tag() == Some(tag.unwrap_or(LATEST))),
        };
        let found = found.ok_or_else(|| {
            let tag = tag.unwrap_or(LATEST);
            let what = format!("there is no image `{tag}` in {}", self.directory.display());
            let tags: Vec<&str> = manifests.iter().filter_map(Descriptor::tag).take(16).collect();
            let remedy = match tags.as_slice() {
                [] => "copy it there with `skopeo copy … oci:DIRECTORY:TAG`".to_owned(),
                tags => format!("choose an existing one: {}", tags.join(", ")),
            };
            Error::new(what, remedy)
        })?;
        self.image(&self.for_this_machine(found, MAX_DEPTH)?)
    }

    /// The image with the files `root`, under any tag.
    ///
    /// # Errors
    /// If an image that may be the one cannot be read.
    pub fn with_root(&self, root: &Digest) -> Result<Option<Image>> {
        let mut unreadable = None;
        for manifest in self.index.manifests.iter().take(MAX_IMAGES) {
            let image = self.for_this_machine(manifest, MAX_DEPTH);
            match image.and_then(|manifest| self.image(&manifest)) {
                Ok(image) if image.root == *root => return Ok(Some(image)),
                Ok(_) => {}
                Err(error) => unreadable = Some(error),
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    /// The manifest itself, or the one for this platform in an index.
    fn for_this_machine(&self, found: &Descriptor, depth: usize) -> Result<Descriptor> {
        if !found.is_index() {
            return Ok(found.clone());
        }
        let index: Index = self.description(&found.digest)?;
        let fits = |one: &&Descriptor| one.platform.as_ref().is_none_or(Platform::fits);
        match index.manifests.iter().find(fits) {
            Some(inner) if depth > 0 => self.for_this_machine(inner, depth - 1),
            _ => Err(self.for_another_machine()),
        }
    }

    fn image(&self, manifest: &Descriptor) -> Result<Image> {
        let manifest: Manifest = self.description(&manifest.digest)?;
        let configuration: Configuration = self.description(&manifest.config.digest)?;
        if !configuration.platform.fits() {
            return Err(self.for_another_machine());
        }
        let unpacked = configuration.rootfs.diff_ids;
        let (count, directory) = (unpacked.len(), self.directory.display());
        let root = digest::of_chain(&unpacked).filter(|_| count <= MAX_LAYERS);
        let root = root.filter(|_| count == manifest.layers.len()).ok_or_else(|| {
            let layers = manifest.layers.len();
            let what = format!("an image in {directory} has {layers} layers, but {count} digests of layers");
            Error::new(what, format!("choose an image with equal numbers, from 1 to {MAX_LAYERS}"))
        })?;
        let blobs = manifest.layers.iter().map(|layer| self.blob(&layer.digest));
        let layers: Vec<Layer> =
            blobs.zip(unpacked).map(|(blob, unpacked)| Layer { blob, unpacked }).collect();
        if let Some(layer) = layers.iter().find(|layer| !layer.blob.is_file()) {
            return Err(damaged(&layer.blob.display().to_string(), "it does not exist"));
        }
        Ok(Image { config: configuration.config.unwrap_or_default(), layers, root })
    }

    fn for_another_machine(&self) -> Error {
        let (os, architecture) = MACHINE;
        let what = format!("the image in {} is not for {os} on {architecture}", self.directory.display());
        Error::new(what, "copy the right one with `skopeo --override-arch amd64 copy …`")
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.directory.join("blobs").join("sha256").join(digest.digits())
    }

    /// Reads the description with this digest.
    fn description<T: DeserializeOwned>(&self, digest: &Digest) -> Result<T> {
        let path = self.blob(digest);
        let bytes =
            description(&path).map_err(|error| damaged(&path.display().to_string(), &error.to_string()))?;
        if digest::of(&bytes) != *digest {
            return Err(damaged(&path.display().to_string(), "its digest differs"));
        }
        parse(&bytes, &path.display().to_string())
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8], path: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| damaged(path, &error.to_string()))
}

/// An error for a damaged part of an image.
pub(crate) fn damaged(path: &str, why: &str) -> Error {
    Error::new(format!("a part of an image is damaged ({path}: {why})"), "copy the image again")
}
