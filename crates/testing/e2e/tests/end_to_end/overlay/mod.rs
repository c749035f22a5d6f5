//! The overlay between the hosts of a lab: its traffic goes on while links and daemons change.

mod faults;
mod nat;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::{Carrier, NetHost, NetLink, NetStatus, NetTunnel};
use e2e::common_files;
use e2e::overlay::{Stream, joined, links, net, status};
use e2e::program::{Program, run};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;

const HOME_LAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/home_lan.sh");
const LEASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lease.sh");
const TAGGED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tagged.py");
const READ: &str = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())";

/// How long the stream may stand still: TCP waits longer after each failed attempt.
const LIMIT: Duration = Duration::from_secs(60);

/// The tunnels of all hosts that answer.
fn tunnels(lab: &TestLab) -> Result<Vec<NetTunnel>> {
    let states = status(lab)?.hosts.into_iter().filter_map(|host| host.state);
    Ok(states.flat_map(|state| state.tunnels).collect())
}

/// The first by its name, so that others run while it waits.
#[test]
fn a_host_behind_a_nat_is_reached_over_the_path_that_it_opened() -> Result<()> {
    nat::a_host_behind_it_is_reached()
}

#[test]
fn a_stream_goes_on_while_links_and_daemons_come_and_go() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(3)?;
    let mut stream = Stream::start(&lab, &["h2", "--"], &["h3", "--"], "10.88.0.3")?;
    stream.goes_on().context("at first")?;
    for (how, plain) in [(&["--plain"][..], true), (&[], false)] {
        net(&lab, &[&["layout", "star"], how].concat())?;
        lab.eventually("all tunnels are as they were laid", || {
            Ok(tunnels(&lab)?.iter().map(|tunnel| tunnel.plain).eq([plain; 4]))
        })?;
        stream.goes_on().with_context(|| format!("plain: {plain}"))?;
    }
    let changes: [&[&str]; 6] = [
        &["link", "add", "h2", "h3"],
        &["link", "rm", "h1", "h3"],
        &["link", "add", "h1", "h3", "--cost", "7"],
        &["layout", "mesh"],
        &["layout", "hypercube"],
        &["layout", "star", "--center", "h1"],
    ];
    for change in changes {
        net(&lab, change)?;
        stream.goes_on().with_context(|| format!("after {change:?}"))?;
    }
    for place in ["h1", "h2", "h3", "coordinator"] {
        let place: Place = place.parse()?;
        lab.lab.kill(place)?;
        lab.lab.start(place)?;
        stream.goes_on().with_context(|| format!("after {place} was killed\n{}", lab.logs()))?;
    }
    stream.end()
}

/// Lets a host drop all datagrams that come from other hosts, or no more.
fn block_udp(lab: &TestLab, host: &str, is_blocked: bool) -> Result<()> {
    let add = [
        "add table inet blocked",
        "add chain inet blocked input { type filter hook input priority 0; }",
        "add rule inet blocked input iifname != lo iifname != tap1 meta l4proto udp drop",
    ];
    let remove = ["delete table inet blocked"];
    for line in if is_blocked { &add[..] } else { &remove } {
        lab.transhume(&["lab", "exec", host, "--", "nft", line])?.success()?;
    }
    Ok(())
}

/// Waits until all links are up, by `carrier`, and both ends of each say so.
fn await_carrier(lab: &TestLab, carrier: Carrier) -> Result<()> {
    lab.eventually(&format!("links are up by {}", carrier.name()), || {
        let NetStatus { hosts, links, .. } = status(lab)?;
        let mut tunnels = hosts.into_iter().filter_map(|host| host.state).flat_map(|state| state.tunnels);
        Ok(links.iter().all(|link| link.up && link.carrier == Some(carrier))
            && tunnels.all(|tunnel| tunnel.connected && tunnel.carrier == Some(carrier)))
    })
}

