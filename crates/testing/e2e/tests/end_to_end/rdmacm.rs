//! Unmodified programs of rdmacm-utils, and perftest with `-R`, on this project's librdmacm.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::pair::{FIRST, Pair, Place, command};
use e2e::program::{Ended, Program};
use e2e::testlab::TestLab;

const LIMIT: Duration = Duration::from_secs(30);

/// How long a client may find no listener: a listening server does not show outside.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts clients until one ends well.
fn client(pair: &Pair, program: &str, arguments: &[&str]) -> Result<Ended> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = command(&pair.second, program)?;
        let client = Program::start(client.args(arguments))?.end(LIMIT)?;
        if client.status.success() || Instant::now() > deadline {
            return client.success();
        }
    }
}

/// Runs `program` between two hosts and on one, and checks the output of both sides.
fn exchange(program: &str, server: &[&str], asked: &[&str]) -> Result<()> {
    exchange_when(program, server, asked, |_| Ok(()))
}

/// As [`exchange`]; the client starts when the server is `ready`.
fn exchange_when(
    program: &str,
    server: &[&str],
    asked: &[&str],
    ready: impl Fn(&mut Program) -> Result<()>,
) -> Result<()> {
    let _shared = e2e::shared();
    for place in [Place::TwoHosts, Place::OneHost] {
        let pair = Pair::new(place)?;
        let mut serving = command(&pair.first, program)?;
        let mut serving = Program::start(serving.args(server))?;
        ready(&mut serving)?;
        let ended = client(&pair, program, asked);
        let served = serving.end(if ended.is_ok() { LIMIT } else { Duration::ZERO });
        match (ended, served.and_then(Ended::success)) {
            (Ok(_), Ok(_)) => {}
            (Ok(_), Err(error)) => return Err(error.context(format!("{program}'s server, {place:?}"))),
            (Err(error), served) => bail!("{program}, {place:?}: {error:#}\nthe server: {served:?}"),
        }
    }
    Ok(())
}

#[test]
fn rping_validates_its_data() -> Result<()> {
    exchange("rping", &["-s", "-V", "-C", "100"], &["-c", "-a", FIRST, "-V", "-C", "100"])
}

#[test]
fn mckey_reaches_a_group() -> Result<()> {
    const GROUP: [&str; 4] = ["-m", "239.1.2.3", "-C", "1"];
    let _shared = e2e::shared();
    for place in [Place::TwoHosts, Place::OneHost] {
        let pair = Pair::new(place)?;
        let mut receiver = Program::start(command(&pair.first, "mckey")?.args(GROUP))?;
        let deadline = Instant::now() + PATIENCE;
        while receiver.is_running()? {
            ensure!(Instant::now() < deadline, "nothing arrives, {place:?}");
            let mut sender = command(&pair.second, "mckey")?;
            Program::start(sender.args(GROUP).arg("-s"))?.end(LIMIT)?.success()?;
        }
        receiver.end(LIMIT)?.success()?;
    }
    Ok(())
}

#[test]
fn ucmatose_makes_many_connections() -> Result<()> {
    exchange("ucmatose", &["-c", "50"], &["-s", FIRST, "-c", "50"])
}

#[test]
fn ucmatose_migrates_its_identifiers() -> Result<()> {
    exchange("ucmatose", &["-m"], &["-s", FIRST, "-m"])
}

#[test]
fn udaddy_exchanges_datagrams() -> Result<()> {
    exchange("udaddy", &[], &["-s", FIRST])
}

#[test]
fn endpoints_need_no_channel() -> Result<()> {
    let _shared = e2e::shared();
    let pair = Pair::new(Place::TwoHosts)?;
    let server = Program::start(&mut command(&pair.first, "rdma_server")?)?;
    client(&pair, "rdma_client", &["-s", FIRST])?;
    server.end(LIMIT)?.success().map(drop)
}

/// Runs rdma_xserver and rdma_xclient over `kind` of connection.
fn extended_endpoints(kind: &str) -> Result<()> {
    let _shared = e2e::shared();
    for place in [Place::TwoHosts, Place::OneHost] {
        let pair = Pair::new(place)?;
        let server = Program::start(command(&pair.first, "rdma_xserver")?.args(["-c", kind]))?;
        client(&pair, "rdma_xclient", &["-s", FIRST, "-c", kind])?;
        server.end(LIMIT)?.success()?;
    }
    Ok(())
}

#[test]
fn endpoints_share_receives_of_extended_connections() -> Result<()> {
    extended_endpoints("r")?;
    extended_endpoints("x")
}

