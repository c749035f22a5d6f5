//! Finds the built programs and libraries in the target directory of the running test.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The folder with the built programs, such as `target/debug`.
///
/// # Errors
/// If the running program is not in a target folder.
pub fn folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.parent().context("the running program has no folder")?;
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.to_owned())
}

/// The built program or library `name`.
///
/// # Errors
/// If it has not been built.
pub fn built(name: &str) -> Result<PathBuf> {
    let path = folder()?.join(name);
    ensure!(path.exists(), "{} is missing: `cargo build --workspace` makes it", path.display());
    Ok(path)
}

/// The agent of virtual machines, a static program.
///
/// # Errors
/// If it has not been built.
pub fn agent() -> Result<PathBuf> {
    let path = folder()?.join("lib/transhume-guest");
    ensure!(path.exists(), "{} is missing: `scripts/guest-agent.sh debug` makes it", path.display());
    Ok(path)
}

/// The environment in which a program uses the built libraries instead of the system's.
///
/// # Errors
/// If a library has not been built.
pub fn environment() -> Result<Vec<(&'static str, PathBuf)>> {
    let folder = folder()?.join("lib");
    fs::create_dir_all(&folder)?;
    let mut preload = Vec::new();
    for name in ["libibverbs.so", "librdmacm.so"] {
        let (library, numbered) = (built(name)?, folder.join(format!("{name}.1")));
        link(&library, &folder.join(name))?;
        link(&library, &numbered)?;
        preload.push(numbered.display().to_string());
    }
    Ok(vec![("LD_PRELOAD", preload.join(":").into()), ("LD_LIBRARY_PATH", folder)])
}

/// Makes `to` a link to `from`. Tests that run at the same time may make the same one.
fn link(from: &Path, to: &Path) -> Result<()> {
    if fs::canonicalize(to).ok().as_deref() == Some(&fs::canonicalize(from)?) {
        return Ok(());
    }
    let name = format!("{}.{}", to.display(), std::process::id());
    symlink(from, &name).with_context(|| format!("cannot make the link {name}"))?;
    fs::rename(&name, to).with_context(|| format!("cannot make the link {}", to.display()))
}
