//! The lab in which all have their ends: two hosts, which a veth pair joins.
//!
//! Their packets take one of two ways: over that pair, or over the lab's own switch, which can lose some of them.

use std::cell::Cell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::NetStatus;
use e2e::interrupt;
use e2e::overlay::await_kernel;
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use lab::layout;

use super::{PLAIN, Path, RECEIVER, SEALED, SENDER};

/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a device may take to be there.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// How often the condition is checked meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// The overlay's device of a host.
pub const TAP: &str = "tap1";

/// The interface of a host that leads to the other.
const CABLE: &str = "cable0";

/// The interface of a host that leads to the switch.
const UPLINK: &str = "up0";

/// The table of the rules that drop.
const TABLE: &str = "bench";

/// A lab of two hosts with the overlay between them. All that is started in it ends with it, and its devices go with their
/// namespaces, also when this process is interrupted.
pub struct Ground {
    lab: TestLab,
    /// Whether the overlay's datagrams are.
    sealed: Cell<bool>,
}

impl Ground {
    /// Makes the lab, and plugs a device of each host into the overlay.
    ///
    /// # Errors
    /// If one of them cannot be made.
    pub fn new() -> Result<Self> {
        let ground = Self { lab: TestLab::up(2)?, sealed: Cell::new(true) };
        fs::create_dir(ground.folder())?;
        ground.lay_cable()?;
        ground.net(&["layout", "star"])?;
        for host in [SENDER, RECEIVER] {
            let address = format!("{}/24", address_in(0, host)?);
            ground.net(&["attach", host, TAP, "--address", &address])?;
        }
        Ok(ground)
    }

    /// Joins the hosts. Over the switch, where a bridge segments encapsulated frames, VXLAN would be slow.
    fn lay_cable(&self) -> Result<()> {
        let other_end = self.namespace(RECEIVER)?;
        let other_end = other_end.to_str().context("a path that is not UTF-8")?;
        self.ip(SENDER, &["link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", other_end])?;
        for host in [SENDER, RECEIVER] {
            self.ip(host, &["link", "set", CABLE, "up"])?;
            self.ip(host, &["link", "set", UPLINK, "gso_max_segs", "1"])?;
        }
        self.use_cable()
    }

    /// Sends the hosts' packets to each other over the cable.
    fn use_cable(&self) -> Result<()> {
        self.route("add")
    }

    /// Sends frames over the switch. An uplink first cuts them to the size of a wire's, as a network card
    /// would.
    fn use_switch(&self) -> Result<()> {
        self.route("delete")
    }

    /// Does something with the hosts' routes over the cable.
    fn route(&self, verb: &str) -> Result<()> {
        [(SENDER, RECEIVER), (RECEIVER, SENDER)].into_iter().try_for_each(|(host, other)| {
            let (own, other) = (address(host)?.to_string(), address(other)?.to_string());
            self.ip(host, &["route", verb, &other, "dev", CABLE, "src", &own])
        })
    }

    /// The way without any overlay.
    ///
    /// # Errors
    /// If no host has the receiver's name.
    pub fn bare(&self) -> Result<Path> {
        Ok(Path { name: "bare veth", address: address(RECEIVER)?, sealed: None })
    }

    /// The ways through the overlay: sealed, and not.
    ///
    /// # Errors
    /// As [`Self::bare`].
    pub fn overlay(&self) -> Result<[Path; 2]> {
        let address = address_in(0, RECEIVER)?;
        let path = |name, sealed| Path { name, address, sealed: Some(sealed) };
        Ok([path(SEALED, true), path(PLAIN, false)])
    }

    /// Makes ready the resources of `path`.
    ///
    /// # Errors
    /// If the overlay's link cannot be changed.
    pub fn prepare(&self, path: &Path) -> Result<()> {
        let Some(sealed) = path.sealed.filter(|sealed| *sealed != self.sealed.get()) else { return Ok(()) };
        let how: &[&str] = if sealed { &[] } else { &["--plain"] };
        self.net(&[&["link", "add", SENDER, RECEIVER], how].concat())?;
        self.sealed.set(sealed);
        if sealed { Ok(()) } else { await_kernel(&self.lab, [SENDER, RECEIVER], true) }
    }

