//! Offloads: work that the kernel does for many frames or datagrams at once, and tests of it.
//!
//! Kernels and drivers have had bugs in each of these. So each is tried with known bytes before it is used, in
//! a temporary network namespace, and can be disabled; without all of them everything works, more slowly. An offload that
//! misbehaves later is detected by its effects ([`faults`](crate::faults)).

use crate::tap;

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

    /// The offloads of a TAP.
    #[must_use]
    pub fn of_taps(self) -> tap::Offloads {
        let Self { tcp_segments: tcp, udp_segments: udp, .. } = self;
        tap::Offloads { checksum: tcp || udp, tcp, udp }
    }
}
