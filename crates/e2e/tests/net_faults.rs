//! What happens to the overlay when something goes wrong, or somebody means no good. `docs/overlay.md` says the same in a table.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{NetDevice, NetHostState, NetTunnel};
use e2e::overlay::{Stream, joined, links, net, status};
use e2e::program::{Program, run};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;
use lab::layout::{self, Layout, NAMESPACES};
use serde::Deserialize;

const NUMBERED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/numbered.py");
const ATTACKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attacker.py");
const PORT: &str = "7501";
const LIMIT: Duration = Duration::from_secs(60);

/// What the receiver of numbered datagrams says at its end.
#[derive(Debug, Deserialize)]
struct Numbers {
    received: u64,
    late: u64,
    twice: u64,
}

/// Numbered datagrams from one host to another.
struct Numbered {
    client: Program,
    server: Program,
    enough: Signal,
}

impl Numbered {
    fn start(lab: &TestLab, from: &str, to: &str, address: &str) -> Result<Self> {
        const FLOWS: &str = "4";
        const LENGTH: &str = "1000";
        let enough = Signal::new("counted");
        let until = enough.path().to_str().context("a path")?;
        let mut server = on(lab, to, NUMBERED, &["receive", address, PORT, until])?;
        server.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
        let client = on(lab, from, NUMBERED, &["send", address, PORT, FLOWS, LENGTH, until])?;
        Ok(Self { client, server, enough })
    }

    /// Waits for so many thousand more.
    fn goes_on(&mut self, thousands: usize) -> Result<()> {
        self.server.take_lines();
        let mut more = 0;
        self.server.wait_for(LIMIT, |line| {
            more += usize::from(line.starts_with("received"));
            (more > thousands).then_some(())
        })
    }

    fn end(self) -> Result<Numbers> {
        self.enough.give()?;
        self.client.end(LIMIT)?.success()?;
        let ended = self.server.end(LIMIT)?.success()?;
        Ok(serde_json::from_str(ended.lines.last().context("a summary")?)?)
    }
}

/// Starts a script on a host.
fn on(lab: &TestLab, host: &str, script: &str, arguments: &[&str]) -> Result<Program> {
    let line = [&["lab", "exec", host, "--", "/usr/bin/python3", script], arguments].concat();
    Program::start(&mut lab.command(&line))
}

/// Runs a command on a host.
fn exec(lab: &TestLab, host: &str, line: &str) -> Result<Vec<String>> {
    let line: Vec<_> = ["lab", "exec", host, "--"].into_iter().chain(line.split(' ')).collect();
    Ok(lab.transhume(&line)?.success()?.lines)
}

/// A command in the network of the switch between the hosts.
fn at_switch(lab: &TestLab, program: &str, arguments: &[&str]) -> Command {
    let namespace = Path::new(NAMESPACES).join(Layout::of(lab.name()).switch());
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display())).arg("--").arg(program).args(arguments);
    command
}

/// How the overlay is on `host`, if that answers.
fn state(lab: &TestLab, host: &str) -> Result<Option<NetHostState>> {
    let found = status(lab)?.hosts.into_iter().find(|known| known.name == host);
    Ok(found.with_context(|| format!("{host} is not in the overlay\n{}", lab.logs()))?.state)
}

/// The tunnel of `host` to another.
fn tunnel(lab: &TestLab, host: &str, to: &str) -> Result<NetTunnel> {
    let tunnels = state(lab, host)?.with_context(|| format!("{host} does not answer"))?.tunnels;
    tunnels.into_iter().find(|tunnel| tunnel.host == to).with_context(|| format!("{host} has none to {to}"))
}

/// Waits until `host` has dropped something for each of these reasons.
fn await_dropped(lab: &TestLab, host: &str, reasons: &[&str]) -> Result<()> {
    lab.eventually(&format!("{host} has dropped {reasons:?}"), || {
        // One that is very busy may not answer in time.
        let Some(NetHostState { dropped, .. }) = state(lab, host)? else { return Ok(false) };
        let is_there = |reason: &&str| dropped.iter().any(|(name, count)| name == reason && *count > 0);
        Ok(reasons.iter().all(is_there))
    })
}

fn await_link(lab: &TestLab, ends: [&str; 2], up: bool) -> Result<()> {
    lab.eventually(&format!("{ends:?} is up: {up}"), || {
        Ok(links(lab)?.iter().any(|link| link.ends == ends && link.up == up))
    })
}

/// How often TCP on a host has found out that segments overtook each other.
fn reordered(lab: &TestLab, host: &str) -> Result<u64> {
    let lines = exec(lab, host, "cat /proc/net/netstat")?;
    let mut lines = lines.iter().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = lines.next().zip(lines.next()).context("no counters of TCP")?;
    let counters = names.split(' ').zip(values.split(' '));
    let of_reordering = counters.filter(|(name, _)| name.ends_with("Reorder"));
    of_reordering.map(|(_, value)| Ok(value.parse::<u64>()?)).sum()
}