#[test]
fn a_stream_goes_on_over_tls_while_udp_is_blocked() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(2)?;
    await_carrier(&lab, Carrier::Udp)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on().context("at first")?;
    // One direction is enough.
    block_udp(&lab, "h2", true)?;
    await_carrier(&lab, Carrier::Tls)?;
    stream.goes_on().with_context(|| format!("by TLS\n{}", lab.logs()))?;
    ensure!(net(&lab, &["links"])?.iter().any(|line| line.contains(" tls ")), "it is shown");
    ensure!(net(&lab, &["status"])?.iter().filter(|line| line.contains("1/1, 1 tls")).count() == 2);
    // Nothing but the connection is there for a node that comes back.
    for place in ["h1", "h2"] {
        let place: Place = place.parse()?;
        lab.lab.kill(place)?;
        lab.lab.start(place)?;
        stream.goes_on().with_context(|| format!("after {place} was killed\n{}", lab.logs()))?;
        await_carrier(&lab, Carrier::Tls)?;
    }
    // Plain datagrams are as welcome there.
    net(&lab, &["layout", "star", "--plain"])?;
    lab.eventually("nothing is sealed", || {
        Ok(tunnels(&lab)?.iter().map(|tunnel| tunnel.plain).eq([true; 2]))
    })?;
    stream.goes_on().with_context(|| format!("by TLS, not sealed\n{}", lab.logs()))?;
    await_carrier(&lab, Carrier::Tls)?;
    block_udp(&lab, "h2", false)?;
    await_carrier(&lab, Carrier::Udp)?;
    stream.goes_on().context("by UDP again")?;
    stream.end()
}

#[test]
fn a_link_without_traffic_goes_down() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(2)?;
    await_carrier(&lab, Carrier::Udp)?;
    let [one, other]: [Place; 2] = ["h1".parse()?, "h2".parse()?];
    lab.lab.cut(one, other)?;
    lab.eventually("the link is down", || {
        Ok(links(&lab)?.iter().all(|link| !link.up && link.carrier.is_none()))
    })?;
    lab.lab.heal(one, other)?;
    await_carrier(&lab, Carrier::Udp)
}

/// The output of a command on a host.
fn exec(lab: &TestLab, host: &str, line: &str) -> Result<Vec<String>> {
    let line: Vec<_> = ["lab", "exec", host, "--"].into_iter().chain(line.split(' ')).collect();
    Ok(run(&mut lab.command(&line), LIMIT)?.success()?.lines)
}

/// Sends frames of `length` bytes behind these tags from one host's device to another's, and waits until they come as they were.
fn tags_are_kept(lab: &TestLab, [from, to]: [&str; 2], length: &str, tags: &[&str]) -> Result<()> {
    let enough = Signal::new("tagged");
    let until = enough.path().to_str().context("a path")?;
    let start = |host: &str, rest: &[&str]| {
        let line = [&["lab", "exec", host, "--", "/usr/bin/python3", TAGGED], rest].concat();
        Program::start(&mut lab.command(&line))
    };
    let there = status(lab)?.hosts.into_iter().filter(|host| host.name == to).find_map(|host| host.state);
    let mac = there.and_then(|state| Some(state.devices.first()?.mac.clone())).context("a device")?;
    let mut receiver = start(to, &["receive", "tap1", until])?;
    receiver.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
    let sender = start(from, &[&["send", "tap1", &mac, length, until], tags].concat())?;
    let expected = [&["received"], tags, &[length]].concat().join(" ");
    receiver.wait_for(LIMIT, |line| (line == expected).then_some(()))?;
    enough.give()?;
    sender.end(LIMIT)?.success()?;
    receiver.end(LIMIT)?.success()?;
    Ok(())
}

#[test]
fn ipv6_and_vlan_tags_cross_sealed_links_in_frames_beyond_their_mtu() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    net(&lab, &["layout", "star"])?;
    for (host, address) in [("h2", "fd00:88::2/64"), ("h3", "fd00:88::3/64")] {
        net(&lab, &["attach", host, "tap1", "--mtu", "9000", "--address", address])?;
        // Another address that the overlay does not know: all stations are asked for it.
        exec(&lab, host, &format!("ip address add {} dev tap1", address.replace("88", "99")))?;
        lab.eventually("no other station has its addresses", || {
            Ok(exec(&lab, host, "ip -6 address show dev tap1 tentative")?.is_empty())
        })?;
    }
    // No hop on its way may cut TCP's segments, in frames as long as the devices'.
    for address in ["fd00:88::3", "fd00:99::3"] {
        let mut stream = Stream::start(&lab, &["h2", "--"], &["h3", "--"], address)?;
        stream.goes_on().with_context(|| format!("to {address}\n{}", lab.logs()))?;
        stream.end()?;
    }
    tags_are_kept(&lab, ["h2", "h3"], "60", &["8100:6007"])?;
    tags_are_kept(&lab, ["h3", "h2"], "8900", &["88a8:0005", "8100:6007"])?;
    ensure!(tunnels(&lab)?.iter().all(|tunnel| !tunnel.plain));
    Ok(())
}

/// A LAN behind the bridge `home` of a host, with a machine on it that is its DHCP server. It goes with this.
struct HomeLan {
    /// The PIDs by which the namespaces of that machine and of the bridge are found.
    machine: String,
    bridge: String,
    _program: Program,
    _leases: tempfile::TempDir,
}

