//! Calls the OCI runtime for one container.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::error::{Doing, Error, Result};
use crate::instance::InstanceName;
use crate::linux::files::absent_is_fine;
use crate::linux::helper::ended_within;
use crate::linux::spawn::leave_the_node;

/// How long a call of the runtime may take; usually it takes some hundredths of a second.
const CALL: Duration = Duration::from_secs(30);

/// The OCI runtime, for one container.
pub struct Runtime {
    program: Option<PathBuf>,
    /// The runtime's name of the container.
    name: InstanceName,
    /// The folder of the container.
    folder: PathBuf,
}

impl Runtime {
    /// The runtime `program`, if there is one on this host, for the container `name` in `folder`.
    pub fn new(program: Option<&Path>, name: &InstanceName, folder: &Path) -> Self {
        Self { program: program.map(Path::to_owned), name: name.clone(), folder: folder.to_owned() }
    }

    /// Whether the runtime has made this container and not deleted it.
    pub fn knows_of_it(&self) -> bool {
        self.state().exists()
    }

    /// The directory with the runtime's state of the container.
    fn state(&self) -> PathBuf {
        self.folder.join("runtime")
    }

    /// Calls the runtime, in the container's folder.
    pub fn call(&self, words: &[&str]) -> Result<()> {
        let log = self.folder.join("runtime.log");
        absent_is_fine(fs::remove_file(&log)).doing(|| format!("deleting {}", log.display()))?;
        let runtime = self.program.as_ref().ok_or_else(|| {
            Error::unusable("there is no OCI runtime on this host", "install runc, and restart the node")
        })?;
        let mut command = Command::new(runtime);
        command.arg("--root").arg(self.state()).arg("--log").arg(&log).args(["--log-format", "json"]);
        command.args(words).arg(self.name.as_str()).current_dir(&self.folder);
        // Started processes inherit these streams.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec, system calls only.
        unsafe { command.pre_exec(leave_the_node) };
        let called = command.spawn().and_then(|child| ended_within(child, CALL, &|| false));
        let called = called.map_err(|error| error.to_string()).and_then(|status| {
            if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) }
        });
        called.map_err(|ended| {
            let program = runtime.display();
            let reason = last_error(&fs::read_to_string(&log).unwrap_or_default());
            let reason = reason.unwrap_or(ended);
            let what =
                format!("{program} could not {} the container of `{}` ({reason})", words[0], self.name);
            Error::unusable(what, "check that the program is installed and can run the container by itself")
        })
    }
}

/// The last error in the runtime's log, of which each line is an object.
fn last_error(log: &str) -> Option<String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut errors = lines.filter(|line| line["level"] == "error");
    errors.next_back()?["msg"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_reason_is_its_last_error() {
        let log =
            "{\"level\":\"warning\",\"msg\":\"a\"}\n{\"level\":\"error\",\"msg\":\"no such file\"}\nnoise\n";
        assert_eq!(last_error(log).as_deref(), Some("no such file"));
        assert_eq!(last_error(""), None);
    }
}
