//! Devices that can be plugged into the overlay of a lab: devices in named network namespaces, and TAPs that existed
//! before.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::guest::{Guest, plain_emulator};
use e2e::overlay::{Stream, instance, net};
use e2e::pings::Pings;
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// The program that takes what a guest sends.
const BULK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bulk.py");

/// A network namespace with a name that no other test has. It goes with this.
struct Named(String);

impl Named {
    fn new(name: &str) -> Result<Self> {
        let name = format!("t{}{name}", std::process::id());
        ip(&["netns", "add", &name])?;
        Ok(Self(name))
    }

    /// Another one of the same name takes its place.
    fn replace(&self) -> Result<()> {
        ip(&["netns", "del", &self.0])?;
        ip(&["netns", "add", &self.0]).map(drop)
    }

    /// The status of a device in it; an error if there is none.
    fn device(&self, name: &str) -> Result<String> {
        ip(&["-netns", &self.0, "address", "show", "dev", name])
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<String> {
    Ok(run(Command::new("ip").args(arguments), LIMIT)?.success()?.lines.join("\n"))
}

/// Runs `ip` on a host.
fn ip_on(lab: &TestLab, host: &str, line: &str) -> Result<String> {
    let line: Vec<_> = ["lab", "exec", host, "--", "ip"].into_iter().chain(line.split(' ')).collect();
    Ok(run(&mut lab.command(&line), LIMIT)?.success()?.lines.join("\n"))
}

/// Two hosts. The first has a device with an address.
fn two_hosts() -> Result<TestLab> {
    let lab = TestLab::up(2)?;
    net(&lab, &["layout", "star"])?;
    net(&lab, &["attach", "h1", "tap1", "--address", "10.88.0.1/24"])?;
    Ok(lab)
}

/// The output of `transhume net` as JSON.
fn json(lab: &TestLab, arguments: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&net(lab, &[arguments, &["--json"]].concat())?.concat())?)
}

/// The device of this name as it is listed.
fn listed(lab: &TestLab, name: &str) -> Result<Value> {
    let Value::Array(devices) = json(lab, &["devices"])? else { anyhow::bail!("no list") };
    devices.into_iter().find(|device| device["name"] == name).with_context(|| format!("no {name}"))
}

/// Why `transhume net` fails.
fn refused(lab: &TestLab, arguments: &[&str]) -> Result<String> {
    let ended = lab.transhume(&[&["net"], arguments].concat())?;
    ensure!(!ended.status.success(), "{arguments:?} succeeded");
    Ok(ended.errors)
}

#[test]
fn a_device_is_in_the_namespace_that_has_the_name() -> Result<()> {
    const MAC: &str = "52:54:00:12:34:56";
    let _shared = e2e::shared();
    let web = Named::new("web")?;
    let lab = two_hosts()?;
    let attach = ["attach", "h2", "web0", "--netns", &web.0, "--address", "10.88.0.2/24", "--mac", MAC];
    let attached = json(&lab, &attach)?;
    ensure!(attached["mac"] == MAC && attached["netns"] == web.0.as_str(), "{attached}");
    ensure!(ip_on(&lab, "h2", "link show dev web0").is_err(), "the host has it itself");
    ensure!(web.device("web0")?.contains(MAC) && listed(&lab, "web0")?["netns"] == web.0.as_str());
    let mut stream =
        Stream::start(&lab, &["h1", "--"], &["h2", "--", "ip", "netns", "exec", &web.0], "10.88.0.2")?;
    stream.goes_on()?;
    for place in ["h2", "coordinator"] {
        lab.lab.kill(place.parse()?)?;
        lab.lab.start(place.parse()?)?;
        stream.goes_on().with_context(|| format!("after {place} was killed\n{}", lab.logs()))?;
    }
    stream.end()?;
    // The node keeps no namespace alive that has no name any more.
    web.replace()?;
    lab.eventually("the device is in the new namespace", || Ok(web.device("web0").is_ok()))?;
    ip(&["netns", "del", &web.0])?;
    lab.eventually("the missing namespace is reported", || {
        let device = listed(&lab, "web0")?;
        let failure = device["failure"].as_str().unwrap_or_default();
        Ok(device["state"] == "failed" && failure.contains("there is no network namespace"))
    })?;
    net(&lab, &["detach", "h2", "web0"])?;
    let failure = refused(&lab, &attach)?;
    ensure!(failure.contains(&format!("there is no network namespace `{}`", web.0)), "{failure}");
    ensure!(failure.contains("`ip netns add"), "{failure}");
    ensure!(json(&lab, &["devices"])?.as_array().is_some_and(|devices| devices.len() == 1));
    Ok(())
}