impl HomeLan {
    fn behind(lab: &TestLab, host: &str) -> Result<Self> {
        let leases = common_files::folder()?;
        let folder = leases.path().to_str().context("a path")?;
        let mut program = Program::start(&mut lab.command(&["lab", "exec", host, "--", HOME_LAN, folder]))?;
        let mut pid = |of: &str| {
            program.wait_for(LIMIT, |line| line.strip_prefix(of)?.strip_prefix(' ').map(str::to_owned))
        };
        let (machine, bridge) = (pid("machine")?, pid("bridge")?);
        Ok(Self { machine, bridge, _program: program, _leases: leases })
    }
}

#[test]
fn a_remote_host_is_on_the_lan_of_the_proxy() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let home = HomeLan::behind(&lab, "h2")?;
    net(&lab, &["proxy", "h2", "--bridge", "home"])?;
    ensure!(status(&lab)?.network.center.as_deref() == Some("h2"));
    net(&lab, &["attach", "h3", "tap1"])?;
    let leasing = ["lab", "exec", "h3", "--", "udhcpc", "-f", "-q", "-n", "-i", "tap1", "-s", LEASE];
    let mut leasing = Program::start(&mut lab.command(&leasing))?;
    let address = leasing.wait_for(LIMIT, |line| line.strip_prefix("leased ").map(str::to_owned))?;
    leasing.end(LIMIT)?.success()?;
    ensure!(address.starts_with("192.168.7.1"), "{address}");
    let network = format!("--net=/proc/{}/ns/net", home.machine);
    let (remote, on_lan) = (["h3", "--"], ["h2", "--", "nsenter", &network]);
    for (from, to, address) in [(&remote[..], &on_lan[..], "192.168.7.1"), (&on_lan, &remote, &address)] {
        let mut stream = Stream::start(&lab, from, to, address)?;
        stream.goes_on().with_context(|| format!("to {address}"))?;
        stream.end()?;
    }
    net(&lab, &["detach", "h2", "transhume0"]).map(drop)
}

#[test]
fn one_of_two_proxies_on_a_lan_is_blocked_and_takes_over_from_the_other() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let home = HomeLan::behind(&lab, "h2")?;
    for (host, line) in [
        ("h1", "link add home type bridge"),
        ("h1", &format!("link add cable type veth peer name cable netns {}", home.bridge)),
        ("h1", "link set cable master home up"),
        ("h1", "link set home up"),
        ("h2", "link set cable master home up"),
    ] {
        let line: Vec<_> = ["lab", "exec", host, "--", "ip"].into_iter().chain(line.split(' ')).collect();
        run(&mut lab.command(&line), LIMIT)?.success()?;
    }
    net(&lab, &["proxy", "h2", "--bridge", "home"])?;
    net(&lab, &["attach", "h3", "tap1", "--address", "192.168.7.3/24"])?;
    let network = format!("--net=/proc/{}/ns/net", home.machine);
    let on_lan = ["h2", "--", "nsenter", &network];
    let mut from_lan = Stream::start(&lab, &on_lan, &["h3", "--"], "192.168.7.3")?;
    let mut to_lan = Stream::start(&lab, &["h3", "--"], &on_lan, "192.168.7.1")?;
    let mut go_on = |what: &str| {
        from_lan.goes_on().and_then(|()| to_lan.goes_on()).with_context(|| format!("{what}\n{}", lab.logs()))
    };
    go_on("through one proxy")?;
    let proxies = || {
        let devices =
            status(&lab)?.hosts.into_iter().filter_map(|host| Some((host.name, host.state?.devices)));
        let proxies =
            devices.flat_map(|(host, devices)| devices.into_iter().map(move |device| (host.clone(), device)));
        let of_lan = proxies.filter(|(_, device)| device.name == "transhume0");
        anyhow::Ok(
            of_lan.map(|(host, device)| (host, device.blocked_s > 0, device.loops)).collect::<Vec<_>>(),
        )
    };
    net(&lab, &["proxy", "h1", "--bridge", "home"])?;
    let one_is_blocked = [("h1".into(), false, 0), ("h2".into(), true, 1)];
    lab.eventually("one is blocked", || Ok(proxies()? == one_is_blocked))?;
    let blocked = Instant::now();
    while blocked.elapsed() < Duration::from_secs(8) {
        go_on("through the other one")?;
    }
    ensure!(proxies()? == one_is_blocked, "it was not blocked all the time: {:?}", proxies()?);
    net(&lab, &["detach", "h1", "transhume0"])?;
    lab.eventually("the other one takes over", || Ok(proxies()? == [("h2".into(), false, 1)]))?;
    go_on("through the first one again")?;
    from_lan.end()?;
    to_lan.end()
}

