//! A node with which this one has a session.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overlay::message::{InvalidMessage, Report};
use overlay::parts::Reassembly;
use overlay::path_bursts::{PathBursts, Wrong};
use overlay::path_liveness::PathLiveness;
use overlay::path_mtu::PathMtu;
use overlay::path_quality::PathQuality;
use overlay::path_rate::PathRate;
use overlay::topology::NodeId;
use overlay::tunnel::header::{Header, Protection};
use overlay::tunnel::keys::{Direction, Root, SECRET};
use overlay::tunnel::lane::{Limits, Opening, ReceiveCounts, Refused, Sealing, overhead};

use crate::carrier::{Carrier, Fallback, Source};
use crate::counters::Counter;
use crate::lock::lock;
use crate::path_limit::path_limit;
use crate::socket;

/// Lanes of a node to another one. Threads that send share them by turns.
pub(crate) const LANES: u8 = 4;

/// Bytes of a VXLAN header, behind which a frame stands that the kernel carries.
const VXLAN_HEADER: usize = 8;

/// The highest number of a VXLAN.
const MOST_VNI: u32 = (1 << 24) - 1;

/// The agreement of two nodes over their TLS connection. It is used once: with the same keys nonces would repeat.
pub struct Agreement {
    /// The secret that the connection has exported under [`Root::LABEL`].
    pub secret: [u8; SECRET],
    /// Which way this node sends.
    pub direction: Direction,
    /// This node's number for the session, unique in it.
    pub own: u32,
    /// The peer's number.
    pub theirs: u32,
    /// When this node changes keys.
    pub limits: Limits,
}

/// The agreement of two nodes that trust the path between them. Nothing is sealed: a sender with the peer's address
/// can forge anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainAgreement {
    /// This node's number for the session, unique in it.
    pub own: u32,
    /// The peer's number.
    pub theirs: u32,
    /// Whether both let the [`kernel`](crate::kernel) carry frames.
    pub kernel: bool,
}

/// How a node is reached.
#[derive(Clone)]
pub struct Path {
    /// Where it receives.
    pub address: SocketAddr,
    /// Bytes of a datagram that the way there may carry at most.
    pub longest: usize,
    /// The fallback carrier, used as long as the socket's datagrams are not known to arrive.
    pub fallback: Option<Arc<dyn Fallback>>,
}

/// The one or the other: an [`Agreement`] or a [`PlainAgreement`].
pub struct Terms {
    root: Root,
    direction: Direction,
    own: u32,
    theirs: u32,
    limits: Limits,
    kernel: bool,
}

impl From<Agreement> for Terms {
    fn from(agreed: Agreement) -> Self {
        let Agreement { secret, direction, own, theirs, limits } = agreed;
        Self { root: Root::new(&secret), direction, own, theirs, limits, kernel: false }
    }
}

impl From<PlainAgreement> for Terms {
    fn from(agreed: PlainAgreement) -> Self {
        let PlainAgreement { own, theirs, kernel } = agreed;
        // Direction and limits belong to keys, and there are none.
        let (direction, limits) = (Direction::FromDialer, Limits::default());
        Self { root: Root::plain(), direction, own, theirs, limits, kernel }
    }
}

/// How it stands with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// This node's number for the session that it seals with.
    pub session: u32,
    /// How the session's datagrams are protected.
    pub protection: Protection,
    /// Where its datagrams come from.
    pub address: SocketAddr,
    /// How datagrams get there.
    pub carrier: Carrier,
    /// Whether datagrams get there and back by themselves, by present knowledge.
    pub is_alive: bool,
    /// Bytes of a datagram that arrives there, by present knowledge.
    pub arrives: usize,
    /// Whether the kernel carries frames between stations.
    pub by_kernel: bool,
    /// Frames, and segments, that the kernel has sent there since there is a session.
    pub kernel_frames: u64,
    /// How often the keys of the first lane have changed.
    pub generation: u16,
    /// How long a datagram and its answer take of late; `None` before the first answer.
    pub round_trip: Option<Duration>,
    /// The least of that on this path.
    pub least_round_trip: Option<Duration>,
    /// The best bytes per second of the last minute that have arrived there, by the node's reports.
    pub rate: Option<u64>,
    /// Datagrams that were sent there, in all sessions, by the node's reports, which it sends each second as long as
    /// there are frames.
    pub sent: u64,
    /// The lost ones of them.
    pub lost: u64,
    /// Datagrams that have come from there and were opened, in all sessions.
    pub received: u64,
}

