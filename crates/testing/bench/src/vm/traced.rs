//! A QEMU that records when its processors stop and run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use e2e::common_files;
use tempfile::TempDir;

/// The options of the record.
pub const OPTIONS: [&str; 3] = ["-d", "-D", "-msg"];

/// A program that runs QEMU with a record of its own.
pub struct Traced {
    folder: TempDir,
}

impl Traced {
    /// Makes it for the QEMU `program`, which is a path or is found by `PATH`.
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn new(program: &str) -> Result<Self> {
        let folder = common_files::folder()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let traced = Self { folder };
        let script = format!(
            "#!/bin/sh\nexec {program} \"$@\" -d trace:vm_state_notify -D {}/$(date +%s%N).trace -msg timestamp=on\n",
            traced.folder.path().display()
        );
        fs::write(traced.program(), script)?;
        fs::set_permissions(traced.program(), fs::Permissions::from_mode(0o755))?;
        Ok(traced)
    }

    /// Its path.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("qemu-system-x86_64")
    }

    /// The pause of the last move since `begin`: from the stop of the processors of one QEMU until those of another run.
    ///
    /// # Errors
    /// If the records have no move.
    pub fn pause_since(&self, begin: SystemTime) -> Result<Pause> {
        let mut changes = Vec::new();
        for entry in fs::read_dir(self.folder.path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "trace") {
                let record = fs::read_to_string(&path)?;
                changes.extend(record.lines().filter_map(|line| Change::parse(&path, line)));
            }
        }
        pause(changes, begin.duration_since(UNIX_EPOCH)?)
    }
}

/// A time in which no processor ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its begin, since the epoch.
    pub from: Duration,
    /// Its length.
    pub length: Duration,
}

/// A change of the processors of one QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// Since the epoch.
    at: Duration,
    runs: bool,
    qemu: PathBuf,
}

impl Change {
    /// A line such as `15917@1795829988.318787:vm_state_notify running 1 reason 9 (running)`.
    fn parse(qemu: &Path, line: &str) -> Option<Self> {
        let (_, line) = line.split_once('@')?;
        let (at, change) = line.split_once(":vm_state_notify running ")?;
        let (seconds, micros) = at.split_once('.')?;
        let at = Duration::new(seconds.parse().ok()?, micros.parse::<u32>().ok()?.checked_mul(1000)?);
        Some(Self { at, runs: change.starts_with('1'), qemu: qemu.to_owned() })
    }
}

fn pause(mut changes: Vec<Change>, begin: Duration) -> Result<Pause> {
    changes.retain(|change| change.at >= begin);
    changes.sort_by_key(|change| change.at);
    let runs = changes.iter().rposition(|change| change.runs).context("no QEMU has begun to run")?;
    let stopped = changes[..runs].iter().rfind(|change| !change.runs).context("no QEMU has stopped")?;
    ensure!(stopped.qemu != changes[runs].qemu, "the same QEMU runs on: {changes:?}");
    Ok(Pause { from: stopped.at, length: changes[runs].at - stopped.at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_from_the_stop_of_one_to_the_run_of_the_other() {
        let lines = [
            ("a", "1@100.000001:vm_state_notify running 1 reason 9 (running)"),
            ("b", "1@101.900000:vm_state_notify running 1 reason 9 (running)"),
            ("a", "1@101.500000:vm_state_notify running 0 reason 7 (finish-migrate)"),
            ("a", "guest=guest: terminating on signal"),
        ];
        let changes =
            || lines.iter().filter_map(|(qemu, line)| Change::parse(Path::new(qemu), line)).collect();
        assert_eq!(pause(changes(), Duration::from_secs(101)).unwrap().length, Duration::from_millis(400));
        assert!(pause(changes(), Duration::from_millis(101_600)).is_err());
    }

    #[test]
    fn a_machine_that_runs_on_has_not_moved() {
        let lines = [
            "1@1.000000:vm_state_notify running 0 reason 7",
            "1@2.000000:vm_state_notify running 1 reason 9",
        ];
        let changes = lines.iter().filter_map(|line| Change::parse(Path::new("a"), line)).collect();
        assert!(pause(changes, Duration::ZERO).is_err());
    }
}
