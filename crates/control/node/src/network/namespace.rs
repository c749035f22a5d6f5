//! Named network namespaces of this host, as `ip netns` creates them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fabric::netns;
use rpc::wire::reason;

/// The directory of `ip netns`.
const FOLDER: &str = "/var/run/netns";

/// A namespace, kept alive by this handle.
pub struct Namespace {
    name: String,
    file: File,
}

/// Identifies a namespace: a namespace that is created again under the same name has another identity. The kernel does not reuse
/// the number while this process has a resource in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Namespace {
    /// Opens the namespace called `name`.
    ///
    /// # Errors
    /// A [`reason`], if it does not exist.
    pub fn open(name: &str) -> Result<Self, String> {
        let name = name.to_owned();
        match File::open(Path::new(FOLDER).join(&name)) {
            Ok(file) => Ok(Self { name, file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = format!("there is no network namespace `{name}` on this host");
                let remedy =
                    format!("create it with `ip netns add {name}`, or use one that `ip netns` lists");
                Err(reason(&what, &remedy))
            }
            Err(error) => Err(in_namespace(&name, &error)),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls `inside` in the namespace.
    ///
    /// # Errors
    /// If the name belongs to something else, such as a namespace that was deleted while in use.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, String> {
        netns::enter(self.file.as_fd(), inside).map_err(|error| in_namespace(&self.name, &error))
    }

    /// The identity of the namespace.
    ///
    /// # Errors
    /// Errors of `fstat`.
    pub fn identity(&self) -> Result<Identity, String> {
        let about = self.file.metadata().map_err(|error| in_namespace(&self.name, &error))?;
        Ok(Identity { device: about.dev(), inode: about.ino() })
    }
}

impl Identity {
    /// Whether `name` still refers to it.
    pub fn is_called(self, name: &str) -> bool {
        Namespace::open(name).and_then(|namespace| namespace.identity()) == Ok(self)
    }
}

fn in_namespace(name: &str, error: &io::Error) -> String {
    format!("the network namespace `{name}` cannot be entered: {error}")
}
