//! Offloads: work that the kernel does for many frames or datagrams at once, and tests of it.
//!
//! Kernels and drivers have had bugs in each of these. So each is tried with known bytes before it is used, in
//! a temporary network namespace, and can be disabled; without all of them everything works, more slowly. An offload that
//! misbehaves later is detected by its effects ([`faults`](crate::faults)).

use std::io;
use std::os::fd::AsFd;

use crate::tap;
use crate::trial::{self, Kernel, Real};

/// The offloads in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// To cut the bytes for one node into datagrams (`UDP_SEGMENT`).
    pub udp_segment: bool,
    /// To merge the datagrams of one node (`UDP_GRO`).
    pub udp_gro: bool,
    /// To take from a TAP, and to hand over, TCP segments longer than a frame.
    pub tcp_segments: bool,
    /// So for UDP.
    pub udp_segments: bool,
    /// To carry frames between stations on links that are not sealed ([`Kernel`](crate::kernel::Kernel)).
    pub kernel: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offload {
    /// [`Offloads::udp_segment`].
    UdpSegment,
    /// [`Offloads::udp_gro`].
    UdpGro,
    /// [`Offloads::tcp_segments`].
    TcpSegments,
    /// [`Offloads::udp_segments`].
    UdpSegments,
    /// [`Offloads::kernel`].
    Kernel,
}

impl Offload {
    /// Each of them.
    pub const EACH: [Self; 5] =
        [Self::UdpSegment, Self::UdpGro, Self::TcpSegments, Self::UdpSegments, Self::Kernel];

    /// How it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UdpSegment => "udp-segment",
            Self::UdpGro => "udp-gro",
            Self::TcpSegments => "tcp-segments",
            Self::UdpSegments => "udp-segments",
            Self::Kernel => "kernel",
        }
    }

    /// The one that is called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::EACH.into_iter().find(|offload| offload.name() == name)
    }
}

impl Offloads {
    /// None.
    pub const NONE: Self =
        Self { udp_segment: false, udp_gro: false, tcp_segments: false, udp_segments: false, kernel: false };
    /// All.
    pub const ALL: Self =
        Self { udp_segment: true, udp_gro: true, tcp_segments: true, udp_segments: true, kernel: true };

    /// These but for `off`.
    #[must_use]
    pub fn without(mut self, off: &[Offload]) -> Self {
        for offload in off {
            *self.place(*offload) = false;
        }
        self
    }

    /// The offloads that are on.
    pub fn on(mut self) -> impl Iterator<Item = Offload> {
        Offload::EACH.into_iter().filter(move |offload| *self.place(*offload))
    }

    fn place(&mut self, offload: Offload) -> &mut bool {
        match offload {
            Offload::UdpSegment => &mut self.udp_segment,
            Offload::UdpGro => &mut self.udp_gro,
            Offload::TcpSegments => &mut self.tcp_segments,
            Offload::UdpSegments => &mut self.udp_segments,
            Offload::Kernel => &mut self.kernel,
        }
    }

    /// Tries each of these, and returns the ones that the kernel has and does right. That takes milliseconds; for each
    /// that fails, some seconds.
    ///
    /// # Errors
    /// If there can be no network namespace with a bridge and TAPs to try them in.
    pub fn probe(self) -> io::Result<Self> {
        self.probe_with(&Real)
    }

    fn probe_with(self, kernel: &(impl Kernel + Sync)) -> io::Result<Self> {
        if self == Self::NONE {
            return Ok(self);
        }
        let apart = |run: &(dyn Fn() -> io::Result<Self> + Sync)| {
            let namespace = fabric::netns::create()?;
            fabric::netns::enter(namespace.as_fd(), run)?
        };
        let found = apart(&|| trial::run(self, kernel))?;
        // Without it all else works as before.
        let carries =
            self.kernel && apart(&|| trial::run_kernel(found, kernel)).is_ok_and(|found| found.kernel);
        Ok(Self { kernel: carries, ..found })
    }

    /// The offloads of a TAP.
    #[must_use]
    pub fn of_taps(self) -> tap::Offloads {
        let Self { tcp_segments: tcp, udp_segments: udp, .. } = self;
        tap::Offloads { checksum: tcp || udp, tcp, udp }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, IoSlice};
    use std::net::SocketAddr;

    use overlay::segment::vnet::{self, VnetHeader, gso};

    use super::*;
    use crate::socket::{Arrival, Socket};
    use crate::tap::Tap;

    #[test]
    fn all_offloads_pass_their_trial_on_this_kernel() {
        assert_eq!(Offloads::ALL.probe().unwrap(), Offloads::ALL);
    }

    /// It does not touch disabled offloads.
    struct Watched {
        offloads: Offloads,
    }

    impl Kernel for Watched {
        fn send(&self, socket: &Socket, to: SocketAddr, datagrams: &[u8], length: usize) -> io::Result<()> {
            assert!(self.offloads.udp_segment || datagrams.len() <= length);
            socket.send(to, datagrams, length)
        }

