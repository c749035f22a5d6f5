//! TCP connections that their program has closed while there was something left to send, which the kernel still
//! does. No process has them any more, so that CRIU does not know of them: their peers would be reset in a move.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::Blocker;

/// States in which a connection has not sent all, its end included: `TCP_FIN_WAIT1`, `TCP_LAST_ACK`, `TCP_CLOSING`.
const UNSENT: [&str; 3] = ["04", "09", "0B"];
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until those that are in the network of process `pid` now have sent all, and returns whether they have.
pub fn have_sent_all(pid: i32, patience: Duration) -> io::Result<bool> {
    let end = Instant::now() + patience;
    let mut left = beside(pid)?;
    while !left.is_empty() {
        if Instant::now() > end {
            return Ok(false);
        }
        thread::sleep(PAUSE);
        let still = beside(pid)?;
        left.retain(|connection| still.contains(connection));
    }
    Ok(true)
}

/// What to say if they have not.
pub fn blocker() -> Blocker {
    let what = "the instance has closed a connection that has not sent all yet";
    Blocker::new(what, "move it when the peer has taken what was sent")
}

fn beside(pid: i32) -> io::Result<HashSet<String>> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    // To look at all connections of the machine takes milliseconds.
    if counted(&read("sockstat")?) == Some(0) {
        return Ok(HashSet::new());
    }
    // Kernels without IPv6 have no second list.
    let lists = [read("tcp")?, read("tcp6").unwrap_or_default()];
    Ok(lists.iter().flat_map(|list| unsent(list)).collect())
}

/// How many there are on the machine, of all networks, as `/proc/net/sockstat` says.
fn counted(statistics: &str) -> Option<u64> {
    let tcp = statistics.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    let mut words = tcp.split(' ');
    words.find(|word| *word == "orphan")?;
    words.next()?.parse().ok()
}

/// Both addresses of each, out of `/proc/net/tcp`, which has them in its second and third column, the state in its fourth
/// and the inode of the socket in its tenth.
fn unsent(list: &str) -> impl Iterator<Item = String> {
    list.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let is_one = UNSENT.contains(&state) && fields.nth(5) == Some("0");
        is_one.then(|| format!("{local} {remote}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_are_counted() {
        let statistics = "sockets: used 9\nTCP: inuse 3 orphan 2 tw 0 alloc 5 mem 1\nUDP: inuse 0 mem 0\n";
        assert_eq!(counted(statistics), Some(2));
        assert_eq!(counted("sockets: used 9\n"), None);
    }

    #[test]
    fn orphans_are_told_from_others() {
        let line = |state, inode| {
            format!(
                "   0: 0B014D0A:1F90 0C014D0A:D431 {state} 001ED2D5:00000000 01:00000014 00000000     0        0 {inode} 2 0 20 4\n"
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let found = |list: &str| unsent(list).collect::<Vec<_>>();
        let one = ["0B014D0A:1F90 0C014D0A:D431".to_owned()];
        assert_eq!(found(&[head.into(), line("01", 7), line("04", 0)].concat()), one);
        for other in [line("04", 7), line("06", 0), line("01", 7)] {
            assert!(found(&[head.into(), other].concat()).is_empty());
        }
    }
}
