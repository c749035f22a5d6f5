//! Tokens that are revoked, and machines that are removed from a network and do not want to know of it.

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{HostRemoved, NetStatus, Token, TokenState};
use e2e::machines::{LIMIT, NODE_PORT, World, token_in, words};

/// Opens a connection for links to a node.
const OPENING: &str = "0100000000";

/// The second machine, which is removed, and the third, which stays.
const B: usize = 1;
const C: usize = 2;

/// Numbered datagrams from the second machine to the first, over the overlay.
struct Numbers {
    sender: UdpSocket,
    receiver: UdpSocket,
    next: u64,
}

impl Numbers {
    fn new(world: &World) -> Result<Self> {
        let bind = |machine: usize, address: &'static str| {
            anyhow::Ok(world.machines[machine].network.enter(|| UdpSocket::bind(address))??)
        };
        let (sender, receiver) = (bind(B, "10.88.0.2:0")?, bind(0, "10.88.0.1:7600")?);
        receiver.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(Self { sender, receiver, next: 0 })
    }

    /// Sends the next one. Returns the received ones.
    fn send(&mut self) -> Result<Vec<u64>> {
        self.sender.send_to(&self.next.to_le_bytes(), "10.88.0.1:7600")?;
        self.next += 1;
        let (mut came, mut number) = (Vec::new(), [0; 8]);
        loop {
            match self.receiver.recv(&mut number) {
                Ok(_) => came.push(u64::from_le_bytes(number)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(came);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A machine's certificate and key as they were once.
struct Papers(Vec<PathBuf>);

impl Papers {
    fn copy(world: &World, machine: usize) -> Result<Self> {
        let name = world.machines[machine].name;
        let copy = |kind: &str| {
            let (from, to) = (format!("pki/{name}.{kind}"), format!("former.{kind}"));
            let to = world.state(machine).join(to);
            fs::copy(world.state(machine).join(from), &to)?;
            anyhow::Ok(to)
        };
        Ok(Self(["pem", "key"].map(copy).into_iter().collect::<Result<_>>()?))
    }

    /// Whether the node at `address` sends anything to a machine with these certificates.
    fn are_accepted(&self, world: &World, address: &str) -> Result<bool> {
        let [certificate, key] = &self.0[..] else { anyhow::bail!("there are two files") };
        let (certificate, key) = (certificate.to_str().context("a path")?, key.to_str().context("a path")?);
        let guest =
            world.guest(B, &["say", address, NODE_PORT, OPENING, certificate, key])?.end(LIMIT)?.success()?;
        Ok(guest.lines != ["cut off"])
    }
}

/// Datagrams that the first machine has dropped because no session has keys for them.
fn dropped(world: &World) -> Result<u64> {
    let status = world.ask(&["net", "status", "--json"])?.success()?.lines.concat();
    let status: NetStatus = serde_json::from_str(&status)?;
    let first = status.hosts.into_iter().find(|host| host.name == "a").and_then(|host| host.state);
    let dropped = first.context("a does not answer")?.dropped;
    let without_keys = dropped.iter().filter(|(why, _)| ["stranger", "unknown-key"].contains(&why.as_str()));
    Ok(without_keys.map(|(_, count)| count).sum())
}

fn tokens(world: &World) -> Result<Vec<Token>> {
    let tokens = world.ask(&["net", "token", "list", "--json"])?.success()?.lines.concat();
    Ok(serde_json::from_str(&tokens)?)
}

fn new_token(world: &World) -> Result<String> {
    Ok(world.ask(&["net", "token"])?.success()?.lines.concat())
}

/// Lets the second machine hear nothing of the coordinator, or all again.
fn keep_from_coordinator(world: &World, is_kept: bool) -> Result<()> {
    let rules = if is_kept {
        "table ip deaf { chain out { type filter hook output priority 0; tcp dport 7700 drop; }; \
         chain in { type filter hook input priority 0; tcp sport 7700 drop; }; }"
    } else {
        "delete table ip deaf"
    };
    let network = &world.machines[B].network;
    network.start(Command::new("nft").arg(rules))?.end(LIMIT)?.success().map(drop)
}

#[test]
fn a_revoked_token_admits_no_machine() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(2)?;
    let (_first, join) = world.first()?;
    let token = new_token(&world)?;
    world.ask(&["net", "token", "revoke", "2"])?.success()?;
    let refused = world.refused(B, &["--join", &token])?;
    ensure!(
        refused
            .contains("the token was revoked\n  create a new token with `transhume net token` on 192.0.2.1"),
        "{refused}"
    );
    let _second = world.up(B, &words(&join))?;
    let listed: Vec<_> =
        tokens(&world)?.into_iter().map(|token| (token.id, token.state, token.hosts)).collect();
    let by_b = (1, TokenState::Good, vec!["b".to_owned()]);
    ensure!(listed == [by_b, (2, TokenState::Revoked, vec![])], "{listed:?}");
    // A machine that has joined stays, and is found by the token itself.
    world.ask(&["net", "token", "revoke", token_in(&join)?])?.success()?;
    world.stream(B, 0)?;
    let unknown = world.ask(&["net", "token", "revoke", "3", "--json"])?.errors;
    ensure!(unknown.starts_with("{\"failed\"") && unknown.contains("token list"), "{unknown}");
    Ok(())
}

#[test]
fn a_machine_that_is_removed_gets_nothing_through_until_it_joins_by_a_new_token() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(3)?;
    let (_first, join) = world.first()?;
    let token = token_in(&join)?;
    let second = world.up(B, &words(&join))?;
    let _third = world.up(C, &["--join", token, "--address", "10.88.0.3/24"])?;
    let papers = Papers::copy(&world, B)?;
    let nodes = ["192.0.2.1", "192.0.2.3"];
    for node in nodes {
        ensure!(papers.are_accepted(&world, node)?, "{node} does not answer");
    }
    let mut numbers = Numbers::new(&world)?;
    world.eventually("something comes through", || Ok(!numbers.send()?.is_empty()))?;

    // It hears nothing of it, so that its node goes on as if nothing were.
    keep_from_coordinator(&world, true)?;
    let before = dropped(&world)?;
    let removed = world.ask(&["host", "remove", "b", "--json"])?.success()?.lines.concat();
    let removed: HostRemoved = serde_json::from_str(&removed)?;
    let expected = HostRemoved { host: "b".into(), revoked_tokens: vec![1], ..HostRemoved::default() };
    ensure!(removed == expected, "{removed:?}");
    let first_after = numbers.next;
    world.eventually("its frames are dropped", || {
        let came = numbers.send()?;
        ensure!(came.iter().all(|number| *number < first_after), "{came:?} came after {first_after}");
        Ok(dropped(&world)? >= before + 10)
    })?;
    for node in nodes {
        ensure!(!papers.are_accepted(&world, node)?, "{node} believes a removed host");
    }
    ensure!(world.hosts()? == ["a", "c"]);
    world.stream(C, 0).context("to the remaining machine")?;

    // When it hears of it, it says so and ends, and does not ask again.
    keep_from_coordinator(&world, false)?;
    let ended = second.end(LIMIT)?;
    let says_so = |errors: &str| {
        errors.contains("host `b` was removed from the cluster") && errors.contains("a new token")
    };
    ensure!(!ended.status.success() && says_so(&ended.errors), "{ended:?}");
    keep_from_coordinator(&world, true)?;
    let again = world.refused(B, &[])?;
    ensure!(says_so(&again), "{again}");
    keep_from_coordinator(&world, false)?;
    let refused = world.refused(B, &["--join", token])?;
    ensure!(refused.contains("the token was revoked"), "{refused}");

    let second = world.up(B, &["--join", &new_token(&world)?])?;
    ensure!(world.hosts()? == ["a", "b", "c"]);
    // Or when it is not there, and does not know of it before it has the token.
    drop(second);
    world.ask(&["host", "remove", "b"])?.success()?;
    let _second = world.up(B, &["--join", &new_token(&world)?])?;
    ensure!(world.hosts()? == ["a", "b", "c"]);
    world.stream(B, C).context("from the machine that is back")?;
    for node in nodes {
        ensure!(!papers.are_accepted(&world, node)?, "{node} believes the former key");
    }
    Ok(())
}

#[test]
fn impossible_removals_are_refused_with_the_reason() -> Result<()> {
    let _shared = e2e::shared();
    let world = World::new(1)?;
    let (_first, _) = world.first()?;
    for (host, expected) in [
        ("a", "host a runs the coordinator"),
        ("b", "there is no host `b`"),
        ("coordinator", "there is no host `coordinator`"),
    ] {
        let refused = world.ask(&["host", "remove", host])?;
        ensure!(!refused.status.success() && refused.errors.contains(expected), "{refused:?}");
        let in_json = world.ask(&["host", "remove", host, "--json"])?.errors;
        ensure!(in_json.starts_with("{\"failed\"") && in_json.contains(expected), "{in_json}");
    }
    Ok(())
}
