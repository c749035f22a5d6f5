//! The path MTU: the longest datagram that arrives (RFC 8899).
//!
//! No error reports it reliably: routers drop too long datagrams, often silently. So probes of some length are sent, and
//! the peer answers. The found length is confirmed now and then, as paths change:
//!
//! ```text
//!            ┌───────── a probe of a length between is answered, or lost five times ───────────┐
//!            ▼                                                                                 │
//!   base ─▶ searching [ arrives │ does not ] ── the two are close ──▶ complete ── after some time: search again
//!                     ▲                                                │
//!                     └──── what arrived does not any more: base ◀─────┘
//! ```
//!
//! A lossy path also loses probes. So the found length counts as lost only if short probes are answered meanwhile.
//!
//! A length that the device refuses does not even leave, and is tried again in the next search, as a device's MTU may change. Then the
//! kernel is asked for the device's present limit. A larger limit than ever before is tried; below a smaller one all lengths are
//! still tried, as it may only be a cached router message that is minutes old.

use std::mem;
use std::time::Duration;

/// The payload that every path carries: the minimum MTU of IPv6, without its header and UDP's.
pub const BASE: usize = 1280 - 40 - 8;

/// A probe is sent again when it is not answered for so long,
const AGAIN: Duration = Duration::from_millis(200);

/// so many are sent of one length before it is taken to be too long,
const ATTEMPTS: u32 = 5;

/// and the answer to the last may take so long. An answer that comes later still counts.
const PATIENCE: Duration = Duration::from_millis(500);

/// A probe that is sent again to confirm a length has a short one beside it. So many of them must be answered.
const EVIDENCE: u32 = 3;

/// How often a length is confirmed again: a stream that gets nothing through tries again less and less often.
const CONFIRM: Duration = Duration::from_secs(1);

/// How often a larger length is tried.
const RAISE: Duration = Duration::from_secs(60);

/// A search that is so close is over.
const CLOSE: usize = 8;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug)]
struct Probe {
    length: usize,
    sent: Duration,
    attempts: u32,
    /// A short probe is sent beside it.
    wants_beside: bool,
    /// Short ones that were answered.
    answered_beside: u32,
}

/// The search for one path.
#[derive(Clone, Debug)]
pub struct PathMtu {
    /// Arrives, by present knowledge.
    arrives: usize,
    /// Something was answered.
    is_known: bool,
    /// The most that is tried; one more does not arrive.
    limit: usize,
    /// The largest limit of the device so far, as the kernel has reported,
    longest: usize,
    /// and the part of it that was not refused since the last search began.
    device: usize,
    /// It is tried at once whether all of that arrives: most often it does.
    hopeful: bool,
    /// Under way.
    probe: Option<Probe>,
    /// When the found length is confirmed next.
    confirm_at: Duration,
    /// When a larger one is tried next.
    raise_at: Duration,
}

impl PathMtu {
    /// A search on a path. Its first device sends at most `device` bytes.
    #[must_use]
    pub fn new(device: usize, now: Duration) -> Self {
        let device = device.max(BASE);
        let raise_at = now + RAISE;
        Self {
            arrives: BASE,
            is_known: false,
            limit: device,
            longest: device,
            device,
            hopeful: true,
            probe: None,
            confirm_at: now,
            raise_at,
        }
    }

    /// Bytes of a datagram that arrives, by present knowledge.
    #[must_use]
    pub fn arrives(&self) -> usize {
        self.arrives
    }

    /// The largest limit of the device so far, as the kernel has reported.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The length of a probe to send now. When a search starts, `says` returns the kernel's present limit of
    /// the device.
    pub fn next_probe(&mut self, now: Duration, says: impl FnOnce() -> usize) -> Option<usize> {
        if let Some(probe) = &mut self.probe {
            if mem::take(&mut probe.wants_beside) {
                return Some(BASE);
            }
            if now < probe.due() {
                return None;
            }
            if probe.attempts == ATTEMPTS {
                let probe = *probe;
                self.lost(probe, now);
            }
        }
        if now >= self.raise_at {
            self.longest = self.longest.max(says());
            (self.device, self.limit) = (self.longest, self.longest);
            (self.hopeful, self.raise_at) = (true, now + RAISE);
        }
        let again = self.probe.map(|probe| Probe {
            sent: now,
            attempts: probe.attempts + 1,
            wants_beside: probe.length == self.arrives && probe.length > BASE,
            ..probe
        });
        self.probe = again.or_else(|| Some(Probe::new(self.wanted(now)?, now)));
        self.probe.map(|probe| probe.length)
    }

