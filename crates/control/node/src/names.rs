//! The names of instances, in a file that containers have as their `/etc/hosts`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;

use rpc::wire;

use crate::lock::lock;

/// The limit of names; further ones are ignored.
const MOST: usize = 1 << 16;

/// The names that each container has by itself.
const OWN: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n";

/// The file with the names of instances.
pub struct Names {
    file: File,
    known: Mutex<BTreeMap<String, Ipv4Addr>>,
}

impl Names {
    /// Opens the file at `path`, creating it if needed. The file is never replaced, since containers have it mounted.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        // Whatever the node's umask is: all users in containers read it.
        file.set_permissions(Permissions::from_mode(0o644))?;
        let names = Self { file, known: Mutex::default() };
        if names.file.metadata()?.len() == 0 {
            names.write(&BTreeMap::new())?;
        }
        Ok(names)
    }

    /// Applies a change from the coordinator.
    pub fn change(&self, change: wire::Names) {
        let mut known = lock(&self.known);
        if change.forget {
            known.clear();
        }
        for (name, address) in change.added {
            if known.len() < MOST {
                known.insert(name, address);
            }
        }
        if let Some(gone) = change.gone {
            known.remove(&gone);
        }
        if let Err(error) = self.write(&known) {
            tracing::warn!("writing the names of instances for containers failed: {error}");
        }
    }

    /// Overwrites the file in place. A concurrent reader may see a name twice or not at all.
    fn write(&self, known: &BTreeMap<String, Ipv4Addr>) -> io::Result<()> {
        let mut text = OWN.to_owned();
        for (name, address) in known {
            // It cannot fail.
            let _ = writeln!(text, "{address} {name}");
        }
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_file_has_the_names_that_there_are_and_stays_the_same_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let names = Names::open(&path).unwrap();
        let mounted = File::open(&path).unwrap();
        let added = |forget, names: &[(&str, u8)]| {
            let address = |last: &u8| Ipv4Addr::new(10, 77, 1, *last);
            let added = names.iter().map(|(name, last)| ((*name).to_owned(), address(last))).collect();
            wire::Names { forget, added, gone: None }
        };
        names.change(added(true, &[("b", 2), ("a", 1)]));
        names.change(wire::Names { forget: false, added: Vec::new(), gone: Some("b".into()) });
        names.change(added(false, &[("c", 3)]));
        assert_eq!(io::read_to_string(&mounted).unwrap(), format!("{OWN}10.77.1.1 a\n10.77.1.3 c\n"));
        let again = Names::open(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains(" a\n"));
        again.change(added(true, &[]));
        assert_eq!(fs::read_to_string(&path).unwrap(), OWN);
    }
}
