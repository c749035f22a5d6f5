//! Instances on the overlay: their network devices are stations, and move with them.

use anyhow::{Context as _, Result, ensure};
use api::{NetDevice, NetDeviceKind, Outcome, Phase};
use e2e::overlay::{Stream, instance, net};
use e2e::testlab::{CLIENT, Followed, SERVER, TestLab, follow_to, outcome};
use lab::Place;
use serde::Deserialize;

/// The instances between which a stream goes.
const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";
/// The instance to which a stream goes from a station.
const ASKED: &str = "asked";

/// A device as `net devices --json` lists it.
#[derive(Deserialize)]
struct Listed {
    host: String,
    #[serde(flatten)]
    device: NetDevice,
}

/// Streams between two instances, and from a station to a third.
struct Streams {
    lab: TestLab,
    streams: [Stream; 2],
}

impl Streams {
    fn begin() -> Result<Self> {
        let lab = TestLab::up(3)?;
        net(&lab, &["layout", "star"])?;
        // Its host has an address of the instances' network already, on its bridge: the route makes the difference.
        net(&lab, &["attach", "h3", "st0", "--address", "10.77.250.1/32"])?;
        let reach = |address: &str| {
            let route = ["lab", "exec", "h3", "--", "ip", "route", "add", address, "dev", "st0"];
            lab.transhume(&route)?.success().map(drop)
        };
        let asked = Stream::to_instance(&lab, &["lab", "exec", "h3", "--"], [ASKED, "h1"], reach)?;
        let sender = instance(SENDER, "h2");
        let between = Stream::to_instance(&lab, &sender, [RECEIVER, "h1"], |_| Ok(()))?;
        let mut begun = Self { lab, streams: [between, asked] };
        begun.go_on()?;
        Ok(begun)
    }

    fn go_on(&mut self) -> Result<()> {
        self.streams.iter_mut().try_for_each(Stream::goes_on).with_context(|| self.lab.logs())
    }

    /// Moves an instance, and lets the streams go on.
    fn travel(&mut self, name: &str, host: &str) -> Result<()> {
        self.lab.move_to(name, host)?;
        self.go_on()
    }

    fn end(self) -> Result<()> {
        let [one, other] = self.streams;
        one.end().and_then(|()| other.end()).with_context(|| self.lab.logs())
    }
}

/// Where the devices of instances are, in the order of hosts.
fn places(lab: &TestLab) -> Result<Vec<(String, String)>> {
    let listed: Vec<Listed> = serde_json::from_str(&net(lab, &["devices", "--json"])?.join("\n"))?;
    let nics = listed.into_iter().filter(|listed| listed.device.kind == NetDeviceKind::Instance);
    Ok(nics.filter(|nic| nic.device.open).map(|nic| (nic.host, nic.device.name)).collect())
}

#[test]
fn connections_go_on_while_instances_move_and_nodes_are_killed() -> Result<()> {
    let _shared = e2e::shared();
    let mut streams = Streams::begin()?;
    for (name, host) in [
        (SENDER, "h3"),
        (RECEIVER, "h2"),
        (ASKED, "h2"),
        (SENDER, "h2"),
        (ASKED, "h3"),
        (RECEIVER, "h3"),
        (SENDER, "h1"),
    ] {
        streams.travel(name, host)?;
    }
    // One is rolled back.
    let mut moving = streams.lab.begin_move(SENDER, "h2")?;
    ensure!(matches!(follow_to(&mut moving, Phase::Dump)?, Followed::Reached));
    // It may be too late.
    streams.lab.transhume(&["cancel", SENDER])?;
    outcome(&mut moving)?;
    streams.lab.settled(SENDER)?;
    streams.go_on()?;
    // The links change meanwhile.
    net(&streams.lab, &["layout", "mesh"])?;
    // A source is killed in the middle of a move.
    let source = streams.lab.settled(SENDER)?.host;
    let to = if source == "h1" { "h2" } else { "h1" };
    for phase in [Phase::Dump, Phase::Restore] {
        let from: Place = streams.lab.settled(SENDER)?.host.parse()?;
        let to = if from.to_string() == source { to } else { &source };
        let mut moving = streams.lab.begin_move(SENDER, to)?;
        let reached = follow_to(&mut moving, phase)?;
        streams.lab.lab.kill(from)?;
        streams.lab.lab.start(from)?;
        if matches!(reached, Followed::Reached) {
            let _moved_or_not: Outcome = outcome(&mut moving)?;
        }
        streams.lab.settled(SENDER)?;
        streams.go_on().with_context(|| format!("the source was killed: {phase:?}"))?;
    }
    // And a node without a move.
    streams.travel(RECEIVER, "h1")?;
    let host: Place = "h1".parse()?;
    streams.lab.lab.kill(host)?;
    streams.lab.lab.start(host)?;
    streams.go_on()?;
    streams.travel(RECEIVER, "h2")?;
    streams.end()
}

#[test]
fn programs_with_rdma_move_on_the_overlay() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    net(&lab, &["layout", "star"])?;
    let mut check = lab.check("h1", "h2", &["--qps", "4"])?;
    for (name, host) in [(CLIENT, "h3"), (SERVER, "h3"), (SERVER, "h2")] {
        check.progress()?;
        lab.move_to(name, host)?;
    }
    check.progress()?;
    lab.end_check(check)?;
    Ok(())
}

#[test]
fn a_device_is_where_its_instance_is_and_stays_with_it() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let run = |name: &str, more: &[&str]| {
        let line =
            [&["run", "--detach", "--host", "h1", "--name", name], more, &["--", "sleep", "1000"]].concat();
        lab.transhume(&line)
    };
    let refused = run("early", &["--network", "overlay"])?;
    ensure!(refused.errors.contains("h1 is not part of the overlay"), "{refused:?}");
    run("before", &[])?.success()?;
    net(&lab, &["layout", "star"])?;
    run("on-bridge", &["--network", "bridge"])?.success()?;
    run("usual", &[])?.success()?;
    let networks: Vec<_> = lab.instances()?.into_iter().map(|it| (it.name, it.network.name())).collect();
    let expected = [("before", "bridge"), ("on-bridge", "bridge"), ("usual", "overlay")];
    ensure!(networks == expected.map(|(name, network)| (name.to_owned(), network)), "{networks:?}");
    let at = |host: &str| vec![(host.to_owned(), "usual".to_owned())];
    ensure!(places(&lab)? == at("h1"), "{:?}", places(&lab));
    lab.move_to("usual", "h2")?;
    ensure!(places(&lab)? == at("h2"), "{:?}", places(&lab));
    for line in [&["detach", "h2", "usual"][..], &["move", "h2", "usual", "--to", "h1"]] {
        let refused = lab.transhume(&[&["net"], line].concat())?;
        ensure!(refused.errors.contains("transhume move usual HOST"), "{refused:?}");
    }
    let taken = ["net", "attach", "h1", "tap1", "--mac", "02:74:72:61:00:09"];
    let taken = lab.transhume(&taken)?;
    ensure!(taken.errors.contains("reserved for instances"), "{taken:?}");
    lab.transhume(&["kill", "usual"])?.success()?;
    ensure!(places(&lab)?.is_empty(), "{:?}", places(&lab));
    lab.eventually("no node knows its station", || {
        Ok(net(&lab, &["macs", "--json"])?.iter().all(|line| !line.contains("02:74:72:61")))
    })
}
