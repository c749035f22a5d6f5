//! Blockers among System V semaphores, message queues and shared memory, which stay on their host.
//!
//! The kernel does not list the users of such an object. It only names the process that used it last, and the one that created it.

use std::collections::BTreeSet;
use std::fs;

use super::findings::{Findings, named};

/// How many semaphores of a set to inspect at most; each takes a system call.
const MOST: usize = 100_000;

impl Findings<'_> {
    pub(super) fn system_v(&mut self) {
        for (pid, set) in self.users(semaphores()) {
            let what = format!("{} uses the System V semaphores {set}", named(pid));
            self.block(what, "have it use unnamed POSIX semaphores");
        }
        for (pid, queue) in self.users(queues()) {
            let what = format!("{} uses the System V message queue {queue}", named(pid));
            self.block(what, "have it use a pipe or a socket");
        }
        for (pid, segment) in self.users(unattached_segments()) {
            self.shares_memory(pid, &format!("created or used (segment {segment})"));
        }
    }

    pub(super) fn shares_memory(&mut self, pid: i32, how: &str) {
        let what = format!("{} has System V shared memory {how}", named(pid));
        self.block(what, "have it use POSIX shared memory (for UCX: UCX_TLS=^sysv)");
    }

    /// The processes that belong to the tree.
    fn users(&self, all: BTreeSet<(i32, i32)>) -> Vec<(i32, i32)> {
        all.into_iter().filter(|(pid, _)| self.members.contains(pid)).collect()
    }
}

/// The process that used each semaphore set last.
fn semaphores() -> BTreeSet<(i32, i32)> {
    let sets = read("sem");
    let sets = rows(&sets, ["semid", "nsems"]);
    let all = sets.flat_map(|[set, count]| (0..count).map(move |at| (set, at))).take(MOST);
    // SAFETY: this command takes no fourth argument, and reads or writes no memory.
    all.map(|(set, at)| (unsafe { libc::semctl(set, at, libc::GETPID) }, set)).collect()
}

/// The processes that sent to and received from each queue last.
fn queues() -> BTreeSet<(i32, i32)> {
    let all = read("msg");
    let all = rows(&all, ["msqid", "lspid", "lrpid"]);
    all.flat_map(|[queue, sender, receiver]| [(sender, queue), (receiver, queue)]).collect()
}

/// The processes that created and last used each segment that no process has mapped.
fn unattached_segments() -> BTreeSet<(i32, i32)> {
    let all = read("shm");
    let all = rows(&all, ["shmid", "cpid", "lpid", "nattch"]).filter(|row| row[3] == 0);
    all.flat_map(|[segment, maker, user, _]| [(maker, segment), (user, segment)]).collect()
}

/// Reads a table in `/proc/sysvipc`; kernels without System V IPC have none.
fn read(kind: &str) -> String {
    fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default()
}

/// The values of the columns with these titles, line by line.
fn rows<'a, const N: usize>(
    table: &'a str,
    titles: [&str; N],
) -> impl Iterator<Item = [i32; N]> + use<'a, N> {
    let mut lines = table.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let places = titles.map(|title| head.iter().position(|known| *known == title));
    lines.filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let row = places.map(|place| fields.get(place?)?.parse().ok());
        row.iter().all(Option::is_some).then(|| row.map(Option::unwrap_or_default))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_their_titles() {
        let table = "       key      semid perms      nsems\n         0          7   600          2\n\n";
        assert_eq!(rows(table, ["nsems", "semid"]).collect::<Vec<_>>(), [[2, 7]]);
        assert_eq!(rows(table, ["semid", "lspid"]).count(), 0);
        assert_eq!(rows("", ["semid"]).count(), 0);
    }
}