/// Datagrams of a session, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Sent to the peer, by its reports.
    pub sent: u64,
    /// The lost ones of them.
    pub lost: u64,
    /// Received from it.
    pub received: u64,
}

impl Totals {
    pub fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.received += other.received;
    }
}

/// See the module.
pub(crate) struct Peer {
    pub node: NodeId,
    pub session: u32,
    /// Nothing is sealed with it before the peer uses it.
    pub is_expected: AtomicBool,
    protection: Protection,
    /// Bytes that a datagram has more than its content.
    pub overhead: usize,
    /// Where its datagrams come from, or came from last.
    address: Mutex<SocketAddr>,
    sealing: [Mutex<Sealing>; LANES as usize],
    opening: [Mutex<Opening>; LANES as usize],
    mtu: Mutex<PathMtu>,
    /// The value of [`PathMtu`].
    arrives: AtomicUsize,
    bursts: Mutex<PathBursts>,
    /// The verdict of [`PathBursts`].
    may_leave_together: AtomicBool,
    fallback: Option<Arc<dyn Fallback>>,
    liveness: Mutex<PathLiveness>,
    /// The verdict of [`PathLiveness`].
    is_alive: AtomicBool,
    short_cut: Option<ShortCut>,
    pub reassembly: Mutex<Reassembly>,
    frames: AtomicU32,
    quality: Mutex<PathQuality>,
    /// How much comes from there at a time.
    rate: Mutex<PathRate>,
    /// Frames have passed since the last check.
    is_used: AtomicBool,
}

impl Peer {
    pub fn new(node: NodeId, path: Path, agreed: impl Into<Terms>, now: Duration) -> Self {
        let Path { address, longest, fallback } = path;
        let Terms { root, direction: there, own, theirs, limits, kernel } = agreed.into();
        let sealing = |lane| Sealing::new(&root, there, lane, theirs, limits, now);
        let mtu = PathMtu::new(longest.min(socket::LONGEST), now);
        Self {
            node,
            session: own,
            is_expected: AtomicBool::new(false),
            protection: root.protection(),
            overhead: overhead(root.protection()),
            address: Mutex::new(address),
            sealing: std::array::from_fn(|lane| Mutex::new(sealing(lane as u8))),
            opening: std::array::from_fn(|lane| Mutex::new(Opening::new(&root, there.reverse(), lane as u8))),
            arrives: AtomicUsize::new(mtu.arrives()),
            mtu: Mutex::new(mtu),
            bursts: Mutex::default(),
            may_leave_together: AtomicBool::new(true),
            fallback,
            liveness: Mutex::new(PathLiveness::new(now)),
            is_alive: AtomicBool::new(false),
            short_cut: kernel.then(|| ShortCut::new(address, own, theirs, now)).flatten(),
            reassembly: Mutex::default(),
            frames: AtomicU32::new(0),
            quality: Mutex::new(PathQuality::new(now)),
            rate: Mutex::default(),
            is_used: AtomicBool::new(false),
        }
    }

