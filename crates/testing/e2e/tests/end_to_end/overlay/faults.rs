//! Faults and attacks on the overlay. `docs/overlay-faults.md` says the same in a table.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use api::{Carrier, NetHostState, NetSwitchedOff};
use e2e::common_files;
use e2e::overlay::{Stream, await_kernel, joined, links, net, status, tunnel};
use e2e::program::{Program, run};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;
use lab::layout::{self, Layout, NAMESPACES};
use serde::Deserialize;

const NUMBERED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/numbered.py");
const ATTACKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attacker.py");
const GUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest.py");
const PORT: &str = "7501";
const LIMIT: Duration = Duration::from_secs(60);

/// The final report of the receiver of numbered datagrams.
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

/// Lets the networks between the hosts keep order. The kernel queues the frames that cross a veth by processor, so a
/// thread that was moved to another processor overtakes itself with any traffic.
fn keep_order_below(lab: &TestLab) -> Result<()> {
    const SCRIPT: &str = "mount -t sysfs sysfs /sys && for queue in /sys/class/net/*/queues/rx-0/rps_cpus; do echo 1 > $queue; done";
    let layout = Layout::of(lab.name());
    let hosts = lab.lab.hosts().map(|host| layout.namespace(Place::Host(host)));
    for namespace in hosts.chain([layout.switch()]) {
        let namespace = format!("--net={}", Path::new(NAMESPACES).join(namespace).display());
        run(Command::new("nsenter").args([&namespace, "unshare", "--mount", "sh", "-c", SCRIPT]), LIMIT)?;
    }
    Ok(())
}

#[test]
fn no_flow_is_reordered_over_one_hop_or_many() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(4)?;
    // h2, h1, h3, h4
    net(&lab, &["link", "add", "h3", "h4"])?;
    net(&lab, &["link", "rm", "h1", "h4"])?;
    keep_order_below(&lab)?;
    // Where a link changes its carrier, later frames may overtake once.
    lab.eventually("all links go over UDP", || {
        Ok(links(&lab)?.iter().all(|link| link.up && link.carrier == Some(Carrier::Udp)))
    })?;
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
fn a_cut_link_stops_its_traffic_until_it_is_healed_or_removed() -> Result<()> {
    let _shared = e2e::shared();
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
fn a_link_without_tcp_is_up_as_long_as_datagrams_pass() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(3)?;
    net(&lab, &["layout", "mesh"])?;
    let ends = ["h2", "h3"];
    await_link(&lab, ends, true)?;
    let mut over = Stream::start(&lab, &["h2", "--"], &["h3", "--"], "10.88.0.3")?;
    over.goes_on().context("at first")?;
    let [one, other]: [Place; 2] = ["h2".parse()?, "h3".parse()?];
    let (from, to) = (layout::address(one), layout::address(other));
    for rule in [
        "add table bridge block".to_owned(),
        "add chain bridge block forward { type filter hook forward priority 0; }".into(),
        format!("add rule bridge block forward ip saddr {from} ip daddr {to} ip protocol tcp drop"),
    ] {
        run(&mut at_switch(&lab, "nft", &[&rule]), LIMIT)?;
    }
    let connections = format!("ss -tnH state established dst {to}");
    lab.eventually("the connection is lost", || Ok(exec(&lab, "h2", &connections)?.is_empty()))?;
    over.goes_on().context("without TCP")?;
    ensure!(tunnel(&lab, "h2", "h3")?.connected && tunnel(&lab, "h3", "h2")?.connected);
    lab.lab.cut(one, other)?;
    await_link(&lab, ends, false)?;
    lab.lab.heal(one, other)?;
    run(&mut at_switch(&lab, "nft", &["delete table bridge block"]), LIMIT)?;
    await_link(&lab, ends, true)?;
    over.goes_on().context("as before")?;
    over.end()
}

#[test]
fn a_path_that_swallows_long_datagrams_gets_shorter_ones() -> Result<()> {
    swallow_long_datagrams(&[])
}

#[test]
fn a_path_that_swallows_long_frames_of_the_kernel_gets_shorter_ones() -> Result<()> {
    swallow_long_datagrams(&["--plain"])
}