#[test]
fn traffic_and_its_losses_are_shown() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(2)?;
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on()?;
    // The next report shows the content of the present slot.
    lab.eventually("the stream is in the matrix", || {
        let flows = net(&lab, &["matrix", "--window", "15", "--json"])?.join("\n");
        let matrix: serde_json::Value = serde_json::from_str(&flows)?;
        // Until both hosts have reported, acknowledgements may be the only traffic.
        let Some(most) = matrix["flows"].get(0).filter(|most| most["host"] == "h1") else { return Ok(false) };
        Ok(most["bytes"].as_u64() > Some(4 << 20) && most["frames"].as_u64() > Some(1000))
    })?;
    stream.end()?;
    let read = ["lab", "exec", "h1", "--", "/usr/bin/python3", "-c", READ, "http://10.77.0.1:9464/metrics"];
    let metrics = run(&mut lab.command(&read), LIMIT)?.lines;
    for wanted in
        ["tunnel_up{peer=\"h2\"} 1.0", "device_up{device=\"tap1\"} 1.0", "flow_bytes_per_second{source="]
    {
        let wanted = format!("transhume_overlay_{wanted}");
        ensure!(metrics.iter().any(|line| line.starts_with(&wanted)), "{wanted} is not in {metrics:#?}");
    }
    let known = status(&lab)?.hosts.into_iter().filter_map(|host| host.state).flat_map(|state| state.tunnels);
    for tunnel in known {
        ensure!(tunnel.round_trip_us.is_some_and(|time| time > 0) && tunnel.sent > 0, "{tunnel:?}");
    }
    let links: serde_json::Value = serde_json::from_str(&net(&lab, &["links", "--json"])?.join("\n"))?;
    let directions = links[0]["directions"].as_array().context("directions")?;
    ensure!(directions.iter().map(|direction| &direction["from"]).eq(["h1", "h2"]), "{links}");
    ensure!(directions.iter().all(|direction| direction["tunnel"]["sent"].as_u64() > Some(0)), "{links}");
    Ok(())
}

#[test]
fn a_host_that_comes_later_is_linked_to_the_center() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let late: Place = "h3".parse()?;
    lab.lab.kill(late)?;
    net(&lab, &["layout", "star", "--center", "h2"])?;
    ensure!(status(&lab)?.hosts.len() == 2);
    lab.lab.start(late)?;
    let ends = |link: &NetLink| link.ends.join("-");
    lab.eventually("h3 is joined", || {
        let links = links(&lab)?;
        Ok(links.iter().map(ends).eq(["h1-h2", "h2-h3"]) && links.iter().all(|link| link.up))
    })?;
    lab.eventually("all use the same topology", || {
        let NetStatus { network, hosts, .. } = status(&lab)?;
        let used = |host: &NetHost| host.state.as_ref().and_then(|state| state.version);
        Ok(network.awaited.is_empty() && hosts.iter().all(|host| used(host) == Some(network.version)))
    })?;
    Ok(())
}

#[test]
fn stations_of_an_absent_host_are_listed_and_the_host_is_reported_as_unanswered() -> Result<()> {
    let _shared = e2e::shared();
    let lab = joined(2)?;
    lab.lab.kill("h2".parse()?)?;
    lab.eventually("the device of h2 is listed as away", || {
        let devices: serde_json::Value =
            serde_json::from_str(&net(&lab, &["devices", "--json"])?.join("\n"))?;
        let is_away = |device: &serde_json::Value| device["host"] == "h2" && device["state"] == "away";
        Ok(devices.as_array().context("devices")?.iter().any(is_away))
    })?;
    let listed = net(&lab, &["devices"])?;
    let row = listed.iter().find(|line| line.starts_with("h2 ")).context("a row")?;
    ensure!(
        ["tap1", "station", "10.88.0.2/24", "1400", "away"].iter().all(|cell| row.contains(cell)),
        "{row}"
    );
    for what in ["links", "macs", "matrix"] {
        let ended = lab.transhume(&["net", what])?.success()?;
        ensure!(ended.errors.contains("no answer from h2"), "{what}: {ended:?}");
    }
    for what in ["macs", "matrix"] {
        let known: serde_json::Value = serde_json::from_str(&net(&lab, &[what, "--json"])?.join("\n"))?;
        ensure!(known["unanswered"] == serde_json::json!(["h2"]), "{what}: {known}");
    }
    Ok(())
}
