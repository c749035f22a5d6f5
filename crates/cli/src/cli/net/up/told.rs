//! Messages of `transhume net up` to its user.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::output;

/// A message, as text or as a JSON line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Told<'a> {
    /// The coordinator does not answer.
    Waiting { coordinator: SocketAddr, reason: &'a str },
    /// The machine has joined.
    Joined { name: &'a str },
    /// The network device exists.
    Device { name: &'a str, address: Option<&'a str> },
    /// A token for other machines.
    Token { token: &'a str, join: String },
    /// The connection to the coordinator was lost; the node reconnects.
    Lost { coordinator: SocketAddr },
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { coordinator, reason } => {
                write!(f, "waiting for the coordinator at {coordinator}: {reason}")
            }
            Self::Joined { name } => write!(f, "joined as `{name}`"),
            Self::Device { name, address: Some(address) } => {
                write!(f, "network device {name} is up, with address {address}")
            }
            Self::Device { name, address: None } => write!(f, "network device {name} is up"),
            Self::Token { join, .. } => {
                write!(f, "to join other machines, run there within 24 hours:\n    {join}")?;
                f.write_str("\n(`transhume net token` prints another token)")
            }
            Self::Lost { coordinator } => {
                write!(f, "connection to the coordinator at {coordinator} lost, reconnecting")
            }
        }
    }
}

impl Told<'_> {
    /// Prints the message. A closed output is not an error.
    pub fn tell(&self, json: bool) {
        let _unheard = if json { output::json(self) } else { output::line(&self.to_string()) };
    }
}

/// The command with which another machine joins. `address` is this machine's, with its prefix.
pub fn join_command(token: &str, address: Option<&str>) -> String {
    let address = match address {
        Some(address) => format!(" --address {}", next(address).unwrap_or_else(|| "ADDRESS/PREFIX".into())),
        None => String::new(),
    };
    format!("transhume net up --join {token}{address}")
}

/// The next address in the same network, if it is a host address.
fn next(address: &str) -> Option<String> {
    let (address, prefix) = address.split_once('/')?;
    let prefix: u32 = prefix.parse().ok()?;
    match address.parse().ok()? {
        IpAddr::V4(address) => {
            let (bits, hosts) = (u32::from(address).checked_add(1)?, u32::MAX.checked_shr(prefix)?);
            (bits & hosts != 0 && bits & hosts != hosts)
                .then(|| format!("{}/{prefix}", std::net::Ipv4Addr::from(bits)))
        }
        IpAddr::V6(address) => {
            let (bits, hosts) = (u128::from(address).checked_add(1)?, u128::MAX.checked_shr(prefix)?);
            (bits & hosts != 0).then(|| format!("{}/{prefix}", std::net::Ipv6Addr::from(bits)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_machine_has_the_next_address() {
        assert_eq!(
            join_command("T", Some("10.88.0.1/24")),
            "transhume net up --join T --address 10.88.0.2/24"
        );
        assert_eq!(join_command("T", None), "transhume net up --join T");
        assert_eq!(next("fd00::ff/64").as_deref(), Some("fd00::100/64"));
        for last in ["10.88.0.254/24", "10.88.0.1/32", "255.255.255.255/0", "fd00::1/128"] {
            assert_eq!(next(last), None, "{last}");
        }
        assert!(join_command("T", Some("10.88.0.254/24")).ends_with(" --address ADDRESS/PREFIX"));
    }

    #[test]
    fn each_event_is_a_line_of_json() {
        let told = Told::Device { name: "transhume0", address: None };
        let line = serde_json::to_string(&told).unwrap();
        assert_eq!(line, r#"{"event":"device","name":"transhume0","address":null}"#);
    }
}
