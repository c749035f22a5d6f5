//! TCP connections that their program has closed while there was something left to send, which the kernel still
//! does. No process has them any more, so that CRIU does not know of them: their peers would be reset in a move.

use std::fs;
use std::io;

/// States in which a connection has not sent all, its end included: `TCP_FIN_WAIT1`, `TCP_LAST_ACK`, `TCP_CLOSING`.
const UNSENT: [&str; 3] = ["04", "09", "0B"];

/// Whether there are any in the network of process `pid`.
pub fn are_beside(pid: i32) -> io::Result<bool> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    // To look at all connections of the machine takes milliseconds.
    if counted(&read("sockstat")?) == Some(0) {
        return Ok(false);
    }
    // Kernels without IPv6 have no second list.
    Ok(has_unsent(&read("tcp")?) || has_unsent(&read("tcp6").unwrap_or_default()))
}

/// How many there are on the machine, of all networks, as `/proc/net/sockstat` says.
fn counted(statistics: &str) -> Option<u64> {
    let tcp = statistics.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    let mut words = tcp.split(' ');
    words.find(|word| *word == "orphan")?;
    words.next()?.parse().ok()
}

/// Reads `/proc/net/tcp`, which has the state in its fourth column and the inode of the socket in its tenth.
fn has_unsent(list: &str) -> bool {
    list.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let state = fields.next();
        state.is_some_and(|state| UNSENT.contains(&state)) && fields.nth(5) == Some("0")
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
        assert!(has_unsent(&[head.into(), line("01", 7), line("04", 0)].concat()));
        for other in [line("04", 7), line("06", 0), line("01", 7)] {
            assert!(!has_unsent(&[head.into(), other].concat()));
        }
    }
}
