//! Unmodified programs from Debian that use verbs in their own ways: UCX, libfabric, Open MPI, qperf, pyverbs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::mpi::{self, Layer, Mpi};
use e2e::pair::{FIRST, Pair, Place, command};
use e2e::program::{Program, run};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use e2e::ucx;
use fabric::device_file::NAME;

/// How long one exchange may take.
const LIMIT: Duration = Duration::from_secs(60);

const PLACES: [Place; 2] = [Place::TwoHosts, Place::OneHost];

/// Runs `server`, which listens on `port`, and then `client`; returns the client's output.
fn exchange(server: &mut Command, port: u16, client: &mut Command) -> Result<Vec<String>> {
    let mut server = Program::start(server)?;
    server.wait_for_listener(port, LIMIT)?;
    let lines = run(client, LIMIT)?.lines;
    server.end(LIMIT)?.success()?;
    Ok(lines)
}

/// Runs UCX's benchmarks over `transports` alone; they check the received data themselves.
fn ucx_perftest(transports: &str) -> Result<()> {
    const PORT: u16 = 13337;
    let _shared = e2e::shared();
    // Its node makes the file of the device, which goes with the last lab of the machine.
    let _lab = TestLab::up(1)?;
    for place in PLACES {
        let pair = Pair::new(place)?;
        let tests = ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_get", "ucp_am_lat"].map(|test| (test, "poll"));
        for (test, wait) in tests.into_iter().chain([("tag_lat", "sleep")]) {
            let mut server = command(&pair.first, "ucx_perftest")?;
            let mut client = command(&pair.second, "ucx_perftest")?;
            client.args(["-t", test, "-n", "200", "-w", "10", "-s", "10000", FIRST]);
            for side in [&mut server, &mut client] {
                side.args(ucx::without_mpi()).args(["-E", wait]).env("UCX_TLS", transports);
            }
            let lines = exchange(&mut server, PORT, &mut client)
                .with_context(|| format!("{test} ({wait}) over {transports}, {place:?}"))?;
            ensure!(lines.iter().any(|line| line.starts_with("Final:")), "no result in {lines:?}");
        }
    }
    Ok(())
}

#[test]
fn ucx_over_connections() -> Result<()> {
    // UCX connects them by datagrams.
    ucx_perftest("rc_verbs,ud_verbs:aux")
}

#[test]
fn ucx_over_datagrams() -> Result<()> {
    ucx_perftest("ud_verbs")
}

/// Runs libfabric's ping-pong, which checks its data, with one type of endpoint.
fn libfabric(provider: &str, endpoint: &str) -> Result<()> {
    const PORT: u16 = 47592;
    let _shared = e2e::shared();
    for place in PLACES {
        let pair = Pair::new(place)?;
        let options = ["-p", provider, "-e", endpoint, "-c", "-I", "50"];
        let mut server = command(&pair.first, "fi_pingpong")?;
        let mut client = command(&pair.second, "fi_pingpong")?;
        let lines = exchange(server.args(options), PORT, client.args(options).arg(FIRST))
            .with_context(|| format!("{provider}, {place:?}"))?;
        let size = if endpoint == "dgram" { "4k " } else { "1m " };
        ensure!(lines.iter().any(|line| line.starts_with(size)), "no result for {size}in {lines:?}");
    }
    Ok(())
}

#[test]
fn libfabric_over_connections() -> Result<()> {
    libfabric("verbs", "msg")
}

#[test]
fn libfabric_over_shared_connections() -> Result<()> {
    libfabric("verbs;ofi_rxm", "rdm")
}

#[test]
fn libfabric_over_datagrams() -> Result<()> {
    libfabric("verbs", "dgram")
}

#[test]
fn libfabric_knows_the_device() -> Result<()> {
    let _shared = e2e::shared();
    let pair = Pair::new(Place::OneHost)?;
    let lines = run(command(&pair.first, "fi_info")?.args(["-p", "verbs"]), LIMIT)?.lines;
    for kind in ["FI_EP_MSG", "FI_EP_RDM", "FI_EP_DGRAM"] {
        ensure!(lines.iter().any(|line| line.ends_with(kind)), "no {kind} in {lines:?}");
    }
    Ok(())
}

