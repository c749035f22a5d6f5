//! Images of the local podman: inspects an image, and saves it as a layout.

use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize;

use instance::Digest;

use crate::digest;
use crate::layout::Config;
use crate::{Error, Result};

/// How long podman may take to describe an image, and to write one, in seconds.
const LOOK_S: &str = "30";
const SAVE_S: &str = "240";

/// The exit code of `timeout` if the program does not exist.
const NOT_FOUND: i32 = 127;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    #[serde(default)]
    config: Config,
    #[serde(rename = "RootFS")]
    root_fs: RootFs,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RootFs {
    layers: Vec<Digest>,
}

/// The configuration of an image, and the digest of its files.
///
/// # Errors
/// If podman is not installed, or does not have the image.
pub fn look(name: &str) -> Result<(Config, Digest)> {
    let described = podman(LOOK_S, &["image", "inspect", "--format", "json", name], name)?;
    let strange = |why: String| {
        let what = format!("podman's description of the image {name} cannot be parsed ({why})");
        Error::new(what, "save it as a layout with `podman save --format oci-dir`, and use `oci:DIR`")
    };
    let found: Vec<Inspected> =
        serde_json::from_slice(&described.stdout).map_err(|error| strange(error.to_string()))?;
    let [Inspected { config, root_fs }] =
        <[Inspected; 1]>::try_from(found).map_err(|found| strange(format!("{} images", found.len())))?;
    let root = digest::of_chain(&root_fs.layers).ok_or_else(|| strange("no layers".into()))?;
    Ok((config, root))
}

/// Saves the image as a layout to `directory`, which podman creates.
///
/// # Errors
/// If podman is not installed, or fails.
pub fn save(name: &str, directory: &Path) -> Result<()> {
    let directory = directory.display().to_string();
    podman(SAVE_S, &["image", "save", "--format", "oci-dir", "--output", &directory, name], name).map(drop)
}

fn podman(limit: &str, words: &[&str], name: &str) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", limit, "podman"]).args(words);
    let output = command.output().map_err(|error| {
        Error::new(
            format!("podman cannot be run ({error})"),
            "check that `timeout` of coreutils is installed",
        )
    })?;
    if output.status.success() {
        return Ok(output);
    }
    if output.status.code() == Some(NOT_FOUND) {
        let remedy = "install podman, or use a layout: `oci:DIR`";
        return Err(Error::new("podman is not installed on this host", remedy));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().last().unwrap_or("it gives no reason").trim();
    let what = format!("podman cannot provide the image {name} ({why})");
    Err(Error::new(what, "check as root that `podman images` lists it on each host"))
}
