//! Datagrams between nodes, many in one call.
//!
//! Datagrams for one node leave in one call, and the kernel splits them (`UDP_SEGMENT`); arriving datagrams of one
//! node are merged by the kernel (`UDP_GRO`), and split here. No datagram is fragmented: one that is too
//! long for the path is lost, and the path MTU has to be found.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use crate::offloads::Offloads;

/// The most bytes that come in one call.
pub const MOST: usize = 65_535;

/// The most bytes that leave in one: an IPv4 datagram's limit, without its header and UDP's.
pub const LONGEST: usize = 65_535 - 20 - 8;

/// The requested size of socket buffers: the bursts of some segments.
const KERNEL_BUFFER: usize = 8 << 20;

/// A socket that is bound.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Into so many datagrams the kernel cuts at most. The state forgets that with the first that is refused, to whomever it was.
    cuts: usize,
    /// Whether the kernel cuts, and glues together.
    offloads: Offloads,
    /// It does not glue, though it is to,
    is_gro_suspended: AtomicBool,
    /// and for good.
    is_gro_to_blame: AtomicBool,
}

impl Socket {
    /// A socket bound to `address`.
    ///
    /// # Errors
    /// If it cannot be bound, or the kernel lacks a feature that it needs.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        enlarge(&socket);
        Ok(Self {
            socket,
            cuts: state.max_gso_segments(),
            state,
            offloads: Offloads::ALL,
            is_gro_suspended: AtomicBool::new(false),
            is_gro_to_blame: AtomicBool::new(false),
        })
    }

    /// Says which offloads of sockets are used from now on. All are at first that the kernel has.
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        if self.state.gro_segments() > 1 {
            set_gro(&self.socket, offloads.udp_gro)?;
        }
        self.offloads = offloads;
        Ok(())
    }

    /// Whether datagrams of one node come together.
    #[must_use]
    pub fn glues(&self) -> bool {
        self.is_to_glue() && !self.is_gro_suspended.load(Ordering::Relaxed)
    }

    /// Whether it would if nothing was wrong with that.
    pub(crate) fn is_to_glue(&self) -> bool {
        self.offloads.udp_gro && self.state.gro_segments() > 1
    }

    /// Notes that the offload that was put aside misbehaves.
    pub fn disable_gro_for_good(&self) {
        self.is_gro_to_blame.store(true, Ordering::Relaxed);
    }

    /// Whether it does.
    #[must_use]
    pub fn is_gro_to_blame(&self) -> bool {
        self.is_gro_to_blame.load(Ordering::Relaxed)
    }

    /// Lets nothing come together for now, or lets it again if it is to.
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn put_gluing_aside(&self, is_aside: bool) -> io::Result<()> {
        if self.is_to_glue() {
            set_gro(&self.socket, !is_aside)?;
        }
        self.is_gro_suspended.store(is_aside, Ordering::Relaxed);
        Ok(())
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How many datagrams of `length` bytes can leave in one call.
    #[must_use]
    pub fn at_once(&self, length: usize) -> usize {
        let most = if self.offloads.udp_segment { self.cuts } else { 1 };
        most.min(LONGEST / length.max(1)).max(1)
    }

    /// Sends `datagrams`, which stand one behind the other, all of `length` bytes but for a shorter last one, at most
    /// [`Self::at_once`].
    ///
    /// # Errors
    /// `EAGAIN` if the kernel takes no more at the moment; `EMSGSIZE` if they are longer than the device's MTU.
    pub fn send(&self, to: SocketAddr, datagrams: &[u8], length: usize) -> io::Result<()> {
        let segment_size = (datagrams.len() > length).then_some(length);
        let transmit =
            Transmit { destination: to, ecn: None, contents: datagrams, segment_size, src_ip: None };
        self.state.try_send(UdpSockRef::from(&self.socket), &transmit)
    }

    /// Takes the datagrams of one address into `into`, which has room for [`MOST`] bytes.
    ///
    /// # Errors
    /// `EAGAIN` if nothing has.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<Arrival> {
        let mut meta = [RecvMeta::default()];
        self.state.recv(UdpSockRef::from(&self.socket), &mut [IoSliceMut::new(into)], &mut meta)?;
        let [RecvMeta { addr, len, stride, timestamp, .. }] = meta;
        let waited = timestamp.and_then(|at| (UNIX_EPOCH + at).elapsed().ok()).unwrap_or_default();
        Ok(Arrival { from: addr, bytes: len, length: stride, waited })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Datagrams that have come together, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender.
    pub from: SocketAddr,
    /// All their bytes.
    pub bytes: usize,
    /// The length of each but the last one, which may be shorter.
    pub length: usize,
    /// How long they waited in the kernel until this thread received them.
    pub waited: Duration,
}

