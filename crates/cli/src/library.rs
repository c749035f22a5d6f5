//! The drop-in `libibverbs.so.1` and `librdmacm.so.1`: finds them and makes programs load them.

use std::env;
use std::path::{Path, PathBuf};

use fabric::attach::INSTANCE_VARIABLE;

use crate::failure::{Failure, Result};

/// The libraries' file names, a dependency before its user. Beside each is a link without the version
/// number.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The environment with which a program loads our libraries in `folder` instead of the system's.
///
/// Both variables are needed: a preloaded library satisfies `dlopen("libibverbs.so.1")`, and the path
/// `dlopen("libibverbs.so")`. Libraries that were preloaded before stay, after ours.
pub fn add_to(mut environment: Vec<(String, String)>, folder: &Path) -> Vec<(String, String)> {
    for name in NAMES.iter().rev() {
        prepend(&mut environment, "LD_PRELOAD", &folder.join(name));
    }
    prepend(&mut environment, "LD_LIBRARY_PATH", folder);
    environment.retain(|(name, _)| name != INSTANCE_VARIABLE);
    environment.push((INSTANCE_VARIABLE.into(), "1".into()));
    environment
}

/// The directory of the libraries.
pub fn folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    find(&program).ok_or_else(|| missing(&program))
}

/// Looks beside an installed program, and in cargo's target directory.
fn find(program: &Path) -> Option<PathBuf> {
    let has_all = |folder: &PathBuf| NAMES.iter().all(|name| folder.join(name).is_file());
    candidates(program).into_iter().find(has_all)
}

fn candidates(program: &Path) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(Path::new("/"));
    vec![folder.join("lib"), prefix.join("lib/transhume")]
}

fn missing(program: &Path) -> Failure {
    let places = candidates(program).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    Failure::new(
        format!("the RDMA libraries ({}) are missing in {}", NAMES.join(", "), places.join(" and ")),
        "build them with `make build`",
    )
}

fn prepend(environment: &mut Vec<(String, String)>, name: &str, path: &Path) {
    let path = path.display().to_string();
    match environment.iter_mut().find(|(known, _)| known == name) {
        Some((_, value)) if !value.is_empty() => *value = format!("{path}:{value}"),
        Some((_, value)) => *value = path,
        None => environment.push((name.to_owned(), path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_libraries_come_first() {
        let mut environment = vec![("LD_PRELOAD".to_owned(), "/a.so".to_owned())];
        prepend(&mut environment, "LD_PRELOAD", Path::new("/b.so"));
        prepend(&mut environment, "LD_LIBRARY_PATH", Path::new("/lib"));
        let expected = [("LD_PRELOAD", "/b.so:/a.so"), ("LD_LIBRARY_PATH", "/lib")];
        assert_eq!(environment, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_missing_library_says_how_to_make_it() {
        let failure = missing(Path::new("/opt/bin/transhume")).to_string();
        assert!(failure.contains("librdmacm.so.1") && failure.contains("/opt/lib/transhume"), "{failure}");
        assert!(failure.contains("make build"), "{failure}");
    }
}
