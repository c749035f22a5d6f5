//! Network namespaces of this host that have names, as `ip netns` gives them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fabric::netns;
use rpc::wire::reason;

/// Where `ip netns` has them.
const FOLDER: &str = "/var/run/netns";

/// A namespace, which lives as long as this.
pub struct Namespace {
    name: String,
    file: File,
}

/// Which namespace it is: one that is made anew by the same name is another one. Its number is nobody else's as long as something of
/// this process is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Namespace {
    /// The one that is called `name`.
    ///
    /// # Errors
    /// As [`reason`] makes them, if there is none.
    pub fn open(name: &str) -> Result<Self, String> {
        let name = name.to_owned();
        match File::open(Path::new(FOLDER).join(&name)) {
            Ok(file) => Ok(Self { name, file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = format!("there is no network namespace `{name}` on this host");
                let remedy = format!("make it: `ip netns add {name}`; `ip netns` lists those that are there");
                Err(reason(&what, &remedy))
            }
            Err(error) => Err(in_namespace(&name, &error)),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls `inside` in it.
    ///
    /// # Errors
    /// If what has the name is no network namespace, as one that was deleted while it was in use.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, String> {
        netns::enter(self.file.as_fd(), inside).map_err(|error| in_namespace(&self.name, &error))
    }

    /// Which one it is.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn identity(&self) -> Result<Identity, String> {
        let about = self.file.metadata().map_err(|error| in_namespace(&self.name, &error))?;
        Ok(Identity { device: about.dev(), inode: about.ino() })
    }
}

impl Identity {
    /// Whether it is still the one that is called `name`.
    pub fn is_called(self, name: &str) -> bool {
        Namespace::open(name).and_then(|namespace| namespace.identity()) == Ok(self)
    }
}

fn in_namespace(name: &str, error: &io::Error) -> String {
    format!("the network namespace `{name}` cannot be entered: {error}")
}
