//! Orphaned TCP connections: the program has closed them, and the kernel still sends their remaining data.
//!
//! No process has them open, so CRIU does not dump them, and a move would reset them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::instance::Blocker;

/// States in which a connection has unsent data, or has not sent its end: `TCP_FIN_WAIT1`, `TCP_LAST_ACK`, `TCP_CLOSING`.
const UNSENT: [&str; 3] = ["04", "09", "0B"];
/// States in which a connection has received all data of its peer: `TCP_TIME_WAIT`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`,
/// `TCP_CLOSING`.
const END_ARRIVED: [&str; 4] = ["06", "08", "09", "0B"];

/// Most peers acknowledge at once, and other peers may want to connect meanwhile: the first pause between two checks is short, and
/// each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Waits until the current orphaned connections in the network of process `pid` have sent all their data, and returns whether they have.
/// Gives up when `is_in_vain` returns true.
pub fn have_sent_all(pid: i32, patience: Duration, mut is_in_vain: impl FnMut() -> bool) -> io::Result<bool> {
    let end = Instant::now() + patience;
    let process = pid.to_string();
    let mut left = beside(&process)?;
    let mut pause = FIRST_PAUSE;
    while !left.is_empty() {
        if Instant::now() > end || is_in_vain() {
            return Ok(false);
        }
        thread::sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
        let still = beside(&process)?;
        left.retain(|connection| still.contains(connection));
    }
    Ok(true)
}

/// Whether no orphaned connection in this process' network is known to have unsent data.
pub fn have_sent() -> bool {
    beside("self").is_ok_and(|left| left.is_empty())
}

/// The blocker for connections with unsent data.
pub fn blocker() -> Blocker {
    let what = "the instance has closed a connection with unsent data";
    Blocker::new(what, "move it after the peer has received the data")
}

fn beside(process: &str) -> io::Result<HashSet<String>> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{process}/net/{name}"));
    // Listing all connections of the machine takes milliseconds.
    if counted(&read("sockstat")?) == Some(0) {
        return Ok(HashSet::new());
    }
    // Kernels without IPv6 have no second list.
    let lists = [read("tcp")?, read("tcp6").unwrap_or_default()];
    Ok(lists.iter().flat_map(|list| unsent(list)).collect())
}

/// The number of orphans on the machine, in all networks, according to `/proc/net/sockstat`.
fn counted(statistics: &str) -> Option<u64> {
    let tcp = statistics.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    let mut words = tcp.split(' ');
    words.find(|word| *word == "orphan")?;
    words.next()?.parse().ok()
}

/// Both addresses of each orphan with unsent data, from `/proc/net/tcp`. If the other end is in the same network, its state shows
/// whether all data has arrived.
fn unsent(list: &str) -> Vec<String> {
    let lines: Vec<Line<'_>> = list.lines().filter_map(Line::parse).collect();
    let ended = lines.iter().filter(|line| END_ARRIVED.contains(&line.state));
    let ended: HashSet<_> = ended.map(|line| (line.remote, line.local)).collect();
    let orphans = lines.iter().filter(|line| line.inode == "0" && UNSENT.contains(&line.state));
    let left = orphans.filter(|line| !ended.contains(&(line.local, line.remote)));
    left.map(|line| format!("{} {}", line.local, line.remote)).collect()
}

/// A connection in `/proc/net/tcp`.
struct Line<'a> {
    local: &'a str,
    remote: &'a str,
    state: &'a str,
    inode: &'a str,
}

impl<'a> Line<'a> {
    /// The columns are number, addresses, state, five more, and inode.
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { local, remote, state, inode: fields.nth(5)? })
    }
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
    fn orphans_are_distinguished_from_other_connections() {
        let line_of = |addresses, state, inode| {
            format!(
                "   0: {addresses} {state} 001ED2D5:00000000 01:00000014 00000000     0        0 {inode} 2 0 20 4\n"
            )
        };
        let line = |state, inode| line_of("0B014D0A:1F90 0C014D0A:D431", state, inode);
        let other_end = |state| line_of("0C014D0A:D431 0B014D0A:1F90", state, 8);
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let one = ["0B014D0A:1F90 0C014D0A:D431"];
        for beside in [line("01", 7), other_end("01")] {
            assert_eq!(unsent(&[head.into(), beside, line("04", 0)].concat()), one);
        }
        for other in [line("04", 7), line("06", 0), line("01", 7), line("04", 0) + &other_end("08")] {
            assert!(unsent(&[head.into(), other].concat()).is_empty());
        }
    }
}