#[test]
fn no_flow_is_reordered_over_one_hop_or_many() -> Result<()> {
    let _alone = e2e::alone();
    let lab = joined(4)?;
    // h2, h1, h3, h4
    net(&lab, &["link", "add", "h3", "h4"])?;
    net(&lab, &["link", "rm", "h1", "h4"])?;
    for to in ["h1", "h4"] {
        let number = to.trim_start_matches('h');
        let before = reordered(&lab, "h2")?;
        let mut numbered = Numbered::start(&lab, "h2", to, &format!("10.88.0.{number}"))?;
        let mut stream = Stream::start(&lab, &["h2", "--"], &[to, "--"], &format!("10.88.0.{number}"))?;
        stream.goes_on()?;
        numbered.goes_on(20)?;
        stream.goes_on()?;
        stream.end()?;
        let numbers = numbered.end()?;
        ensure!(numbers.late == 0 && numbers.twice == 0 && numbers.received > 20_000, "to {to}: {numbers:?}");
        let after = reordered(&lab, "h2")?;
        ensure!(after == before, "to {to}: {} segments overtook others", after - before);
    }
    Ok(())
}

#[test]
fn a_cut_link_stops_what_goes_over_it_until_it_is_healed_or_removed() -> Result<()> {
    let _alone = e2e::alone();
    let lab = joined(3)?;
    net(&lab, &["layout", "mesh"])?;
    await_link(&lab, ["h2", "h3"], true)?;
    let mut over = Stream::start(&lab, &["h2", "--"], &["h3", "--"], "10.88.0.3")?;
    over.goes_on().context("at first")?;
    let mut beside = Stream::start(&lab, &["h3", "--"], &["h1", "--"], "10.88.0.1")?;
    let [one, other]: [Place; 2] = ["h2".parse()?, "h3".parse()?];
    lab.lab.cut(one, other)?;
    await_link(&lab, ["h2", "h3"], false)?;
    beside.goes_on().context("beside a link that is cut")?;
    lab.lab.heal(one, other)?;
    await_link(&lab, ["h2", "h3"], true)?;
    over.goes_on().with_context(|| format!("over the link that is healed\n{}", lab.logs()))?;
    lab.lab.cut(one, other)?;
    net(&lab, &["link", "rm", "h2", "h3"])?;
    over.goes_on().context("by another way")?;
    lab.lab.heal(one, other)?;
    net(&lab, &["link", "add", "h2", "h3"])?;
    await_link(&lab, ["h2", "h3"], true)?;
    let before = tunnel(&lab, "h2", "h3")?.sent;
    over.goes_on().context("by the direct way again")?;
    lab.eventually("the link is used again", || Ok(tunnel(&lab, "h2", "h3")?.sent > before + 1000))?;
    beside.end()?;
    over.end()
}

#[test]
fn a_path_that_swallows_long_datagrams_gets_shorter_ones() -> Result<()> {
    const LONGEST: usize = 1300;
    let _alone = e2e::alone();
    let lab = joined(2)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on().context("at first")?;
    lab.eventually("long datagrams arrive", || Ok(tunnel(&lab, "h1", "h2")?.datagram_bytes > LONGEST))?;
    // Many of them travel as one to where they are cut; then the rule would see that.
    for host in ["h1", "h2"] {
        exec(&lab, host, "ip link set up0 gso_max_segs 1")?;
    }
    for rule in [
        "add table bridge hole".to_owned(),
        "add chain bridge hole forward { type filter hook forward priority 0; }".into(),
        format!("add rule bridge hole forward udp length > {LONGEST} drop"),
    ] {
        run(&mut at_switch(&lab, "nft", &[&rule]), LIMIT)?;
    }
    lab.eventually("shorter datagrams are sent", || {
        let known = [tunnel(&lab, "h1", "h2")?, tunnel(&lab, "h2", "h1")?];
        Ok(known.iter().all(|tunnel| tunnel.connected && tunnel.datagram_bytes <= LONGEST))
    })?;
    stream.goes_on().with_context(|| format!("in shorter datagrams\n{}", lab.logs()))?;
    stream.end()
}

#[test]
fn what_is_replayed_or_mangled_is_dropped_and_counted() -> Result<()> {
    let _alone = e2e::alone();
    let lab = joined(2)?;
    await_link(&lab, ["h1", "h2"], true)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    let mut numbered = Numbered::start(&lab, "h1", "h2", "10.88.0.2")?;
    numbered.goes_on(1)?;
    let enough = Signal::new("replayed");
    let until = enough.path().to_str().context("a path")?;
    let (device, port) = (layout::port("h2".parse()?), layout::CONTROL_PORT.to_string());
    let script = [ATTACKER, "replay", &device, &port, until];
    let mut attacker = Program::start(&mut at_switch(&lab, "/usr/bin/python3", &script))?;
    attacker.wait_for(LIMIT, |line| line.starts_with("sent").then_some(()))?;
    await_dropped(&lab, "h2", &["replayed", "forged", "stranger", "unknown-key"])?;
    stream.goes_on()?;
    numbered.goes_on(10)?;
    ensure!(
        tunnel(&lab, "h2", "h1")?.address.as_deref() == Some("10.77.0.1:7700"),
        "the peer stays where it is"
    );
    enough.give()?;
    attacker.end(LIMIT)?.success()?;
    let numbers = numbered.end()?;
    ensure!(numbers.twice == 0, "{numbers:?}");
    stream.end()
}

