//! Echo requests to a guest, whose kernel answers them without any program.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use probe::namespace::inside;
use probe::{Gaps, INTERVAL};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};

/// How often the receiver checks whether it should stop.
const PATIENCE: Duration = Duration::from_millis(50);

const REQUEST: u8 = 8;
const REPLY: u8 = 0;

/// The length of the IP header before a reply.
const IP_HEADER: usize = 20;

/// Sends an echo request every [`INTERVAL`] until it is dropped, and records the answers.
pub struct Echo {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    socket: OwnedFd,
    stop: AtomicBool,
    gaps: Mutex<Gaps>,
}

impl Echo {
    /// Starts to send to `target` from the network namespace `from`.
    ///
    /// # Errors
    /// Those of entering the namespace and of making a raw socket.
    pub fn start(from: &Path, target: Ipv4Addr) -> io::Result<Self> {
        let socket = inside(from, || {
            let socket = net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
            net::connect(&socket, &SocketAddrV4::new(target, 0))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            Ok(socket)
        })?;
        let shared = Arc::new(Shared { socket, stop: AtomicBool::new(false), gaps: Mutex::default() });
        let (sender, receiver) = (shared.clone(), shared.clone());
        let threads = vec![thread::spawn(move || sender.send()), thread::spawn(move || receiver.receive())];
        Ok(Self { shared, threads })
    }

    /// The gaps so far.
    ///
    /// # Panics
    /// If one of its threads has panicked.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        self.shared.gaps.lock().expect("its threads do not panic").clone()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed a message.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn send(&self) {
        let mut due = Instant::now();
        for sequence in 0_u64.. {
            if self.stopped() {
                return;
            }
            // The kernel refuses it while the guest's host is not known: the missing answer shows that.
            let _ = net::send(&self.socket, &request(sequence), SendFlags::empty());
            due = (due + INTERVAL).max(Instant::now());
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    fn receive(&self) {
        let mut packet = [MaybeUninit::uninit(); 128];
        while !self.stopped() {
            let Ok(((packet, _), _)) = net::recv(&self.socket, &mut packet[..], RecvFlags::empty()) else {
                continue;
            };
            if let Some(sequence) = answered(packet) {
                self.gaps.lock().expect("its threads do not panic").note(sequence, Instant::now());
            }
        }
    }
}

/// An echo request that carries the number, since its own field for it has only 16 bits.
fn request(sequence: u64) -> [u8; 16] {
    let mut packet = [0; 16];
    packet[0] = REQUEST;
    packet[8..].copy_from_slice(&sequence.to_be_bytes());
    let checksum = checksum(&packet);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// The number in an echo reply, with its IP header.
fn answered(packet: &[u8]) -> Option<u64> {
    let packet = packet.get(IP_HEADER..)?;
    let number = packet.get(8..16)?.try_into().ok()?;
    (packet[0] == REPLY).then(|| u64::from_be_bytes(number))
}

/// The Internet checksum.
fn checksum(packet: &[u8]) -> u16 {
    let words = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_requests() {
        let Ok(echo) = Echo::start(Path::new("/proc/self/ns/net"), Ipv4Addr::LOCALHOST) else {
            return test_support::skip("raw sockets need root");
        };
        let end = Instant::now() + Duration::from_secs(10);
        while echo.gaps().answered() < 20 {
            assert!(Instant::now() < end, "no answers");
            thread::sleep(INTERVAL);
        }
    }
}
