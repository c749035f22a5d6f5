//! Unmodified perftest and libibverbs utilities on the user-space device.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::pair::{FIRST, Pair, Place, command};
use e2e::perftest::{PORT, exchange, variants};
use e2e::program::{Program, run};

const LIMIT: Duration = Duration::from_secs(30);

/// Each variant that the program has, between two hosts and on one. Most of the time the programs measure the processor's
/// clock, so both go on at once.
fn matrix(program: &str) -> Result<()> {
    let _shared = e2e::shared();
    thread::scope(|scope| {
        let places = [Place::TwoHosts, Place::OneHost].map(|place| scope.spawn(move || row(program, place)));
        places.into_iter().try_for_each(|row| row.join().expect("no panic"))
    })
}

fn row(program: &str, place: Place) -> Result<()> {
    let pair = Pair::new(place)?;
    variants(program)?.try_for_each(|variant| {
        exchange(&pair, program, variant).with_context(|| format!("{program}, {}, {place:?}", variant.name))
    })
}

macro_rules! matrices {
    ($($program:ident)*) => {
        $(#[test]
        fn $program() -> Result<()> {
            matrix(stringify!($program))
        })*

        #[test]
        fn no_program_is_left_out() {
            assert_eq!([$(stringify!($program)),*], e2e::perftest::PROGRAMS);
        }
    };
}

matrices! {
    ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat
}

#[test]
fn ibv_devinfo_shows_an_active_port() -> Result<()> {
    let _shared = e2e::shared();
    let pair = Pair::new(Place::TwoHosts)?;
    let shown = run(command(&pair.second, "ibv_devinfo")?.arg("-v"), LIMIT)?.lines.join("\n");
    for expected in ["PORT_ACTIVE", "InfiniBand", "port_lid:\t\t2", "max_qp:"] {
        ensure!(shown.contains(expected), "no `{expected}` in\n{shown}");
    }
    Ok(())
}

/// Runs `program` of libibverbs' examples between two hosts and on one, polling and with events.
fn ping_pong(program: &str, arguments: &[&str]) -> Result<()> {
    let _shared = e2e::shared();
    for place in [Place::TwoHosts, Place::OneHost] {
        for events in [&[] as &[&str], &["-e"]] {
            let pair = Pair::new(place)?;
            let mut server = command(&pair.first, program)?;
            let mut server = Program::start(server.args(arguments).args(events))?;
            server.wait_for_listener(PORT, LIMIT)?;
            let mut client = command(&pair.second, program)?;
            run(client.args(arguments).args(events).arg(FIRST), LIMIT)?;
            server.end(LIMIT)?.success()?;
        }
    }
    Ok(())
}

#[test]
fn ibv_rc_pingpong_validates_its_buffers() -> Result<()> {
    ping_pong("ibv_rc_pingpong", &["-c", "-n", "500"])
}

#[test]
fn ibv_uc_pingpong_ends() -> Result<()> {
    ping_pong("ibv_uc_pingpong", &["-n", "500"])
}

#[test]
fn ibv_ud_pingpong_ends() -> Result<()> {
    ping_pong("ibv_ud_pingpong", &["-n", "500"])
}
