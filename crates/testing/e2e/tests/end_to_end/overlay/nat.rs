//! A host behind a NAT, whose node can only dial out.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::Carrier;
use e2e::namespace::Namespace;
use e2e::overlay::{Stream, net, tunnel};
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use lab::Place;
use lab::layout::{Layout, PREFIX_LENGTH};
use lab::network::namespace_file;

const ECHO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/echo.py");
const PORT: &str = "7600";
const LIMIT: Duration = Duration::from_secs(60);

/// The host that is behind the NAT, the others, its address, and the one that they see.
const INNER: &str = "h2";
const OUTER: [&str; 2] = ["h1", "h3"];
const INNER_ADDRESS: &str = "10.77.0.2";
const OUTER_ADDRESS: &str = "10.77.0.102";

/// The first and the last port of those to which the NAT maps.
type Ports = (u16, u16);

/// None of these addresses is a node's own.
const PORTS: [Ports; 2] = [(20_000, 29_999), (30_000, 39_999)];

/// For how long the NAT remembers a flow: for half as long as is usual.
const MEMORY: Duration = Duration::from_secs(15);

/// For how long no station says anything. After a minute nodes take a link for idle; then the NAT has time to forget it.
const IDLE: Duration = Duration::from_secs(60 + 3 * MEMORY.as_secs());

/// The NAT between one host and the switch of the others: it gives outgoing datagrams its own address and ports. It
/// silently drops datagrams that belong to no flow from inside.
struct Nat {
    router: Namespace,
}

impl Nat {
    /// Puts it there.
    fn before_inner(lab: &TestLab, ports: Ports) -> Result<Self> {
        let router = Namespace::new()?;
        let layout = Layout::of(lab.name());
        let (switch, inner) = (layout.switch(), layout.namespace(INNER.parse()?));
        let ip_in = |namespace: &str, line: &str| -> Result<()> {
            run(Command::new("ip").args(["-netns", namespace]).args(line.split(' ')), LIMIT).map(drop)
        };
        ip_in(&switch, &format!("link set dev {INNER} netns {} name inside", router.path()))?;
        let there = namespace_file(&switch);
        router.ip(&format!("link add outside type veth peer name {INNER} netns {}", there.display()))?;
        ip_in(&switch, &format!("link set dev {INNER} master switch up"))?;
        for device in ["inside", "outside"] {
            router.ip(&format!("link set dev {device} up"))?;
        }
        router.ip(&format!("address add {OUTER_ADDRESS}/{PREFIX_LENGTH} dev outside"))?;
        router.ip(&format!("route add {INNER_ADDRESS}/32 dev inside"))?;
        let nat = Self { router };
        nat.set("net/ipv4/ip_forward", 1)?;
        // The host takes all others for neighbours.
        nat.set("net/ipv4/conf/inside/proxy_arp", 1)?;
        nat.set("net/netfilter/nf_conntrack_udp_timeout", MEMORY.as_secs())?;
        nat.set("net/netfilter/nf_conntrack_udp_timeout_stream", MEMORY.as_secs())?;
        nat.nft(
            "add table ip nat; \
             add chain ip nat in { type filter hook input priority filter; policy drop; }; \
             add chain ip nat out { type nat hook postrouting priority srcnat; }",
        )?;
        nat.map_to(ports)?;
        // It goes on to believe where others were, for a while.
        ip_in(&inner, "neighbor flush all")?;
        Ok(nat)
    }

    fn map_to(&self, (first, last): Ports) -> Result<()> {
        self.nft(&format!(
            "add rule ip nat out oifname outside meta l4proto {{ tcp, udp }} masquerade to :{first}-{last}"
        ))
    }

    /// Forgets all flows, and takes other ports from now on.
    fn rebind(&self, ports: Ports) -> Result<()> {
        self.nft("flush chain ip nat out")?;
        self.map_to(ports)?;
        // Flows are forgotten with the address.
        self.router.ip("link set dev outside down")?;
        self.router.ip("link set dev outside up")
    }

    fn nft(&self, rules: &str) -> Result<()> {
        self.router.start(Command::new("nft").arg(rules))?.end(LIMIT)?.success().map(drop)
    }

    /// Sets one of the namespace's parameters in `/proc/sys`.
    fn set(&self, parameter: &str, value: u64) -> Result<()> {
        let line = format!("echo {value} > /proc/sys/{parameter}");
        self.router.start(Command::new("sh").args(["-c", &line]))?.end(LIMIT)?.success().map(drop)
    }
}