/// The most that the nodes of all hosts have in memory, in KiB.
fn resident(lab: &TestLab) -> Result<u64> {
    let nodes = lab.find(|words| words.get(1) == Some(&"node"));
    ensure!(!nodes.is_empty(), "no node runs");
    let resident = |node: &lab::process::Identity| -> Result<u64> {
        let status = fs::read_to_string(lab::process::file(node.pid, "status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let each: Vec<u64> = nodes.iter().map(resident).collect::<Result<_>>()?;
    each.into_iter().max().context("no node runs")
}

#[test]
fn a_flood_is_limited_and_others_go_on() -> Result<()> {
    const MIB: u64 = 1024;
    let _alone = e2e::alone();
    let lab = joined(3)?;
    let mut stream = Stream::start(&lab, &["h2", "--"], &["h3", "--"], "10.88.0.3")?;
    stream.goes_on().context("at first")?;
    let enough = Signal::new("flooded");
    let until = enough.path().to_str().context("a path")?;
    // A station that is no more.
    exec(&lab, "h1", "ip neighbor add 10.88.0.99 lladdr 02:98:00:00:00:99 dev tap1")?;
    let floods = [
        on(&lab, "h1", ATTACKER, &["macs", "tap1", until])?,
        on(&lab, "h1", ATTACKER, &["flood", "10.88.0.255", "9", until])?,
        on(&lab, "h1", ATTACKER, &["flood", "10.88.0.99", "9", until])?,
        on(&lab, "coordinator", ATTACKER, &["garbage", "10.77.0.1", "7700", until])?,
    ];
    await_dropped(&lab, "h1", &["broadcast-limit", "unknown-limit", "stranger"])?;
    for _ in 0..3 {
        stream.goes_on().with_context(|| format!("in a flood\n{}", lab.logs()))?;
    }
    let most = resident(&lab)?;
    ensure!(most < 256 * MIB, "{most} KiB");
    enough.give()?;
    for flood in floods {
        flood.end(LIMIT)?.success()?;
    }
    stream.goes_on().context("after the flood")?;
    stream.end()
}

/// A device as `net devices --json` lists it.
#[derive(Debug, Deserialize)]
struct Listed {
    host: String,
    #[serde(flatten)]
    device: NetDevice,
}

/// The hosts whose proxies are blocked.
fn blocked(lab: &TestLab) -> Result<Vec<String>> {
    let devices: Vec<Listed> = serde_json::from_str(&net(lab, &["devices", "--json"])?.join("\n"))?;
    let blocked = devices.into_iter().filter(|listed| listed.device.blocked_s > 0);
    Ok(blocked.map(|listed| listed.host).collect())
}

#[test]
fn of_two_proxies_on_one_lan_one_is_blocked_while_the_loop_is_there() -> Result<()> {
    let _alone = e2e::alone();
    let lab = joined(3)?;
    let far = Path::new(NAMESPACES).join(Layout::of(lab.name()).namespace("h2".parse()?));
    let far = far.display();
    for host in ["h1", "h2"] {
        exec(&lab, host, "ip link add lan type bridge forward_delay 0")?;
        exec(&lab, host, "ip link set lan up")?;
    }
    exec(&lab, "h1", &format!("ip link add cable type veth peer name cable netns {far}"))?;
    for host in ["h1", "h2"] {
        exec(&lab, host, "ip link set cable master lan up")?;
    }
    exec(&lab, "h1", "ip address add 10.88.0.201/24 dev lan noprefixroute")?;
    exec(&lab, "h1", "ip route add 10.88.0.3 dev lan")?;
    net(&lab, &["detach", "h1", "tap1"])?;
    net(&lab, &["detach", "h2", "tap1"])?;
    net(&lab, &["proxy", "h1", "--bridge", "lan"])?;
    let mut stream = Stream::start(&lab, &["h3", "--"], &["h1", "--"], "10.88.0.201")?;
    stream.goes_on().context("with one proxy")?;
    net(&lab, &["proxy", "h2", "--bridge", "lan"])?;
    lab.eventually("one is blocked", || Ok(blocked(&lab)?.len() == 1))?;
    stream.goes_on().with_context(|| format!("with a loop\n{}", lab.logs()))?;
    ensure!(blocked(&lab)?.len() <= 1, "one of two stays open");
    let line = |lab: &TestLab| net(lab, &["devices"]);
    ensure!(line(&lab)?.iter().any(|line| line.contains("blocked")), "{:#?}", line(&lab)?);
    exec(&lab, "h1", "ip link set cable down")?;
    lab.eventually("none is blocked", || Ok(blocked(&lab)?.is_empty()))?;
    stream.goes_on().context("without the loop")?;
    stream.end()
}