#[test]
fn an_existing_tap_is_plugged_in_and_keeps_its_settings() -> Result<()> {
    const MAC: &str = "52:54:00:12:34:57";
    let _shared = e2e::shared();
    let lab = two_hosts()?;
    for line in [
        "tuntap add dev vm0 mode tap",
        "link set dev vm0 address 52:54:00:12:34:57 mtu 1300 up",
        "address add 10.88.0.2/24 dev vm0",
    ] {
        ip_on(&lab, "h2", line)?;
    }
    let as_before = || -> Result<()> {
        let about = ip_on(&lab, "h2", "address show dev vm0")?;
        ensure!([MAC, "mtu 1300", "10.88.0.2/24"].iter().all(|word| about.contains(word)), "{about}");
        Ok(())
    };
    let failure = refused(&lab, &["attach", "h2", "vm0", "--address", "10.88.0.3/24"])?;
    ensure!(failure.contains("vm0 already exists") && failure.contains("omit `--address`"), "{failure}");
    let available =
        || json(&lab, &["devices", "--available"]).map(|listed| listed.to_string().contains("\"vm0\""));
    ensure!(available()?, "it can be attached");
    let attached = json(&lab, &["attach", "h2", "vm0"])?;
    ensure!(!available()?, "it is attached");
    ensure!(
        attached["adopted"] == true && attached["mac"] == MAC && attached["mtu_bytes"] == 1300,
        "{attached}"
    );
    ensure!(net(&lab, &["devices"])?.iter().any(|line| line.contains("station, adopted")), "it is shown");
    let failure = refused(&lab, &["attach", "h1", "tap2", "--mac", MAC])?;
    ensure!(failure.contains("already in use on the overlay: device vm0 on h2 has it"), "{failure}");
    let failure = refused(&lab, &["move", "h2", "vm0", "--to", "h1"])?;
    ensure!(failure.contains("cannot move"), "{failure}");
    let mut stream = Stream::start(&lab, &["h1", "--"], &["h2", "--"], "10.88.0.2")?;
    stream.goes_on()?;
    lab.lab.kill("h2".parse()?)?;
    as_before()?;
    lab.lab.start("h2".parse()?)?;
    stream.goes_on().with_context(|| format!("after h2 was killed\n{}", lab.logs()))?;
    stream.end()?;
    // Another program takes it away, and makes another one.
    let await_failure = |words: &str| {
        lab.eventually(words, || {
            Ok(listed(&lab, "vm0")?["failure"].as_str().is_some_and(|failure| failure.contains(words)))
        })
    };
    ip_on(&lab, "h2", "link del vm0")?;
    await_failure("there is no persistent TAP vm0 any more")?;
    ip_on(&lab, "h2", "tuntap add dev vm0 mode tap")?;
    await_failure("and had 52:54:00:12:34:57 when it was attached")?;
    for line in ["link set dev vm0 address 52:54:00:12:34:57 mtu 1300", "address add 10.88.0.2/24 dev vm0"] {
        ip_on(&lab, "h2", line)?;
    }
    lab.eventually("it is plugged in again", || Ok(listed(&lab, "vm0")?["state"] == "up"))?;
    net(&lab, &["detach", "h2", "vm0"])?;
    ensure!(json(&lab, &["devices"])?.as_array().is_some_and(|devices| devices.len() == 1));
    as_before()?;
    ip_on(&lab, "h2", "link del vm0")?;
    // A name that no device can have, a TAP with several queues, and a name that something else has.
    let failure = refused(&lab, &["attach", "h2", "a-name-that-is-too-long"])?;
    ensure!(failure.contains("is not a valid name for a network device"), "{failure}");
    ip_on(&lab, "h2", "tuntap add dev vm0 mode tap multi_queue")?;
    let failure = refused(&lab, &["attach", "h2", "vm0"])?;
    ensure!(failure.contains("several queues"), "{failure}");
    ip_on(&lab, "h2", "link add br7 type bridge")?;
    let failure = refused(&lab, &["attach", "h2", "br7"])?;
    ensure!(failure.contains("choose another name"), "{failure}");
    Ok(())
}

