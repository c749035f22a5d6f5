//! The cost of an idle overlay, and of each station that it knows.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use probe::namespace::inside;

use super::ground::{Ground, TAP};
use super::{RECEIVER, SENDER};
use crate::report::Row;

/// The names of the rows.
pub const NAMES: [&str; 2] = ["an idle node of the overlay", "memory of 10000 learned MACs"];

/// For how long nothing is carried.
const IDLE: Duration = Duration::from_secs(10);

/// How many stations are learned: so many that their memory cannot come from memory that was used before.
const STATIONS: u32 = 50_000;

/// The number of stations that the reported memory is for.
const SHOWN: u32 = 10_000;

/// Stations that speak at one time, with a pause after them: unexpected frames are limited.
const AT_ONCE: u32 = 20;
const PAUSE: Duration = Duration::from_millis(4);

/// How long they may take to be known.
const LIMIT: Duration = Duration::from_secs(30);

/// The type of an experimental protocol (IEEE 802, table of EtherTypes).
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

/// The shortest frame.
const FRAME: usize = 60;

/// Measures both, at the receiver's node.
///
/// # Errors
/// If the node cannot be watched, or does not learn the stations.
pub fn rows(ground: &Ground) -> Result<[Row; 2]> {
    let node = ground.node(RECEIVER)?;
    let (before, begun) = (processor_time(node)?, Instant::now());
    sleep(IDLE);
    let share = (processor_time(node)? - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    let empty = memory(node)?;
    let known = ground.known_macs(RECEIVER)?;
    speak(&ground.namespace(SENDER)?)?;
    let deadline = Instant::now() + LIMIT;
    while ground.known_macs(RECEIVER)? < known + STATIONS as usize {
        ensure!(Instant::now() < deadline, "not all of {STATIONS} stations are known");
        sleep(PAUSE);
    }
    let grown = memory(node)?.saturating_sub(empty) as f64 * f64::from(SHOWN) / f64::from(STATIONS);
    Ok([
        Row::alone(NAMES[0].into(), &[share * 100.0], "% CPU"),
        Row::alone(NAMES[1].into(), &[grown / 1024.0], "KiB"),
    ])
}

/// The time on processors that a process has used.
fn processor_time(process: i32) -> Result<Duration> {
    // Behind the name, which may hold anything (proc(5)).
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<_, _>>()
        .context("no times")?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Bytes of memory that a process has.
fn memory(process: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size = size.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(size.context("no size of memory")? * 1024)
}

/// Lets each station say something.
fn speak(namespace: &Path) -> Result<()> {
    let socket = inside(namespace, packet_socket)?;
    for station in 0..STATIONS {
        let [a, b, c, d] = station.to_be_bytes();
        let mut frame = [0; FRAME];
        frame[..6].copy_from_slice(&[0xff; 6]);
        frame[6..12].copy_from_slice(&[0x02, 0xbe, a, b, c, d]);
        frame[12..14].copy_from_slice(&EXPERIMENTAL);
        rustix::io::write(&socket, &frame)?;
        if station % AT_ONCE == AT_ONCE - 1 {
            sleep(PAUSE);
        }
    }
    Ok(())
}

/// A socket that sends frames on the overlay's device of the calling thread's namespace.
fn packet_socket() -> io::Result<OwnedFd> {
    let checked = |result| if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: the call takes numbers.
    let socket = checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor was just made, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: zeroes are a value of the structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = rustix::net::netdevice::name_to_index(&socket, TAP)?.cast_signed();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is live, and of the length that is given.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_watched() {
        let own = std::process::id().cast_signed();
        let before = processor_time(own).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {}
        assert!(processor_time(own).unwrap() > before);
        assert!(memory(own).unwrap() > 1 << 20);
    }
}
