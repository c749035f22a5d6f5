//! Unmodified programs from Debian that use verbs in their own ways: UCX, qperf, pyverbs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::pair::{FIRST, Pair, Place, command};
use e2e::program::{Program, run};

/// How long one exchange may take.
const LIMIT: Duration = Duration::from_secs(60);

const PLACES: [Place; 2] = [Place::TwoHosts, Place::OneHost];

/// Runs UCX's benchmarks over `transports` alone; its own check of what arrives is part of them.
fn ucx(transports: &str) -> Result<()> {
    const PORT: u16 = 13337;
    let _alone = e2e::alone();
    // What a node does.
    fabric::device_file::make()?;
    for place in PLACES {
        let pair = Pair::new(place)?;
        for test in ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_get", "ucp_am_lat"] {
            let with = |command: &mut Command| {
                command.env("UCX_TLS", transports);
            };
            let mut server = command(&pair.first, "ucx_perftest")?;
            with(&mut server);
            let mut server = Program::start(&mut server)?;
            server.wait_for_listener(PORT, LIMIT)?;
            let mut client = command(&pair.second, "ucx_perftest")?;
            with(&mut client);
            client.args(["-t", test, "-n", "200", "-w", "10", "-s", "10000", FIRST]);
            let lines = run(&mut client, LIMIT)
                .with_context(|| format!("{test} over {transports}, {place:?}"))?
                .lines;
            ensure!(lines.iter().any(|line| line.starts_with("Final:")), "no result in {lines:?}");
            server.end(LIMIT)?.success()?;
        }
    }
    Ok(())
}

#[test]
fn ucx_over_connections() -> Result<()> {
    // UCX connects them by datagrams.
    ucx("rc_verbs,ud_verbs:aux")
}

#[test]
fn ucx_over_datagrams() -> Result<()> {
    ucx("ud_verbs")
}

#[test]
fn qperf_over_each_transport() -> Result<()> {
    const PORT: u16 = 19765;
    const TESTS: [&str; 8] = [
        "rc_lat",
        "rc_bw",
        "uc_bw",
        "ud_lat",
        "ud_bw",
        "rc_rdma_read_bw",
        "rc_rdma_write_bw",
        "ver_rc_fetch_add",
    ];
    let _alone = e2e::alone();
    for place in PLACES {
        let pair = Pair::new(place)?;
        let mut server = Program::start(&mut command(&pair.first, "qperf")?)?;
        server.wait_for_listener(PORT, LIMIT)?;
        let mut client = command(&pair.second, "qperf")?;
        // Its shortest time; with a number of messages it does not end, over TCP either.
        client.args(["-t", "1", FIRST]).args(TESTS);
        let lines = run(&mut client, LIMIT).with_context(|| format!("{place:?}"))?.lines;
        for test in TESTS {
            let at = lines.iter().position(|line| line == &format!("{test}:"));
            let result = at.and_then(|at| lines.get(at + 1));
            ensure!(result.is_some_and(|line| line.contains(" = ")), "no result of {test} in {lines:?}");
        }
    }
    Ok(())
}

#[test]
fn pyverbs_drives_the_device() -> Result<()> {
    let _alone = e2e::alone();
    let pair = Pair::new(Place::OneHost)?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datagram_to_itself.py");
    // Debian's own Python: its modules are there.
    let ended = run(command(&pair.first, "/usr/bin/python3")?.arg(script), LIMIT)?;
    ensure!(ended.lines.iter().any(|line| line.starts_with("a datagram went")), "{:?}", ended.lines);
    Ok(())
}