    /// When [`Self::next_probe`] has the next one.
    #[must_use]
    pub fn due(&self, now: Duration) -> Duration {
        match self.probe {
            Some(probe) => probe.due(),
            None if self.is_searching() => now,
            None => self.confirm_at.min(self.raise_at),
        }
    }

    /// Probing is interrupted. Losses before this do not count later.
    pub fn interrupt(&mut self) {
        self.probe = None;
    }

    /// The peer has answered a probe of `length` bytes.
    pub fn arrived(&mut self, length: usize, now: Duration) {
        if length < self.arrives || length > self.device {
            let beside = self.probe.as_mut().filter(|_| length == BASE);
            beside.into_iter().for_each(|probe| probe.answered_beside += 1);
            return;
        }
        (self.arrives, self.is_known) = (length, true);
        self.limit = self.limit.max(length);
        self.confirm_at = now + CONFIRM;
        self.probe = self.probe.filter(|probe| probe.length > length);
    }

    /// The device cannot send datagrams of `length` bytes at present.
    pub fn refused(&mut self, length: usize) {
        let possible = length.saturating_sub(1).max(BASE);
        self.device = self.device.min(possible);
        self.limit = self.limit.min(possible);
        self.hopeful = false;
        if possible < self.arrives {
            self.arrives = BASE;
        }
        self.probe = self.probe.filter(|probe| probe.length <= possible);
    }

    fn is_searching(&self) -> bool {
        self.is_known && self.limit - self.arrives >= CLOSE
    }

    /// The next length to try.
    fn wanted(&self, now: Duration) -> Option<usize> {
        let is_searching = self.is_searching();
        if is_searching && self.hopeful {
            // That this arrives confirms the shorter, too: where it is seldom asked, that would be due each time.
            return Some(self.limit);
        }
        if now >= self.confirm_at {
            return Some(self.arrives);
        }
        is_searching.then(|| usize::midpoint(self.arrives, self.limit + 1))
    }

    /// `probe` was not answered, however often it was sent.
    fn lost(&mut self, probe: Probe, now: Duration) {
        self.probe = None;
        if probe.length > self.arrives {
            (self.limit, self.hopeful) = (probe.length - 1, false);
        } else if probe.answered_beside >= EVIDENCE {
            // Starts again with the full limit of the device: the cause of the losses may be gone.
            (self.arrives, self.limit, self.hopeful) = (BASE, self.device, true);
            self.confirm_at = now + CONFIRM;
        } else if probe.answered_beside == 0 {
            // Nothing arrives.
            self.confirm_at = now + CONFIRM;
        }
        // Else too much is lost to tell: it is due again at once.
    }
}

impl Probe {
    fn new(length: usize, now: Duration) -> Self {
        Self { length, sent: now, attempts: 1, wants_beside: false, answered_beside: 0 }
    }