/// Runs Open MPI jobs on one host and on two. Each rank checks its input.
fn open_mpi(layer: Layer) -> Result<()> {
    let _shared = e2e::shared();
    if layer.has_gone()? {
        return Ok(());
    }
    let mpi = Mpi::new()?;
    let lab = TestLab::up(2)?;
    let jobs: [&[(&str, u32)]; 4] =
        [&[("h1", 2)], &[("h1", 4)], &[("h1", 1), ("h2", 1)], &[("h1", 2), ("h2", 2)]];
    for (number, hosts) in jobs.into_iter().enumerate() {
        let mut job = mpi.command(&lab, &format!("job-{number}"), layer, hosts, Some(40));
        let lines = run(&mut job, LIMIT).with_context(|| format!("{layer:?}, {hosts:?}"))?.lines;
        ensure!(lines.iter().any(|line| line.ends_with(mpi::REPORT)), "{hosts:?} reports {lines:?}");
    }
    Ok(())
}

#[test]
fn open_mpi_over_openib() -> Result<()> {
    open_mpi(Layer::Openib)
}

#[test]
fn open_mpi_over_ucx_connections() -> Result<()> {
    open_mpi(Layer::Ucx("rc_verbs,ud_verbs:aux,self"))
}

#[test]
fn open_mpi_over_ucx_datagrams() -> Result<()> {
    open_mpi(Layer::Ucx("ud_verbs,self"))
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
    let _shared = e2e::shared();
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
    let _shared = e2e::shared();
    let pair = Pair::new(Place::OneHost)?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datagram_to_itself.py");
    // Debian's own Python: its modules are there.
    let ended = run(command(&pair.first, "/usr/bin/python3")?.args([script, "3"]), LIMIT)?;
    ensure!(ended.lines.iter().any(|line| line.starts_with("3 datagrams went")), "{:?}", ended.lines);
    Ok(())
}

/// Tests of a vendor's own functions, and of network interfaces of hardware, find none and skip themselves.
#[test]
fn rdma_cores_own_tests_pass() -> Result<()> {
    const TESTS: &str = "/usr/share/doc/rdma-core/tests";
    let _shared = e2e::shared();
    let folder = tempfile::tempdir()?;
    run(Command::new("cp").args(["--recursive", TESTS]).arg(folder.path()), LIMIT)?;
    let tests = folder.path().join("tests");
    run(Command::new("find").arg(&tests).args(["-name", "*.gz", "-exec", "gunzip", "{}", "+"]), LIMIT)?;
    let pair = Pair::new(Place::OneHost)?;
    let mut python = command(&pair.first, "/usr/bin/python3")?;
    let ended = run(python.arg(tests.join("run_tests.py")).args(["--verbose", "--dev", NAME]), LIMIT)?;
    let passed = ended.errors.lines().filter(|line| line.ends_with(" ... ok")).count();
    ensure!(passed >= 100, "{passed} tests passed:\n{}", ended.errors);
    Ok(())
}

/// Its node was killed, and comes again.
#[test]
fn a_program_that_starts_while_its_node_is_away_waits_for_it() -> Result<()> {
    /// For so long at least it finds no listener.
    const AWAY: Duration = Duration::from_secs(2);
    let _shared = e2e::shared();
    let (lab, is_away, node) = (TestLab::up(1)?, Signal::new("away"), "h1".parse()?);
    let script =
        format!("echo ready; while [ ! -e {} ]; do sleep 0.1; done; ibv_devices", is_away.path().display());
    let mut program = Program::start(&mut lab.command(&["run", "--host", "h1", "--", "sh", "-c", &script]))?;
    program.wait_for(LIMIT, |line| (line == "ready").then_some(()))?;
    lab.lab.kill(node)?;
    is_away.give()?;
    std::thread::sleep(AWAY);
    lab.lab.start(node)?;
    let ended = program.end(LIMIT)?.success()?;
    ensure!(ended.lines.iter().any(|line| line.contains("transhume0")), "{ended:?}");
    Ok(())
}