/// Says whether the kernel merges the datagrams of one address.
fn set_gro(socket: &UdpSocket, is_on: bool) -> io::Result<()> {
    let value = libc::c_int::from(is_on);
    let length = size_of_val(&value) as libc::socklen_t;
    let (socket, place) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the value is live, and of the length that is given.
    let result = unsafe { libc::setsockopt(socket, libc::SOL_UDP, libc::UDP_GRO, place, length) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the kernel's buffers large, beyond the general limit if this process may.
fn enlarge(socket: &UdpSocket) {
    use rustix::net::sockopt;
    // Smaller ones only lose more in bursts.
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, KERNEL_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, KERNEL_BUFFER));
    let _ = sockopt::set_socket_send_buffer_size_force(socket, KERNEL_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, KERNEL_BUFFER));
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Instant;

    use super::*;

    fn socket() -> Socket {
        Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// All that comes until `count` bytes have, as datagrams.
    fn receive(socket: &Socket, count: usize) -> Vec<Vec<u8>> {
        let (mut datagrams, mut taken, begun) = (Vec::new(), 0, Instant::now());
        let mut buffer = vec![0; MOST];
        while taken < count {
            assert!(begun.elapsed() < Duration::from_secs(10), "{taken} of {count} bytes came");
            let Ok(arrival) = socket.receive(&mut buffer) else { continue };
            taken += arrival.bytes;
            datagrams.extend(buffer[..arrival.bytes].chunks(arrival.length).map(<[u8]>::to_vec));
        }
        datagrams
    }

    #[test]
    fn batches_arrive_unchanged() {
        let (from, to) = (socket(), socket());
        for (length, count) in [(1, 1), (100, 1), (100, 7), (1400, 40), (9000, 7), (13_107, 4)] {
            let sent: Vec<u8> = (0..length * count - length / 3).map(|at| (at / 7) as u8).collect();
            assert!(count <= from.at_once(length), "{count} of {length}");
            from.send(to.address().unwrap(), &sent, length).unwrap();
            let expected: Vec<Vec<u8>> = sent.chunks(length).map(<[u8]>::to_vec).collect();
            assert_eq!(receive(&to, sent.len()), expected);
        }
    }

    #[test]
    fn without_offloads_each_leaves_and_comes_alone() {
        let (mut from, mut to) = (socket(), socket());
        assert!(from.at_once(100) > 1 && to.glues(), "the kernel has both");
        let sent = [7; 1000];
        to.set_offloads(Offloads::NONE).unwrap();
        from.send(to.address().unwrap(), &sent, 100).unwrap();
        let (mut buffer, mut taken) = (vec![0; MOST], 0);
        while taken < sent.len() {
            let Ok(arrival) = to.receive(&mut buffer) else { continue };
            assert_eq!((arrival.bytes, arrival.length), (100, 100));
            taken += arrival.bytes;
        }
        from.set_offloads(Offloads::NONE).unwrap();
        assert!(from.at_once(100) == 1 && !to.glues());
    }

    #[test]
    fn too_long_datagrams_are_refused() {
        let from = socket();
        let error = from.send(from.address().unwrap(), &vec![0; LONGEST + 1], LONGEST + 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn an_arrival_tells_how_long_it_waited_in_the_kernel() {
        const PAUSE: Duration = Duration::from_millis(20);
        let (from, to) = (socket(), socket());
        let mut buffer = vec![0; MOST];
        let mut arrive = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(10) {
                if let Ok(arrival) = to.receive(&mut buffer) {
                    return arrival.waited;
                }
            }
            panic!("nothing arrives");
        };
        let begun = Instant::now();
        from.send(to.address().unwrap(), &[1; 100], 100).unwrap();
        sleep(PAUSE);
        // Of another length, so that the kernel does not merge them.
        from.send(to.address().unwrap(), &[2; 200], 200).unwrap();
        let (first, second) = (arrive(), arrive());
        assert!(first >= PAUSE && first <= begun.elapsed(), "{first:?}");
        assert!(first >= second + PAUSE / 2, "{first:?} {second:?}");
    }
}