/// `how` links are laid.
fn swallow_long_datagrams(how: &[&str]) -> Result<()> {
    const LONGEST: usize = 1300;
    let _shared = e2e::shared();
    let lab = joined(2)?;
    net(&lab, &[&["layout", "star"], how].concat())?;
    await_kernel(&lab, ["h1", "h2"], !how.is_empty())?;
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
fn replayed_and_mangled_datagrams_are_dropped_and_counted() -> Result<()> {
    let _shared = e2e::shared();
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
    let _shared = e2e::shared();
    let lab = joined(3)?;
    let mut stream = Stream::start(&lab, &["h2", "--"], &["h3", "--"], "10.88.0.3")?;
    stream.goes_on().context("at first")?;
    let enough = Signal::new("flooded");
    let until = enough.path().to_str().context("a path")?;
    // A station that has gone.
    exec(&lab, "h1", "ip neighbor add 10.88.0.99 lladdr 02:98:00:00:00:99 dev tap1")?;
    let mut floods = Vec::new();
    let mut begin = |place, what: &[&str], reason| {
        floods.push(on(&lab, place, ATTACKER, what)?);
        await_dropped(&lab, "h1", &[reason])
    };
    // One after the other: all together leave each other too little of a slow machine to get to their limits.
    begin("h1", &["flood", "10.88.0.99", "9", until], "unknown-limit")?;
    begin("h1", &["flood", "10.88.0.255", "9", until], "broadcast-limit")?;
    begin("coordinator", &["garbage", "10.77.0.1", "7700", until], "stranger")?;
    floods.push(on(&lab, "h1", ATTACKER, &["macs", "tap1", until])?);
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

/// A certificate of h3 by a lab's authority, valid from 1970 until so many seconds later, and its key.
fn issued_until(lab: &TestLab, end: u64) -> Result<(String, String)> {
    let pki = Layout::of(lab.name()).pki();
    let read = |name: &str| fs::read_to_string(pki.join(name));
    let authority = rcgen::KeyPair::from_pem(&read("authority.key")?)?;
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("authority.pem")?, authority)?;
    let mut parameters = rcgen::CertificateParams::new(vec!["h3".to_owned()])?;
    parameters.not_before = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_after = parameters.not_before + Duration::from_secs(end);
    let key = rcgen::KeyPair::generate()?;
    Ok((parameters.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}

/// A folder with the authority of a lab, the authority of h3's certificate, and its fault.
struct Bad {
    folder: tempfile::TempDir,
    words: &'static [&'static str],
}

impl Bad {
    /// Puts `certificate` with its key, both in PEM, beside the lab's authority.
    fn with(lab: &TestLab, certificate: &str, key: &str, words: &'static [&'static str]) -> Result<Self> {
        let folder = common_files::folder()?;
        let authority = fs::read(Layout::of(lab.name()).pki().join("authority.pem"))?;
        fs::write(folder.path().join("authority.pem"), authority)?;
        fs::write(folder.path().join("h3.pem"), certificate)?;
        fs::write(folder.path().join("h3.key"), key)?;
        Ok(Self { folder, words })
    }

    /// The file in `folder` for the certificate of `name`.
    fn copied(lab: &TestLab, folder: &Path, name: &str, words: &'static [&'static str]) -> Result<Self> {
        let read = |kind: &str| fs::read_to_string(folder.join(format!("{name}.{kind}")));
        Self::with(lab, &read("pem")?, &read("key")?, words)
    }

    /// A certificate that the lab's authority has issued for one day in the distant past.
    fn expired(lab: &TestLab) -> Result<Self> {
        const END: u64 = 1_577_923_200;
        let (certificate, key) = issued_until(lab, END)?;
        Self::with(lab, &certificate, &key, &["h3.pem", "it expired on 2020-01-02", "issue a new one"])
    }

    fn without_any(lab: &TestLab) -> Result<Self> {
        let bad = Self::with(lab, "", "", &["h3.pem is missing", "transhume pki"])?;
        fs::remove_file(bad.folder.path().join("h3.pem"))?;
        Ok(bad)
    }
}

/// Starts a node for h3 with the certificates in `pki`, as it would be started on a host of its own.
fn start_node(lab: &TestLab, pki: &Path, state: &Path) -> Result<Program> {
    let [pki, state] = [pki, state].map(|path| path.to_str().context("a path"));
    let (pki, state) = (pki?, state?);
    let program = lab.program().to_str().context("a path")?;
    let line = [
        &["lab", "exec", "h3", "--", program, "node", "--name", "h3", "--listen", "10.77.0.3:7700"][..],
        &["--join", "10.77.255.254:7700", "--pki", pki, "--state", state, "--images", state],
    ];
    Program::start(&mut lab.command(&line.concat()))
}