    /// Takes over the knowledge of the path from `before`, a session with the same node, if the path is the
    /// same.
    pub fn follow(&self, before: &Self, now: Duration) {
        let known = lock(&before.mtu).clone();
        if self.address() == before.address() && lock(&self.mtu).longest() == known.longest() {
            self.search(|mtu| *mtu = known);
            let known = lock(&before.bursts).of_next_session();
            self.try_bursts(|bursts| *bursts = known);
            let known = lock(&before.liveness).of_next_session(now);
            self.watch(|liveness| *liveness = known);
            if let (Some(short_cut), Some(before)) = (&self.short_cut, &before.short_cut) {
                short_cut.follow(before);
            }
            let known = before.quality().of_next_session(now);
            *self.quality() = known;
        }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        *lock(&self.address)
    }

    /// The sealing end of `lane`.
    pub fn sealing(&self, lane: u8) -> MutexGuard<'_, Sealing> {
        lock(&self.sealing[usize::from(lane % LANES)])
    }

    /// Opens `datagram`, which has come from `from`: this is the peer's address from now on. A plain datagram has to come
    /// from the known address, and one from a connection has to be of its session.
    pub fn open<'a>(
        &self,
        header: &Header,
        datagram: &'a mut [u8],
        from: Source,
    ) -> Result<&'a mut [u8], Counter> {
        let is_right = match from {
            Source::Udp(from) => self.protection == Protection::Sealed || is_same(self.address(), from),
            Source::Connection(session) => session == self.session,
        };
        if !is_right {
            return Err(Counter::WrongAddress);
        }
        let opening = self.opening.get(usize::from(header.lane)).ok_or(Refused::UnknownKey)?;
        let opened = lock(opening).open(header, datagram)?;
        if let (Protection::Sealed, Source::Udp(from)) = (self.protection, from) {
            *lock(&self.address) = from;
        }
        Ok(opened)
    }

    /// The present carrier of datagrams: the socket if they arrive by it, and if there is no other way.
    pub fn carrier(&self) -> Carrier {
        let stands = || self.fallback.as_ref().is_some_and(|fallback| fallback.stands());
        if !self.is_alive.load(Ordering::Relaxed) && stands() { Carrier::Connection } else { Carrier::Udp }
    }

    /// The other way there.
    pub fn fallback(&self) -> Option<&dyn Fallback> {
        self.fallback.as_deref()
    }

    /// Lets `change` act on the state of whether the socket's datagrams arrive.
    pub fn watch<T>(&self, change: impl FnOnce(&mut PathLiveness) -> T) -> T {
        let mut liveness = lock(&self.liveness);
        let result = change(&mut liveness);
        self.is_alive.store(liveness.is_alive(), Ordering::Relaxed);
        result
    }

    /// How the kernel carries frames there, if it may.
    pub fn short_cut(&self) -> Option<&ShortCut> {
        self.short_cut.as_ref()
    }

    /// Bytes of a frame that should arrive there if the kernel carries it: its datagrams are as long as the socket's.
    pub fn longest_by_kernel(&self) -> usize {
        self.arrives(Carrier::Udp).saturating_sub(VXLAN_HEADER)
    }

    /// Bytes of a datagram that arrives there by `carrier`, by present knowledge.
    pub fn arrives(&self, carrier: Carrier) -> usize {
        match carrier {
            Carrier::Udp => self.arrives.load(Ordering::Relaxed),
            Carrier::Connection => socket::LONGEST,
        }
    }

    /// Lets `change` act on the search for the length that arrives.
    pub fn search<T>(&self, change: impl FnOnce(&mut PathMtu) -> T) -> T {
        let mut mtu = lock(&self.mtu);
        let result = change(&mut mtu);
        self.arrives.store(mtu.arrives(), Ordering::Relaxed);
        result
    }

    /// The length of a probe to send now in the search for the path MTU.
    pub fn next_probe(&self, now: Duration) -> Option<usize> {
        // Where the kernel knows no way, it knows of no wider device.
        let says = || path_limit(self.address()).unwrap_or_default().min(socket::LONGEST);
        self.search(|mtu| mtu.next_probe(now, says))
    }

    /// Lets `change` act on the state of datagrams that leave together.
    pub fn try_bursts<T>(&self, change: impl FnOnce(&mut PathBursts) -> T) -> T {
        let mut bursts = lock(&self.bursts);
        let result = change(&mut bursts);
        self.may_leave_together.store(bursts.wrong().is_none(), Ordering::Relaxed);
        result
    }

    /// True if datagrams to it may leave in one call, by present knowledge.
    pub fn may_leave_together(&self) -> bool {
        self.may_leave_together.load(Ordering::Relaxed)
    }

    /// The fault of datagrams sent in one call, if there is one.
    pub fn wrong_together(&self) -> Option<Wrong> {
        lock(&self.bursts).wrong()
    }

    /// How many of the datagrams to it arrive.
    pub fn quality(&self) -> MutexGuard<'_, PathQuality> {
        lock(&self.quality)
    }

    /// The peer has sent a report.
    pub fn reported(&self, report: &Report) -> Result<(), InvalidMessage> {
        let sealed = self.sealing.iter().map(|sealing| lock(sealing).total_sealed()).sum();
        self.quality().reported(report, sealed)
    }

    /// So many bytes have arrived from there together. `now` is when the kernel received them: a delayed thread finds a
    /// whole train at once, which would make the path seem faster than it is.
    pub fn arrived(&self, bytes: usize, now: Duration) {
        lock(&self.rate).arrived(bytes, now);
    }

    /// A frame passes.
    pub fn use_it(&self) {
        // Most often it is known already: threads that only look need not wait for each other.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// The report that the peer is to get now.
    pub fn next_report(&self, now: Duration) -> Option<Report> {
        let is_used = self.is_used.swap(false, Ordering::Relaxed);
        let ReceiveCounts { opened, missing } = self.heard();
        let is_due = self.quality().is_due(is_used, now);
        is_due.then(|| PathQuality::report(opened, missing, lock(&self.rate).best(now), now))
    }

    /// The counts of datagrams received on all lanes.
    fn heard(&self) -> ReceiveCounts {
        let lanes = self.opening.iter().map(|opening| lock(opening).heard());
        lanes.fold(ReceiveCounts::default(), |sum, lane| ReceiveCounts {
            opened: sum.opened + lane.opened,
            // A peer with false counters only deceives itself.
            missing: sum.missing.saturating_add(lane.missing),
        })
    }

    /// The traffic of this session.
    pub fn totals(&self) -> Totals {
        let (quality, heard) = (self.quality(), self.heard());
        Totals { sent: quality.sent(), lost: quality.lost(), received: heard.opened }
    }

    /// The public state. `totals` covers all sessions.
    pub fn state(&self, totals: Totals) -> PeerState {
        let (generation, _) = self.sealing(0).sealed();
        let quality = self.quality().clone();
        let (round_trip, rate) = (quality.round_trip(), quality.rate());
        let Totals { sent, lost, received } = totals;
        let carrier = self.carrier();
        PeerState {
            session: self.session,
            protection: self.protection,
            address: self.address(),
            carrier,
            is_alive: self.is_alive.load(Ordering::Relaxed),
            arrives: self.arrives(carrier),
            by_kernel: self.short_cut.as_ref().is_some_and(ShortCut::is_alive),
            kernel_frames: 0,
            generation,
            round_trip: round_trip.map(|time| time.smoothed),
            least_round_trip: round_trip.map(|time| time.least),
            rate,
            sent,
            lost,
            received,
        }
    }

    /// A number for a frame that travels in parts.
    pub fn next_frame(&self) -> u32 {
        self.frames.fetch_add(1, Ordering::Relaxed)
    }
}