/// An instance on the overlay that is the DHCP server there, and another one that takes what the guest sends.
#[test]
fn a_tap_of_a_running_machine_is_plugged_in_and_given_back() -> Result<()> {
    const MAC: &str = "52:54:00:12:34:58";
    const ADDRESS: &str = "10.77.250.10";
    let _shared = e2e::shared();
    let (lab, guest) = (TestLab::up(2)?, Guest::make()?);
    net(&lab, &["layout", "star"])?;
    let host = format!("--dhcp-host={MAC},{ADDRESS}");
    let dhcp = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--interface=eth0",
        "--user=root",
        "--dhcp-range=10.77.250.10,10.77.250.20,255.255.0.0,1h",
        "--dhcp-leasefile=/tmp/leases",
        "--pid-file=/tmp/pid",
        "--dhcp-option=26,1400",
        &host,
    ];
    let _dhcp = Program::start(&mut lab.command(&[&instance("dhcp", "h1")[..], &dhcp].concat()))?;
    let receive = [&instance("receiver", "h1")[..], &["/usr/bin/python3", BULK]].concat();
    let mut receiver = Program::start(&mut lab.command(&receive))?;
    let receiving = lab.started("receiver", &mut receiver)?.address;

    let append = format!("dhcp bulk={receiving}");
    let emulator = plain_emulator(&guest, "vm0", MAC, &append);
    let emulator: Vec<&str> =
        ["lab", "exec", "h2", "--"].into_iter().chain(emulator.iter().map(String::as_str)).collect();
    let mut machine = Program::start(&mut lab.command(&emulator))?;
    lab.eventually("its TAP is there", || Ok(ip_on(&lab, "h2", "link show dev vm0").is_ok()))?;
    let attach = ["attach", "h2", "vm0", "--mac", MAC];
    let failure = refused(&lab, &attach[..3])?;
    ensure!(failure.contains("has the TAP vm0 open") && failure.contains("`--mac 52:54:00"), "{failure}");
    ip_on(&lab, "h2", "link add br7 type bridge")?;
    ip_on(&lab, "h2", "link set vm0 master br7")?;
    let failure = refused(&lab, &attach)?;
    ensure!(failure.contains("vm0 is a port of br7") && failure.contains("nomaster"), "{failure}");
    ip_on(&lab, "h2", "link set vm0 nomaster")?;
    let attached = json(&lab, &attach)?;
    ensure!(attached["adopted"] == true && attached["mac"] == MAC, "{attached}");

    let sum = machine.wait_for(LIMIT, |line| line.trim().strip_prefix("bulk ").map(str::to_owned))?;
    let received = receiver.wait_for(LIMIT, |line| line.strip_prefix("bulk ").map(str::to_owned))?;
    ensure!(sum.split(' ').next() == Some(received.trim()), "{sum} was sent, {received} came");
    let mut pings = Pings::start(&lab, &instance("asker", "h1"), ADDRESS)?;
    pings.go_on().with_context(|| lab.logs())?;
    lab.lab.kill("h2".parse()?)?;
    lab.lab.start("h2".parse()?)?;
    pings.go_on().with_context(|| format!("after h2 was killed\n{}", lab.logs()))?;

    // The machine ends, another one begins.
    machine.signal(libc::SIGKILL)?;
    lab.eventually("its end is reported", || {
        Ok(listed(&lab, "vm0")?["failure"].as_str().is_some_and(|failure| failure.contains("no TAP vm0")))
    })?;
    let _machine = Program::start(&mut lab.command(&emulator))?;
    lab.eventually("it is plugged in again", || Ok(listed(&lab, "vm0")?["state"] == "up"))?;
    pings.go_on().with_context(|| format!("of another machine\n{}", lab.logs()))?;
    net(&lab, &["detach", "h2", "vm0"])?;
    let filters =
        run(&mut lab.command(&["lab", "exec", "h2", "--", "tc", "qdisc", "show", "dev", "vm0"]), LIMIT)?;
    ensure!(!filters.success()?.lines.concat().contains("ingress"), "the TAP has its filters still");
    Ok(())
}
