//! Images of the local podman, which is asked for what it knows of one, and has it written as a layout.

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

/// What `timeout` exits with if there is no such program.
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

/// What an image says of its command, and what its files are known by.
///
/// # Errors
/// If podman is not there, or does not have it.
pub fn look(name: &str) -> Result<(Config, Digest)> {
    let described = podman(LOOK_S, &["image", "inspect", "--format", "json", name], name)?;
    let strange = |why: String| {
        let what = format!("podman says of the image {name} what is not understood ({why})");
        Error::new(what, "write it to a layout: `podman save --format oci-dir`, and use `oci:DIR`")
    };
    let found: Vec<Inspected> =
        serde_json::from_slice(&described.stdout).map_err(|error| strange(error.to_string()))?;
    let [Inspected { config, root_fs }] =
        <[Inspected; 1]>::try_from(found).map_err(|found| strange(format!("{} images", found.len())))?;
    let root = digest::of_chain(&root_fs.layers).ok_or_else(|| strange("no layers".into()))?;
    Ok((config, root))
}

/// Has podman write the image as a layout to `directory`, which it makes.
///
/// # Errors
/// If podman is not there, or cannot.
pub fn save(name: &str, directory: &Path) -> Result<()> {
    let directory = directory.display().to_string();
    podman(SAVE_S, &["image", "save", "--format", "oci-dir", "--output", &directory, name], name).map(drop)
}

fn podman(limit: &str, words: &[&str], name: &str) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", limit, "podman"]).args(words);
    let output = command.output().map_err(|error| {
        Error::new(format!("podman cannot be called ({error})"), "see that `timeout` of coreutils is there")
    })?;
    if output.status.success() {
        return Ok(output);
    }
    if output.status.code() == Some(NOT_FOUND) {
        let remedy = "install it, or use a layout: `oci:DIR`";
        return Err(Error::new("there is no podman on this host", remedy));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().last().unwrap_or("it gives no reason").trim();
    let what = format!("podman does not give the image {name} ({why})");
    Err(Error::new(what, "see that `podman images` shows it, as root, on each host"))
}
