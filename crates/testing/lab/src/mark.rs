//! Recognises a lab's processes, even after they were reparented.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process::{self, Identity};

/// Every daemon of a lab, and each command of `lab exec`, has this variable in its environment; its value is the lab's
/// id. The first process of an instance has the user's environment; it has the mark among its arguments instead; the
/// instance ends with it.
pub const VARIABLE: &str = "TRANSHUME_LAB_ID";

/// The mark of the lab with this id, in an environment or as an argument.
#[must_use]
pub fn assignment(id: &str) -> String {
    format!("{VARIABLE}={id}")
}

/// Criteria for the processes of a lab.
#[derive(Debug)]
pub struct Marks {
    assignment: Option<String>,
    namespaces: HashSet<(u64, u64)>,
    /// The prefix of the names of its cgroups.
    cgroups: Option<String>,
}

impl Marks {
    /// Matches processes with this lab id (if it is known) or in these namespaces.
    #[must_use]
    pub fn new<'a>(lab_id: Option<&str>, namespaces: impl Iterator<Item = &'a Path>) -> Self {
        Self {
            assignment: lab_id.map(assignment),
            namespaces: namespaces.filter_map(file_identity).collect(),
            cgroups: None,
        }
    }

    /// Also matches processes in cgroups with this prefix: a process that an OCI runtime starts has neither the mark nor a namespace of the lab at
    /// first, and is orphaned if the runtime is killed then.
    #[must_use]
    pub fn and_in_cgroups(self, prefix: String) -> Self {
        Self { cgroups: Some(prefix), ..self }
    }

    /// The matching processes, without the caller.
    pub fn processes(&self) -> impl Iterator<Item = Identity> {
        let caller = std::process::id();
        process::all().filter(move |found| found.pid.unsigned_abs() != caller && self.owns(found.pid))
    }

    fn owns(&self, pid: i32) -> bool {
        self.is_inside(pid) || self.is_marked(pid) || self.is_in_cgroup(pid)
    }

    fn is_in_cgroup(&self, pid: i32) -> bool {
        let Some(prefix) = &self.cgroups else { return false };
        let cgroups = fs::read_to_string(process::file(pid, "cgroup")).unwrap_or_default();
        cgroups.lines().any(|line| line.split('/').any(|part| part.starts_with(prefix)))
    }

    fn is_inside(&self, pid: i32) -> bool {
        file_identity(&process::file(pid, "ns/net")).is_some_and(|found| self.namespaces.contains(&found))
    }

    fn is_marked(&self, pid: i32) -> bool {
        let Some(assignment) = &self.assignment else { return false };
        ["environ", "cmdline"].into_iter().any(|file| {
            let texts = fs::read(process::file(pid, file)).unwrap_or_default();
            texts.split(|byte| *byte == 0).any(|text| text == assignment.as_bytes())
        })
    }
}

fn file_identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn finds_marked_processes_only() {
        let mut marked = Command::new("sleep").arg("60").env(VARIABLE, "test-mark-1").spawn().unwrap();
        let script = ["-c", "read line", &assignment("test-mark-1")];
        let mut instance = Command::new("sh").args(script).stdin(Stdio::piped()).spawn().unwrap();
        let mut other = Command::new("sleep").arg("60").env(VARIABLE, "test-mark-12").spawn().unwrap();
        let marks = Marks::new(Some("test-mark-1"), std::iter::empty());
        // A child carries its parent's environment until `execve`, so wait for that.
        let found = loop {
            let found: BTreeSet<_> = marks.processes().map(|found| found.pid.unsigned_abs()).collect();
            if found.len() > 1 {
                break found;
            }
        };
        for child in [&mut marked, &mut instance, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, BTreeSet::from([marked.id(), instance.id()]));
    }
}