#[test]
fn cmtime_connects_and_disconnects() -> Result<()> {
    let _shared = e2e::shared();
    let pair = Pair::new(Place::TwoHosts)?;
    let _server = Program::start(&mut command(&pair.first, "cmtime")?)?;
    let ended = client(&pair, "cmtime", &["-s", FIRST, "-c", "100"])?;
    // "connect", and since Debian 13 "cm connect".
    ensure!(ended.lines.iter().any(|line| line.contains("connect ")), "{ended:?}");
    Ok(())
}

#[test]
fn perftest_connects_through_the_connection_manager() -> Result<()> {
    for program in ["ib_send_bw", "ib_write_lat", "ib_read_bw"] {
        let arguments = ["-R", "-n", "200", "-F", "-q", "2"];
        let arguments = if program.ends_with("lat") { &arguments[..4] } else { &arguments };
        exchange(program, arguments, &[arguments, &[FIRST]].concat())?;
    }
    Ok(())
}

/// Runs rstream or riostream with `options` on both sides.
fn stream(program: &str, options: &[&str]) -> Result<()> {
    let options = [&["-S", "100000", "-I", "20", "-C", "10"], options].concat();
    exchange(program, &options, &[&options[..], &["-s", FIRST]].concat())
}

#[test]
fn rstream_waits_in_calls_and_in_polls_and_verifies() -> Result<()> {
    [&["-T", "b", "-T", "v"], &["-T", "n", "-T", "v"], &["-T", "a", "-T", "r"]]
        .iter()
        .try_for_each(|options| stream("rstream", *options))
}

#[test]
fn riostream_writes_to_mapped_memory() -> Result<()> {
    stream("riostream", &["-T", "v"])
}

#[test]
fn udpong_exchanges_datagrams_through_sockets() -> Result<()> {
    let _shared = e2e::shared();
    for place in [Place::TwoHosts, Place::OneHost] {
        let pair = Pair::new(place)?;
        let _server = Program::start(&mut command(&pair.first, "udpong")?)?;
        for options in [&["-T", "e"] as &[&str], &["-T", "e", "-T", "b"], &["-T", "e", "-T", "n"]] {
            client(&pair, "udpong", &[&["-s", FIRST, "-C", "100"], options].concat())?;
        }
    }
    Ok(())
}

#[test]
fn datagram_sockets_refuse_invalid_calls_and_go_on() -> Result<()> {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datagram_sockets.py");
    // A datagram for which there is no socket yet is lost, as with UDP.
    let serves = |server: &mut Program| server.wait_for(LIMIT, |line| (line == "serves").then_some(()));
    exchange_when("/usr/bin/python3", &[SCRIPT, "serve"], &[SCRIPT, "ask", FIRST], serves)
}

#[test]
fn rcopy_copies_a_file() -> Result<()> {
    let _shared = e2e::shared();
    let pair = Pair::new(Place::TwoHosts)?;
    let file = |name| std::env::temp_dir().join(format!("transhume-rcopy-{name}-{}", std::process::id()));
    let (from, to) = (file("from"), file("to"));
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    std::fs::write(&from, &bytes)?;
    let _server = Program::start(&mut command(&pair.first, "rcopy")?)?;
    let copied = client(&pair, "rcopy", &[&from.display().to_string(), &format!("{FIRST}:{}", to.display())]);
    let got = std::fs::read(&to);
    for file in [from, to] {
        // The second is missing if nothing was copied.
        let _ = std::fs::remove_file(file);
    }
    copied?;
    ensure!(got? == bytes, "the copy differs");
    Ok(())
}

/// Both ends move while the client's connection is used, and while others are made.
#[test]
fn connections_and_listeners_move() -> Result<()> {
    /// Enough to last for longer than the moves.
    const PINGS: &str = "20000";
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let server = ["run", "--name", "server", "--host", "h1", "--", "rping", "-s", "-P", "-V"];
    let _server = Program::start(&mut lab.command(&server))?;
    let address = lab.settled("server")?.address;
    let ping = |name: &str, count: &str| {
        let run =
            ["run", "--name", name, "--host", "h2", "--", "rping", "-c", "-V", "-a", &address, "-C", count];
        Program::start(&mut lab.command(&run))
    };
    let client = ping("client", PINGS)?;
    lab.settled("client")?;
    let moves = [("server", "h3"), ("client", "h1"), ("server", "h2"), ("client", "h3"), ("server", "h1")];
    let back = [("client", "h2"), ("server", "h2"), ("client", "h1"), ("server", "h3"), ("client", "h3")];
    for (round, (name, host)) in moves.into_iter().chain(back).enumerate() {
        let other = ping(&format!("other-{round}"), "3")?;
        lab.move_to(name, host).with_context(|| format!("{name} to {host}"))?;
        other.end(LIMIT)?.success().with_context(|| format!("while {name} went to {host}"))?;
    }
    client.end(2 * LIMIT)?.success().map(drop)
}