    /// When it is sent again, or lost.
    fn due(&self) -> Duration {
        self.sent + if self.attempts < ATTEMPTS { AGAIN } else { PATIENCE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search, and the path that it is about.
    struct World {
        mtu: PathMtu,
        now: Duration,
        /// The length that arrives.
        path: usize,
        /// Of a hundred probes so many are lost.
        loss: u64,
        random: u64,
        /// The most that the device takes,
        takes: usize,
        /// and that the kernel says it does.
        says: usize,
        probes: u64,
    }

    impl World {
        fn new(device: usize, path: usize) -> Self {
            Self {
                mtu: PathMtu::new(device, Duration::ZERO),
                now: Duration::ZERO,
                path,
                loss: 0,
                random: 1,
                takes: usize::MAX,
                says: device,
                probes: 0,
            }
        }

        /// Lets time pass.
        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                while let Some(length) = self.mtu.next_probe(self.now, || self.says) {
                    self.probes += 1;
                    if length > self.takes {
                        self.mtu.refused(length);
                    } else if length <= self.path && !self.is_lost() {
                        self.mtu.arrived(length, self.now);
                    }
                }
                assert!(self.mtu.due(self.now) > self.now, "nothing is due that is not done");
                self.now = self.mtu.due(self.now).min(end);
            }
        }

        fn is_lost(&mut self) -> bool {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % 100 < self.loss
        }

        fn finds(&self) -> bool {
            self.mtu.arrives() <= self.path.max(BASE) && self.mtu.arrives() + CLOSE > self.path
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_path_mtu_is_found() {
        for (device, path) in [
            (1472, 1472),
            (1472, 1400),
            (8972, 8972),
            (8972, 1472),
            (65_507, 1280),
            (8972, 4000),
            (1300, 1232),
        ] {
            let mut world = World::new(device, path);
            world.run(MINUTE);
            assert!(world.finds(), "{device}, {path}: {:?}", world.mtu);
        }
    }

    #[test]
    fn the_device_mtu_is_found_at_once() {
        let mut world = World::new(1472, 1472);
        world.run(Duration::from_millis(1));
        assert_eq!((world.mtu.arrives(), world.probes), (1472, 2));
    }

    #[test]
    fn lost_probes_are_no_verdict() {
        for loss in [5, 20, 33] {
            let mut world = World { loss, ..World::new(8972, 4000) };
            world.run(10 * MINUTE);
            assert!(world.finds(), "{loss} % are lost: {:?}", world.mtu);
        }
    }

    #[test]
    fn a_black_hole_is_noticed_within_seconds() {
        let mut world = World::new(8972, 8972);
        world.run(MINUTE);
        assert_eq!(world.mtu.arrives(), 8972);
        world.path = 1472;
        world.run(Duration::from_millis(2300));
        assert!(world.mtu.arrives() <= 1472, "{:?}", world.mtu);
        world.run(MINUTE);
        assert!(world.finds(), "{:?}", world.mtu);
    }

    #[test]
    fn a_recovered_mtu_is_found_at_once() {
        let mut world = World::new(1472, 1472);
        world.run(MINUTE);
        world.path = BASE;
        while world.mtu.arrives() > BASE {
            world.run(AGAIN);
        }
        world.path = 1472;
        world.run(PATIENCE);
        assert_eq!(world.mtu.arrives(), 1472, "{:?}", world.mtu);
    }

    #[test]
    fn a_dead_path_is_not_a_black_hole() {
        let mut world = World::new(8972, 8972);
        world.run(MINUTE);
        world.path = 0;
        world.run(MINUTE);
        assert_eq!(world.mtu.arrives(), 8972);
        world.path = 1472;
        world.run(Duration::from_millis(2300));
        assert!(world.mtu.arrives() <= 1472, "{:?}", world.mtu);
    }

    #[test]
    fn heavy_loss_does_not_change_the_mtu() {
        let mut world = World { loss: 40, ..World::new(1472, 1472) };
        world.mtu.arrived(1472, Duration::ZERO);
        for _ in 0..600 {
            world.run(CONFIRM);
            assert_eq!(world.mtu.arrives(), 1472, "{:?}", world.now);
        }
    }

    #[test]
    fn a_wider_path_is_noticed() {
        let mut world = World::new(8972, 1472);
        world.run(MINUTE);
        world.path = 8972;
        world.run(RAISE + MINUTE);
        assert_eq!(world.mtu.arrives(), 8972);
    }

    #[test]
    fn a_path_that_carries_nothing_is_probed_seldom() {
        let mut world = World::new(1472, 0);
        world.run(10 * MINUTE);
        assert_eq!(world.mtu.arrives(), BASE);
        assert!(world.probes <= 1400, "hardly more than two a second: {}", world.probes);
        world.path = 1472;
        world.run(MINUTE);
        assert_eq!(world.mtu.arrives(), 1472);
    }

    #[test]
    fn lengths_that_the_device_refuses_are_excluded() {
        let mut world = World { takes: 1472, ..World::new(8972, 1472) };
        world.run(MINUTE);
        assert!(world.finds() && world.probes < 80, "{} probes, {:?}", world.probes, world.mtu);
        world.takes = 1300;
        world.mtu.refused(1400);
        assert_eq!(world.mtu.arrives(), BASE);
        world.path = 1300;
        world.run(RAISE + MINUTE);
        assert!(world.finds(), "{:?}", world.mtu);
        world.mtu.refused(100);
        assert_eq!(world.mtu.arrives(), BASE);
    }

    #[test]
    fn losses_before_an_interruption_do_not_count_after_it() {
        for at in 0..20 {
            let mut world = World::new(1472, 1472);
            world.run(MINUTE / 2);
            assert_eq!(world.mtu.arrives(), 1472);
            world.path = 0;
            world.run(CONFIRM + AGAIN * at / 2);
            world.mtu.interrupt();
            for _ in 0..EVIDENCE {
                world.mtu.arrived(BASE, world.now);
            }
            world.mtu.next_probe(world.now + PATIENCE, || 1472);
            assert_eq!(world.mtu.arrives(), 1472, "{at}: {:?}", world.mtu);
        }
    }

    /// The effect of a dip of a device's MTU in a world where 1472 bytes arrived.
    fn narrowed() -> World {
        let mut world = World::new(1472, 1472);
        world.run(MINUTE / 2);
        assert_eq!(world.mtu.arrives(), 1472);
        (world.takes, world.says, world.path) = (1272, 1272, 1272);
        world.run(CONFIRM);
        assert!(world.finds(), "{:?}", world.mtu);
        world
    }

    #[test]
    fn a_device_that_was_narrow_for_a_while_is_wide_again() {
        let mut world = narrowed();
        (world.takes, world.says, world.path) = (1472, 1472, 1472);
        world.run(RAISE + CONFIRM);
        assert_eq!(world.mtu.arrives(), 1472, "{:?}", world.mtu);
    }

    #[test]
    fn a_device_that_stays_narrow_is_tried_once_a_minute() {
        let mut world = narrowed();
        let narrow = world.mtu.arrives();
        world.run(RAISE);
        let before = world.probes;
        for _ in 0..600 {
            world.run(CONFIRM);
            assert_eq!(world.mtu.arrives(), narrow, "{:?}", world.now);
        }
        assert!(world.probes - before <= 600 + 10 * 8, "{} probes", world.probes - before);
    }

    #[test]
    fn a_device_that_is_made_wider_is_noticed() {
        let mut world = World { takes: 1472, ..World::new(1472, 1472) };
        world.run(MINUTE / 2);
        (world.takes, world.says, world.path) = (8972, 8972, 8972);
        world.run(RAISE + CONFIRM);
        assert_eq!((world.mtu.arrives(), world.mtu.longest()), (8972, 8972));
    }

    #[test]
    fn a_wider_device_is_noticed_on_an_idle_path() {
        let mut mtu = PathMtu::new(1472, Duration::ZERO);
        for time in (0..=60).step_by(10).map(Duration::from_secs) {
            // An answer comes when nothing more is asked.
            if let Some(length) = mtu.next_probe(time, || 8972) {
                mtu.arrived(length, time);
            }
        }
        assert_eq!(mtu.arrives(), 8972, "{mtu:?}");
    }

    #[test]
    fn a_wider_path_is_noticed_despite_a_cached_router_mtu() {
        let mut world = World { says: 1400, ..World::new(1472, 1400) };
        world.run(RAISE + MINUTE / 2);
        assert!(world.finds(), "{:?}", world.mtu);
        world.path = 1472;
        world.run(RAISE + CONFIRM);
        assert_eq!(world.mtu.arrives(), 1472, "{:?}", world.mtu);
    }

    #[test]
    fn unsolicited_answers_change_nothing() {
        let mut world = World::new(1472, 1400);
        world.run(MINUTE);
        let before = world.mtu.arrives();
        world.mtu.arrived(100_000, world.now);
        world.mtu.arrived(10, world.now);
        assert_eq!(world.mtu.arrives(), before);
    }
}