#[test]
fn an_untrusted_certificate_is_refused_with_the_remedy_and_others_go_on() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(3)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    let h3: Place = "h3".parse()?;
    lab.lab.kill(h3)?;
    let (other, state) = (common_files::folder()?, common_files::folder()?);
    let folder = other.path().join("pki");
    let issue = ["pki", "--dir", folder.to_str().context("a path")?, "h3"];
    run(Command::new(lab.program()).args(issue), LIMIT)?;
    let own = Layout::of(lab.name()).pki();
    let not_ours = &["h3.pem", "not issued by the authority", "authority.pem"];
    for bad in [
        Bad::expired(&lab)?,
        Bad::copied(&lab, &own, "h1", &["h3.pem", "it is for another name"])?,
        Bad::copied(&lab, &folder, "h3", not_ours)?,
        Bad::without_any(&lab)?,
    ] {
        let ended = start_node(&lab, bad.folder.path(), state.path())?.end(LIMIT)?;
        let said = bad.words.iter().all(|word| ended.errors.contains(word));
        ensure!(!ended.status.success() && said, "{ended:?}");
    }
    let mut guest = on(&lab, "coordinator", GUEST, &["say", "10.77.0.1", "7700", "00"])?;
    guest.wait_for(LIMIT, |line| (line == "cut off").then_some(()))?;
    let refused = ": the peer has no certificate";
    lab.eventually("the node names the host that it refuses", || Ok(lab.logs().contains(refused)))?;
    // All of it is of another cluster: that shows only when they meet.
    let mut stranger = start_node(&lab, &folder, state.path())?;
    lab.eventually("the coordinator names the fault", || {
        Ok(lab.logs().contains("it has another authority"))
    })?;
    stranger.signal(libc::SIGTERM)?;
    let ended = stranger.end(LIMIT)?.success()?;
    let said = ended.lines.join("\n") + &ended.errors;
    ensure!(said.contains("the peer's certificate is rejected"), "{said}");
    stream.goes_on()?;
    lab.lab.start(h3)?;
    await_link(&lab, ["h1", "h3"], true)?;
    stream.end()
}

#[test]
fn an_expired_certificate_keeps_existing_links_and_makes_no_new_one() -> Result<()> {
    /// Seconds in which a node is started, on a machine that is busy.
    const SOON: u64 = 20;
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|since| since.as_secs());
    let _shared = e2e::shared();
    let lab = joined(3)?;
    net(&lab, &["layout", "mesh"])?;
    let [h2, h3]: [Place; 2] = ["h2".parse()?, "h3".parse()?];
    let files = ["pem", "key"].map(|kind| Layout::of(lab.name()).pki().join(format!("h3.{kind}")));
    let [good, good_key] = [fs::read(&files[0])?, fs::read(&files[1])?];
    let install = |certificate: &[u8], key: &[u8]| -> Result<()> {
        fs::write(&files[0], certificate)?;
        fs::write(&files[1], key)?;
        lab.lab.kill(h3)?;
        Ok(lab.lab.start(h3)?)
    };
    let end = clock()? + SOON;
    let (certificate, key) = issued_until(&lab, end)?;
    install(certificate.as_bytes(), key.as_bytes())?;
    for ends in [["h1", "h3"], ["h2", "h3"]] {
        await_link(&lab, ends, true)?;
    }
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h3", "--"], "10.88.0.3")?;
    lab.eventually("it has expired", || Ok(clock()? > end + 1))?;
    lab.lab.kill(h2)?;
    lab.lab.start(h2)?;
    for said in [
        "the peer's certificate is rejected: it expired on 20",
        "the tunnel to h2 is down: the peer rejects this host's certificate: by its clock, the certificate has expired",
    ] {
        lab.eventually(&format!("it is logged: {said}"), || Ok(lab.logs().contains(said)))?;
    }
    await_link(&lab, ["h2", "h3"], false)?;
    await_link(&lab, ["h1", "h2"], true)?;
    stream.goes_on().context("over a connection that was there")?;
    stream.end()?;
    install(&good, &good_key)?;
    await_link(&lab, ["h2", "h3"], true)
}

#[test]
fn an_offload_that_loses_frames_is_switched_off_and_reported() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    // As a device that drops frames it should segment.
    for line in [
        "add table inet lie",
        "add chain inet lie input { type filter hook input priority 0; }",
        "add rule inet lie input meta l4proto udp udp length > 2000 drop",
    ] {
        lab.transhume(&["lab", "exec", "h2", "--", "nft", line])?.success()?;
    }
    net(&lab, &["layout", "star"])?;
    lab.eventually("it is switched off on the link to h2", || {
        let Some(NetHostState { switched_off, .. }) = state(&lab, "h1")? else { return Ok(false) };
        let is_it = |off: &NetSwitchedOff| off.offload == "udp-segment" && off.link.as_deref() == Some("h2");
        Ok(matches!(&switched_off[..], [off] if is_it(off)))
    })?;
    let told = net(&lab, &["status"])?;
    let line = "h1 has switched off a failing offload: udp-segment on the link to h2: ";
    ensure!(told.iter().any(|told| told.starts_with(line)), "{told:?}");
    lab.eventually("it is among the events", || {
        let events = lab.transhume(&["events", "--json"])?.success()?.lines;
        Ok(events.iter().any(|event| event.contains("offload_switched_off") && event.contains("udp-segment")))
    })?;
    for (host, address) in [("h1", "10.88.0.1/24"), ("h2", "10.88.0.2/24")] {
        net(&lab, &["attach", host, "tap1", "--address", address])?;
    }
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on().with_context(|| lab.logs())?;
    stream.end()
}
