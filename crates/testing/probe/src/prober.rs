use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, RecvFlags, SendFlags};

use crate::form::{self, Form};
use crate::{Gaps, namespace};

/// The interval between two packets.
pub const INTERVAL: Duration = Duration::from_micros(500);

/// How often the receiver checks whether it should stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// Sends numbered packets to an address until it is dropped, and records the answers.
#[derive(Debug)]
pub struct Prober {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    form: &'static Form,
    stop: AtomicBool,
    gaps: Mutex<Gaps>,
}

impl Prober {
    /// Starts to send UDP packets to `target`, where [`answer`] runs, from the network namespace `from`.
    ///
    /// # Errors
    /// Those of [`namespace::inside`] and of making a socket.
    pub fn start(from: &Path, target: SocketAddr) -> io::Result<Self> {
        let socket = namespace::inside(from, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket.connect(target)?;
        Self::over(socket.into(), &form::UDP)
    }

    /// Starts to send echo requests to `target`, whose kernel answers them without any program.
    ///
    /// # Errors
    /// Those of [`namespace::inside`] and of making a raw socket.
    pub fn echo(from: &Path, target: Ipv4Addr) -> io::Result<Self> {
        Self::over(namespace::inside(from, || form::echo_socket(target))?, &form::ECHO)
    }

    fn over(socket: OwnedFd, form: &'static Form) -> io::Result<Self> {
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        let shared = Arc::new(Shared { socket, form, stop: AtomicBool::new(false), gaps: Mutex::default() });
        let (sender, receiver) = (shared.clone(), shared.clone());
        let threads = vec![thread::spawn(move || sender.send()), thread::spawn(move || receiver.receive())];
        Ok(Self { shared, threads })
    }

    /// The gaps recorded so far.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        self.shared.gaps().clone()
    }
}

impl Drop for Prober {
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

    fn gaps(&self) -> MutexGuard<'_, Gaps> {
        self.gaps.lock().expect("no thread panics while it holds the lock")
    }

    /// A late packet is sent at once, but missed packets are not sent later.
    fn send(&self) {
        let mut due = Instant::now();
        for sequence in 0_u64.. {
            if self.stopped() {
                return;
            }
            // The send is refused while nothing listens yet: the missing answers show that.
            let _ = net::send(&self.socket, &(self.form.encode)(sequence), SendFlags::empty());
            due = (due + INTERVAL).max(Instant::now());
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    fn receive(&self) {
        let mut packet = [0; 128];
        while !self.stopped() {
            let Ok((length, _)) = net::recv(&self.socket, &mut packet[..], RecvFlags::empty()) else {
                continue;
            };
            if let Some(sequence) = (self.form.decode)(&packet[..length]) {
                self.gaps().note(sequence, Instant::now());
            }
        }
    }
}

/// Returns every packet on `port` to its sender, for ever.
///
/// # Errors
/// Those of binding the port.
pub fn answer(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let mut bytes = [0; 64];
    loop {
        if let Ok((length, sender)) = socket.recv_from(&mut bytes) {
            // The prober counts missing answers.
            let _ = socket.send_to(&bytes[..length], sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_seen_with_its_length() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let here = Path::new("/proc/self/ns/net");
        let Ok(prober) = Prober::start(here, server.local_addr().unwrap()) else {
            return test_support::skip("entering a namespace needs root");
        };
        let mut bytes = [0; 8];
        let mut echo_until = |end: Instant| {
            while Instant::now() < end {
                let (length, sender) = server.recv_from(&mut bytes).unwrap();
                server.send_to(&bytes[..length], sender).unwrap();
            }
        };
        let begin = Instant::now();
        let silence = Duration::from_millis(100);
        echo_until(begin + silence);
        thread::sleep(silence);
        drop_waiting(&server);
        echo_until(Instant::now() + silence);
        let gap = prober.gaps().longest_within(begin, Instant::now()).unwrap();
        assert!(gap.duration() >= silence, "{gap:?}");
        assert!(prober.gaps().answered() > 50);
    }

    #[test]
    fn the_kernel_answers_echo_requests() {
        let Ok(prober) = Prober::echo(Path::new("/proc/self/ns/net"), Ipv4Addr::LOCALHOST) else {
            return test_support::skip("raw sockets need root");
        };
        let end = Instant::now() + Duration::from_secs(10);
        while prober.gaps().answered() < 20 {
            assert!(Instant::now() < end, "no answers");
            thread::sleep(INTERVAL);
        }
    }

    /// Drops queued packets, so that packets sent during the silence stay unanswered.
    fn drop_waiting(server: &UdpSocket) {
        server.set_nonblocking(true).unwrap();
        while server.recv_from(&mut [0; 8]).is_ok() {}
        server.set_nonblocking(false).unwrap();
    }
}