        fn write(&self, tap: &Tap, parts: &[IoSlice<'_>]) -> io::Result<()> {
            let is_on =
                if vnet_of(parts).is_udp() { self.offloads.udp_segments } else { self.offloads.tcp_segments };
            assert!(is_on || self.offloads.kernel);
            tap.write(parts)
        }
    }

    #[test]
    fn disabled_offloads_stay_disabled_and_are_not_tried() {
        let off = [
            Offloads::NONE,
            Offloads { udp_segment: false, ..Offloads::ALL },
            Offloads { udp_gro: false, ..Offloads::ALL },
            Offloads { tcp_segments: false, ..Offloads::ALL },
            Offloads { udp_segments: false, ..Offloads::ALL },
            Offloads { kernel: false, ..Offloads::ALL },
        ];
        for offloads in off {
            assert_eq!(offloads.probe_with(&Watched { offloads }).unwrap(), offloads);
        }
    }

    fn vnet_of(parts: &[IoSlice<'_>]) -> VnetHeader {
        VnetHeader::decode(parts[0].first_chunk().unwrap())
    }

    /// Of datagrams that leave together only the first one does.
    struct SendsTheFirst;

    impl Kernel for SendsTheFirst {
        fn send(&self, socket: &Socket, to: SocketAddr, datagrams: &[u8], length: usize) -> io::Result<()> {
            socket.send(to, &datagrams[..length.min(datagrams.len())], length)
        }
    }

    #[test]
    fn datagrams_that_do_not_leave_are_noticed() {
        let expected = Offloads { udp_segment: false, ..Offloads::ALL };
        assert_eq!(Offloads::ALL.probe_with(&SendsTheFirst).unwrap(), expected);
    }

    /// It does not say where one datagram ends and the next one begins.
    struct SaysNoLength;

    impl Kernel for SaysNoLength {
        fn receive(&self, socket: &Socket, into: &mut [u8]) -> io::Result<Arrival> {
            socket.receive(into).map(|arrival| Arrival { length: arrival.bytes, ..arrival })
        }
    }

    #[test]
    fn datagrams_without_an_end_are_noticed() {
        let expected = Offloads { udp_gro: false, ..Offloads::ALL };
        assert_eq!(Offloads::ALL.probe_with(&SaysNoLength).unwrap(), expected);
    }

    /// A kernel that accepts segments of one kind, and drops them.
    struct Swallows {
        udp: bool,
    }

    impl Kernel for Swallows {
        fn write(&self, tap: &Tap, parts: &[IoSlice<'_>]) -> io::Result<()> {
            let vnet = vnet_of(parts);
            if vnet.is_segment() && vnet.is_udp() == self.udp { Ok(()) } else { tap.write(parts) }
        }
    }

    #[test]
    fn segments_that_do_not_leave_are_noticed() {
        let expected = Offloads { tcp_segments: false, kernel: false, ..Offloads::ALL };
        assert_eq!(Offloads::ALL.probe_with(&Swallows { udp: false }).unwrap(), expected);
        let expected = Offloads { udp_segments: false, ..Offloads::ALL };
        assert_eq!(Offloads::ALL.probe_with(&Swallows { udp: true }).unwrap(), expected);
    }

    /// A kernel that reports a wrong size of the pieces of a UDP segment.
    struct SaysAWrongSize;

    impl Kernel for SaysAWrongSize {
        fn read(&self, tap: &Tap, into: &mut [u8]) -> io::Result<usize> {
            let length = tap.read(into)?;
            let header = into.first_chunk_mut::<{ vnet::LENGTH }>().unwrap();
            let vnet = VnetHeader::decode(header);
            if vnet.gso_type == gso::UDP_L4 {
                *header = VnetHeader { gso_size: vnet.gso_size / 2, ..vnet }.encode();
            }
            Ok(length)
        }
    }

    #[test]
    fn segments_of_a_wrong_size_are_noticed() {
        let expected = Offloads { udp_segments: false, ..Offloads::ALL };
        assert_eq!(Offloads::ALL.probe_with(&SaysAWrongSize).unwrap(), expected);
    }

    /// A bit of the received data has changed.
    struct Damages;

    impl Kernel for Damages {
        fn read(&self, tap: &Tap, into: &mut [u8]) -> io::Result<usize> {
            let length = tap.read(into)?;
            into[length - 1] ^= 1;
            Ok(length)
        }

        fn receive(&self, socket: &Socket, into: &mut [u8]) -> io::Result<Arrival> {
            let arrival = socket.receive(into)?;
            into[arrival.bytes - 1] ^= 1;
            Ok(arrival)
        }
    }

    #[test]
    fn damaged_datagrams_are_noticed() {
        assert_eq!(Offloads::ALL.probe_with(&Damages).unwrap(), Offloads::NONE);
    }
}