/// How the kernel carries frames there, and from there.
pub(crate) struct ShortCut {
    pub address: Ipv4Addr,
    /// By which this node knows them (RFC 7348).
    pub own: u32,
    /// By which the peer does.
    pub theirs: u32,
    liveness: Mutex<PathLiveness>,
    /// The verdict of [`PathLiveness`].
    is_alive: AtomicBool,
    /// Bytes of the last question that was answered.
    arrives: AtomicUsize,
}

impl ShortCut {
    /// `None` for an address that the programs do not know.
    fn new(address: SocketAddr, own: u32, theirs: u32, now: Duration) -> Option<Self> {
        let IpAddr::V4(address) = address.ip().to_canonical() else { return None };
        // Numbers of sessions follow each other: no two that there are at one time have the same.
        let [own, theirs] = [own, theirs].map(|session| session & MOST_VNI);
        let liveness = Mutex::new(PathLiveness::new(now));
        let (is_alive, arrives) = (AtomicBool::new(false), AtomicUsize::new(0));
        Some(Self { address, own, theirs, liveness, is_alive, arrives })
    }

    /// Takes over the knowledge of the way from `before`.
    fn follow(&self, before: &Self) {
        let known = lock(&before.liveness).clone();
        self.watch(|liveness| *liveness = known);
        self.arrives.store(before.arrives(), Ordering::Relaxed);
    }

