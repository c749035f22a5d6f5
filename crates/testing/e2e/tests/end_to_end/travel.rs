//! Each transport, and each unmodified program that lasts for long enough, while its instances move ten times.

use anyhow::{Context as _, Result, bail, ensure};
use e2e::mpi::{self, Layer, Mpi};
use e2e::perftest::PORT as PERFTEST;
use e2e::program::Program;
use e2e::testlab::TestLab;
use e2e::travel::{LIMIT, Server, Traveller, move_in_turn};

/// A program of perftest for a transport, with the size of its messages. Through the connection manager it listens at no
/// port.
macro_rules! perftest {
    ($program:literal, $port:expr, $size:literal $(, $option:literal)*) => {
        Traveller {
            server: Some(Server {
                command: &[$program, "-F", "-D", "WORK" $(, $option)*],
                port: $port,
                ends: true,
            }),
            client: &[$program, "-F", "-D", "WORK" $(, $option)*, "ADDRESS"],
            environment: &[],
            work: 6,
            report: concat!(" ", $size, " "),
        }
    };
}

/// The program's two sides with the same options.
macro_rules! stream {
    ($program:literal) => {
        Traveller {
            server: Some(Server {
                command: &[$program, "-S", "10000", "-I", "WORK", "-C", "100", "-T", "v"],
                port: None,
                ends: true,
            }),
            client: &[$program, "-S", "10000", "-I", "WORK", "-C", "100", "-T", "v", "-s", "ADDRESS"],
            environment: &[],
            work: 800,
            report: "custom",
        }
    };
}

/// Many connections, or datagrams for as many queue pairs, with as many messages each as the work is.
macro_rules! connections {
    ($program:literal, $connections:literal, $work:literal) => {
        Traveller {
            server: Some(Server {
                command: &[$program, "-c", $connections, "-C", "WORK", "-S", "200"],
                port: None,
                ends: true,
            }),
            client: &[$program, "-c", $connections, "-C", "WORK", "-S", "200", "-s", "ADDRESS"],
            environment: &[],
            work: $work,
            report: "return status 0",
        }
    };
}

/// libfabric's ping-pong, which checks its data, with one type of endpoint.
macro_rules! libfabric {
    ($provider:literal, $endpoint:literal) => {
        Traveller {
            server: Some(Server {
                command: &["fi_pingpong", "-p", $provider, "-e", $endpoint, "-c", "-S", "1024", "-I", "WORK"],
                port: Some(47592),
                ends: true,
            }),
            client: &[
                "fi_pingpong",
                "-p",
                $provider,
                "-e",
                $endpoint,
                "-c",
                "-S",
                "1024",
                "-I",
                "WORK",
                "ADDRESS",
            ],
            environment: &[],
            work: 30_000,
            report: "1k",
        }
    };
}

macro_rules! travellers {
    ($($name:ident: $traveller:expr,)*) => {
        $(#[test]
        fn $name() -> Result<()> {
            $traveller.travel()
        })*
    };
}

/// UCX's benchmark. Its two sides check the received data.
const fn ucx(environment: &'static [(&'static str, &'static str)]) -> Traveller {
    Traveller {
        server: Some(Server { command: &["ucx_perftest", "WITHOUT_MPI"], port: Some(13337), ends: true }),
        client: &[
            "ucx_perftest",
            "WITHOUT_MPI",
            "-t",
            "tag_lat",
            "-w",
            "10",
            "-s",
            "10000",
            "-n",
            "WORK",
            "ADDRESS",
        ],
        environment,
        work: 50_000,
        report: "Final:",
    }
}

travellers! {
    reliable_connections: perftest!("ib_write_bw", Some(PERFTEST), "65536"),
    unreliable_connections: perftest!("ib_write_bw", Some(PERFTEST), "65536", "-c", "UC"),
    datagrams: perftest!("ib_send_bw", Some(PERFTEST), "4096", "-c", "UD"),
    extended_reliable_connections: perftest!("ib_send_bw", Some(PERFTEST), "65536", "-c", "XRC"),
    perftest_through_the_connection_manager: perftest!("ib_send_bw", None, "65536", "-R"),
    ucx_over_connections: ucx(&[("UCX_TLS", "rc_verbs,ud_verbs:aux")]),
    ucx_over_datagrams: ucx(&[("UCX_TLS", "ud_verbs")]),
    qperf: Traveller {
        server: Some(Server { command: &["qperf"], port: Some(19765), ends: false }),
        client: &["qperf", "-t", "WORK", "ADDRESS", "rc_bw", "uc_bw", "ud_lat"],
        environment: &[],
        work: 2,
        report: "latency",
    },
    rping: Traveller {
        server: Some(Server { command: &["rping", "-s", "-V", "-C", "WORK"], port: None, ends: true }),
        client: &["rping", "-c", "-V", "-C", "WORK", "-a", "ADDRESS"],
        environment: &[],
        work: 8_000,
        report: "",
    },
    ucmatose: connections!("ucmatose", "1500", 1_000),
    udaddy: connections!("udaddy", "1000", 500),
    cmtime: Traveller {
        server: Some(Server { command: &["cmtime"], port: None, ends: false }),
        client: &["cmtime", "-c", "WORK", "-s", "ADDRESS"],
        environment: &[],
        work: 5_000,
        // "connect", and since Debian 13 "cm connect".
        report: "connect ",
    },
    // It does not echo: an echo that is later than a millisecond, as in a move, is asked for again, and a duplicate
    // confuses it for ever.
    udpong: Traveller {
        server: Some(Server { command: &["udpong", "-T", "b"], port: None, ends: false }),
        client: &["udpong", "-T", "b", "-C", "WORK", "-s", "ADDRESS"],
        environment: &[],
        work: 80_000,
        report: "custom",
    },
    rstream: stream!("rstream"),
    riostream: stream!("riostream"),
    libfabric_over_connections: libfabric!("verbs", "msg"),
    libfabric_over_shared_connections: libfabric!("verbs;ofi_rxm", "rdm"),
    libfabric_over_datagrams: libfabric!("verbs", "dgram"),
    pyverbs: Traveller {
        server: None,
        client: &["/usr/bin/python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datagram_to_itself.py"), "WORK"],
        environment: &[],
        work: 50_000,
        report: "went to",
    },
}

/// A job's ranks check their input while their instances move.
fn open_mpi(layer: Layer) -> Result<()> {
    let _shared = e2e::shared();
    if layer.has_gone()? {
        return Ok(());
    }
    let mpi = Mpi::new()?;
    let lab = TestLab::up(3)?;
    let mut run = Program::start(&mut mpi.command(&lab, "job", layer, &[("h1", 1), ("h2", 1)], None))?;
    let ranks = ["h2-job", "h1-job"];
    for instance in ranks {
        lab.started(instance, &mut run)?;
    }
    if !move_in_turn(&lab, &ranks)? {
        bail!("the job has ended: {:?}\n{}", run.end(LIMIT)?, lab.logs());
    }
    mpi.enough()?;
    let lines = run.end(LIMIT)?.success().with_context(|| lab.logs())?.lines;
    ensure!(lines.iter().any(|line| line.ends_with(mpi::REPORT)), "{lines:?}");
    Ok(())
}

#[test]
fn open_mpi_over_openib() -> Result<()> {
    open_mpi(Layer::Openib)
}

#[test]
fn open_mpi_over_ucx() -> Result<()> {
    open_mpi(Layer::Ucx("rc_verbs,ud_verbs:aux,self"))
}
