//! Round trips of small datagrams, each sent when the one before has come back. Both ends sleep while they wait, as most
//! programs do.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use probe::namespace::inside;

/// Bytes of a datagram.
const SIZE: usize = 64;

/// After so long a datagram or its answer is lost.
const PATIENCE: Duration = Duration::from_millis(100);

/// Two ends that exchange datagrams.
pub struct Ping {
    client: UdpSocket,
    server: UdpSocket,
}

impl Ping {
    /// Ends in the network namespaces of the files `from` and `to`; the latter has `address`.
    ///
    /// # Errors
    /// If a socket cannot be made.
    pub fn new(from: &Path, to: &Path, address: Ipv4Addr) -> io::Result<Self> {
        let bound = |address| {
            let socket = UdpSocket::bind(SocketAddr::from((address, 0)))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let server = inside(to, || bound(address))?;
        let target = server.local_addr()?;
        let client = inside(from, || bound(Ipv4Addr::UNSPECIFIED))?;
        client.connect(target)?;
        Ok(Self { client, server })
    }

    /// Waits until an answer comes.
    ///
    /// # Errors
    /// If none does within `limit`.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let times = self.exchange(limit, 1)?;
        ensure!(!times.is_empty(), "nothing comes through within {limit:?}");
        Ok(())
    }

    /// The round trips of `time`, in microseconds.
    ///
    /// # Errors
    /// If there is none.
    pub fn round_trips(&self, time: Duration) -> Result<Vec<f64>> {
        let times = self.exchange(time, usize::MAX)?;
        ensure!(!times.is_empty(), "no answer within {time:?}");
        Ok(times)
    }

    /// The round trips of `time`, or the first `most` of them.
    fn exchange(&self, time: Duration, most: usize) -> io::Result<Vec<f64>> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.answer(&stop));
            let times = self.ask(time, most);
            stop.store(true, Ordering::Relaxed);
            times
        })
    }

    fn ask(&self, time: Duration, most: usize) -> io::Result<Vec<f64>> {
        let (begin, mut times, mut number) = (Instant::now(), Vec::new(), 0_u64);
        let mut datagram = [0; SIZE];
        while begin.elapsed() < time && times.len() < most {
            number += 1;
            datagram[..8].copy_from_slice(&number.to_be_bytes());
            let sent = Instant::now();
            // A datagram that is refused on the way, as before the neighbour is known, counts as one without an
            // answer.
            let _ = self.client.send(&datagram);
            if self.answered(number)? {
                times.push(sent.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
        Ok(times)
    }

    /// Whether the answer to datagram `number` comes. Those to earlier ones are too late.
    fn answered(&self, number: u64) -> io::Result<bool> {
        let mut answer = [0; SIZE];
        loop {
            match self.client.recv(&mut answer) {
                Ok(SIZE) if answer[..8] == number.to_be_bytes() => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if is_passing(&error) => thread::sleep(PATIENCE),
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&self, stop: &AtomicBool) {
        let mut datagram = [0; SIZE];
        while !stop.load(Ordering::Relaxed) {
            if let Ok((length, sender)) = self.server.recv_from(&mut datagram) {
                // The sender notices missing answers.
                let _ = self.server.send_to(&datagram[..length], sender);
            }
        }
    }
}

/// Whether this says that the other end cannot be reached yet.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> &'static Path {
        Path::new("/proc/self/ns/net")
    }

    #[test]
    fn answers_are_timed_and_silence_is_an_error() {
        let ping = Ping::new(here(), here(), Ipv4Addr::LOCALHOST).unwrap();
        ping.wait(Duration::from_secs(10)).unwrap();
        let times = ping.round_trips(Duration::from_millis(50)).unwrap();
        assert!(times.iter().all(|time| (0.0..1e6).contains(time)));
        let elsewhere = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        ping.client.connect(elsewhere.local_addr().unwrap()).unwrap();
        assert!(ping.round_trips(PATIENCE * 2).is_err() && ping.wait(PATIENCE * 2).is_err());
    }

    #[test]
    fn a_late_answer_is_not_the_next_ones() {
        let ping = Ping::new(here(), here(), Ipv4Addr::LOCALHOST).unwrap();
        let client = ping.client.local_addr().unwrap();
        let mut datagram = [0; SIZE];
        for number in [1_u64, 2] {
            datagram[..8].copy_from_slice(&number.to_be_bytes());
            ping.server.send_to(&datagram, client).unwrap();
        }
        assert!(ping.answered(2).unwrap());
        ping.server.send_to(&datagram, client).unwrap();
        assert!(!ping.answered(3).unwrap());
    }
}