    /// Bytes of a frame that is known to arrive as long as any do.
    pub fn arrives(&self) -> usize {
        self.arrives.load(Ordering::Relaxed)
    }

    /// The peer has answered a question of `length` bytes. True if that changes the state.
    pub fn answered(&self, length: usize, now: Duration) -> bool {
        let was_alive = self.is_alive();
        self.watch(|liveness| liveness.answered(now));
        self.arrives.swap(length, Ordering::Relaxed) != length || self.is_alive() != was_alive
    }

    /// True if frames are known to arrive.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
    }

    /// Lets `change` act on the state of whether they do.
    pub fn watch<T>(&self, change: impl FnOnce(&mut PathLiveness) -> T) -> T {
        let mut liveness = lock(&self.liveness);
        let result = change(&mut liveness);
        self.is_alive.store(liveness.is_alive(), Ordering::Relaxed);
        result
    }
}

/// True if both are one address, perhaps written as IPv6 once (RFC 4291, section 2.5.5.2).
fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip().to_canonical(), a.port()) == (b.ip().to_canonical(), b.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn a_peer_gets_reports_each_second_while_it_is_used() {
        let agreed = PlainAgreement { own: 1, theirs: 2, kernel: false };
        let path = Path { address: ([10, 0, 0, 1], 7474).into(), longest: 1472, fallback: None };
        let peer = Peer::new(NodeId(2), path, agreed, NOW);
        let after = |seconds| NOW + Duration::from_secs(seconds);
        assert!(peer.next_report(after(0)).is_none());
        let count = |from, to| (from..to).filter(|at| peer.next_report(after(*at)).is_some()).count();
        assert_eq!(count(1, 60), 59);
        assert!(count(60, 120) < 10 && peer.quality().is_idle(after(119)));
        peer.use_it();
        assert_eq!(count(120, 180), 60);
    }

    #[test]
    fn the_device_mtu_is_queried_again_each_minute() {
        let agreed = PlainAgreement { own: 1, theirs: 2, kernel: false };
        let address = SocketAddr::from(([127, 0, 0, 1], 7474));
        let peer = Peer::new(NodeId(2), Path { address, longest: 1472, fallback: None }, agreed, NOW);
        let longest_after = |seconds| {
            peer.next_probe(NOW + Duration::from_secs(seconds));
            peer.search(|mtu| mtu.longest())
        };
        assert_eq!(longest_after(59), 1472);
        assert_eq!(longest_after(60), path_limit(address).unwrap());
    }

    #[test]
    fn an_address_may_be_written_as_ipv6() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(is_same(address("10.0.0.1:1"), address("[::ffff:10.0.0.1]:1")));
        assert!(!is_same(address("10.0.0.1:1"), address("10.0.0.1:2")));
        assert!(!is_same(address("10.0.0.1:1"), address("[::10.0.0.1]:1")));
    }
}