/// Whether `host` and the inner one send to each other by UDP, the former to one of these ports of the NAT.
fn is_direct(lab: &TestLab, host: &str, (first, last): Ports) -> Result<bool> {
    let (there, back) = (tunnel(lab, host, INNER)?, tunnel(lab, INNER, host)?);
    let port =
        there.address.as_ref().and_then(|address| address.strip_prefix(OUTER_ADDRESS)?.strip_prefix(':'));
    let is_mapped =
        port.and_then(|port| port.parse().ok()).is_some_and(|port| (first..=last).contains(&port));
    Ok(is_mapped && [there.carrier, back.carrier] == [Some(Carrier::Udp); 2])
}

fn await_direct(lab: &TestLab, ports: Ports) -> Result<()> {
    for host in OUTER {
        // One that is very busy may not answer in time.
        let is_so = || Ok(is_direct(lab, host, ports).unwrap_or(false));
        lab.eventually(&format!("{host} reaches {INNER} at ports {ports:?}"), is_so)?;
    }
    Ok(())
}

/// Starts the script on a host.
fn echo(lab: &TestLab, host: &str, arguments: &[&str]) -> Result<Program> {
    let line = [&["lab", "exec", host, "--", "/usr/bin/python3", ECHO], arguments].concat();
    Program::start(&mut lab.command(&line))
}

/// A host behind a NAT is reached over the path that it opened, also when that was forgotten.
pub fn a_host_behind_it_is_reached() -> Result<()> {
    let shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let inner: Place = INNER.parse()?;
    lab.lab.kill(inner)?;
    let nat = Nat::before_inner(&lab, PORTS[0])?;
    lab.lab.start(inner)?;
    // The host of each number dials those below, so one of the two links is never dialled from outside with success.
    net(&lab, &["layout", "mesh"])?;
    for number in ["1", "2", "3"] {
        let address = format!("10.88.0.{number}/24");
        let host = format!("h{number}");
        net(&lab, &["attach", &host, "tap1", "--address", &address])?;
        // Hosts look for routers again and again, for hours.
        let quiet = "echo 1 > /proc/sys/net/ipv6/conf/tap1/disable_ipv6";
        lab.transhume(&["lab", "exec", &host, "--", "sh", "-c", quiet])?.success()?;
    }
    await_direct(&lab, PORTS[0])?;
    let mut streams = [
        Stream::start(&lab, &["h1", "--"], &[INNER, "--"], "10.88.0.2")?,
        Stream::start(&lab, &[INNER, "--"], &["h3", "--"], "10.88.0.3")?,
    ];
    for stream in &mut streams {
        stream.goes_on().context("at first")?;
    }
    nat.rebind(PORTS[1])?;
    for stream in &mut streams {
        stream.goes_on().with_context(|| format!("from other ports\n{}", lab.logs()))?;
    }
    await_direct(&lab, PORTS[1])?;
    for stream in streams {
        // One signal ends both.
        stream.end()?;
    }

    let mut server = echo(&lab, INNER, &["serve", INNER, PORT])?;
    server.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
    // The traffic of others meanwhile does not affect it.
    drop(shared);
    sleep(IDLE);
    let _shared = e2e::shared();
    for host in OUTER {
        ensure!(is_direct(&lab, host, PORTS[1])?, "{host} to {INNER} after a pause\n{}", lab.logs());
        // One datagram, which is not sent again: the NAT has to let it in.
        let answer = echo(&lab, host, &["ask", "10.88.0.2", PORT])?.end(LIMIT)?.success();
        let answer = answer.with_context(|| format!("{host} asks after a pause"))?;
        ensure!(answer.lines == [INNER], "{answer:?}");
    }

    // Plain datagrams need an address that both know: there is none, and the connection carries them.
    net(&lab, &["link", "add", "h1", INNER, "--plain"])?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &[INNER, "--"], "10.88.0.2")?;
    stream.goes_on().context("over a link that is not sealed")?;
    lab.eventually("TLS carries plain datagrams", || {
        Ok(tunnel(&lab, "h1", INNER).is_ok_and(|tunnel| tunnel.carrier == Some(Carrier::Tls)))
    })?;
    stream.end()
}