    /// A folder for the peers' files, which goes with the lab.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.lab.lab.layout().root().join("peers")
    }

    /// The folder with the hosts' own keys and certificates.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.lab.lab.layout().pki()
    }

    /// The process of the node of `host`.
    ///
    /// # Errors
    /// If there is none.
    pub fn node(&self, host: &str) -> Result<i32> {
        let status = self.lab.lab.status()?;
        let found = status.hosts.iter().find(|of| of.name.to_string() == host);
        found.and_then(|found| found.node.pid).with_context(|| format!("{host} has no node"))
    }

    /// How many MACs the node of `host` knows.
    ///
    /// # Errors
    /// If it does not say so.
    pub fn known_macs(&self, host: &str) -> Result<usize> {
        let said = self.lab.transhume(&["net", "status", "--json"])?.success()?.lines.join("\n");
        let status: NetStatus = serde_json::from_str(&said)?;
        let state = status.hosts.into_iter().find(|of| of.name == host).and_then(|of| of.state);
        Ok(state.with_context(|| format!("{host} does not answer"))?.macs)
    }

    /// The network namespace of `host`.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn namespace(&self, host: &str) -> Result<PathBuf> {
        Ok(lab::network::namespace_file(&self.lab.lab.layout().namespace(host.parse()?)))
    }

    /// A command that will run on `host`. None is made when this process has been interrupted: it could miss the lab's end.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn command(&self, host: &str, program: &str) -> Result<Command> {
        interrupt::stand_still_if_it_has_come();
        Ok(self.lab.lab.command(host.parse()?, program)?)
    }

    /// Runs `ip` on `host`.
    ///
    /// # Errors
    /// If the program fails, with its message.
    pub fn ip(&self, host: &str, arguments: &[&str]) -> Result<()> {
        run(self.command(host, "ip")?.args(arguments), LIMIT).map(drop)
    }

    /// Gives `device` of `host` its address as soon as one of `programs` has made it.
    ///
    /// # Errors
    /// If none does, or one of them ends.
    pub fn address_device(
        &self,
        host: &str,
        device: &str,
        address: Ipv4Addr,
        programs: &mut [Program],
    ) -> Result<()> {
        let address = format!("{address}/24");
        eventually(DEVICE_LIMIT, || {
            for program in &mut *programs {
                program.require_running()?;
            }
            Ok(self.ip(host, &["address", "replace", &address, "dev", device]))
        })?;
        self.ip(host, &["link", "set", device, "up"])
    }

    /// Drops so many of a hundred packets between the hosts, in both directions, until the result is dropped.
    ///
    /// # Errors
    /// If `ip` or `nft` fails.
    pub fn lossy(&self, percent: u8) -> Result<Lossy<'_>> {
        let hosts = format!("{{ {SENDER}, {RECEIVER} }}");
        self.nft(&format!(
            "add table bridge {TABLE}; \
             add chain bridge {TABLE} loss {{ type filter hook forward priority 0; }}; \
             add rule bridge {TABLE} loss iifname {hosts} oifname {hosts} numgen random mod 100 < {percent} drop"
        ))?;
        let lossy = Lossy { ground: self };
        self.use_switch()?;
        Ok(lossy)
    }

    /// Runs `nft` in the switch.
    fn nft(&self, rules: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.lab.lab.layout().switch(), "nft", rules]);
        run(&mut command, LIMIT).map(drop)
    }

    fn net(&self, arguments: &[&str]) -> Result<()> {
        let arguments = [&["net"], arguments].concat();
        self.lab.transhume(&arguments)?.success().with_context(|| self.lab.logs()).map(drop)
    }
}

/// As long as it lives, the hosts' packets go over the switch, which loses some.
pub struct Lossy<'a> {
    ground: &'a Ground,
}

impl Drop for Lossy<'_> {
    fn drop(&mut self) {
        let removed = self.ground.nft(&format!("delete table bridge {TABLE}"));
        if let Err(error) = removed.and_then(|()| self.ground.use_cable()) {
            interrupt::stand_still_if_it_has_come();
            eprintln!("the path goes on losing packets: {error:#}");
        }
    }
}

/// The address of `host` without any overlay.
///
/// # Errors
/// If no host has that name.
pub fn address(host: &str) -> Result<Ipv4Addr> {
    Ok(layout::address(host.parse()?))
}

/// The address of `host` in overlay `number`.
///
/// # Errors
/// If no host has that name.
pub fn address_in(number: u8, host: &str) -> Result<Ipv4Addr> {
    let [.., last] = address(host)?.octets();
    Ok(Ipv4Addr::new(10, 88, number, last))
}

/// Tries `step` until it succeeds: its inner result. The outer one ends the attempts.
///
/// # Errors
/// The outer one, or the inner one that there was when the time was up.
pub fn eventually<T>(limit: Duration, mut step: impl FnMut() -> Result<Result<T>>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match step()? {
            Err(_) if Instant::now() < end => thread::sleep(LOOK),
            ended => return ended,
        }
    }
}
