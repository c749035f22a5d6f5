//! The choice of real handles for a device's objects.
//!
//! A firmware may give out any number. [`Policy`] covers the cases to survive: numbers that
//! stay, random ones, recently freed ones of other objects, and ones that equal a
//! *virtual* handle in use.

/// A separate space of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HandleKind {
    /// Queue pair numbers, 24 bits.
    QueuePair,
    /// Local and remote keys of memory regions, 32 bits.
    MemoryKey,
    /// Numbers of shared receive queues that peers name, 24 bits.
    SharedReceiveQueue,
}

impl HandleKind {
    /// The bits that a handle of this kind may use. 0 and 1 are never given out.
    #[must_use]
    pub fn mask(self) -> u32 {
        match self {
            Self::QueuePair | Self::SharedReceiveQueue => 0x00ff_ffff,
            Self::MemoryKey => u32::MAX,
        }
    }
}

/// Picks candidates for real handles.
pub trait HandleSource: Send {
    /// The next candidate for the object that applications know as `wanted`. The caller asks again
    /// while the candidate is taken, so the source has to come to free ones in the end.
    ///
    /// `virtual_in_use` finds a handle that applications use, for sources that want to collide.
    fn candidate(&mut self, kind: HandleKind, wanted: u32, virtual_in_use: &dyn Fn() -> Option<u32>) -> u32;

    /// Whether a live object is to get another real handle after a move.
    fn reissues(&self) -> bool;

    /// `handle` is free again.
    fn released(&mut self, kind: HandleKind, handle: u32);
}

/// The sources at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Real handles always equal virtual ones.
    Stable,
    /// Random numbers.
    Random,
    /// The number released last comes first.
    Reused,
    /// Numbers that equal a virtual handle of another live object, where there is one.
    Colliding,
}

impl Policy {
    /// All of them, for tests that must hold under each.
    pub const ALL: [Self; 4] = [Self::Stable, Self::Random, Self::Reused, Self::Colliding];

    /// A source that follows this policy, the same one for the same `seed`.
    #[must_use]
    pub fn source(self, seed: u64) -> Box<dyn HandleSource> {
        Box::new(PolicySource { policy: self, random: seed | 1, free: Vec::new() })
    }
}

/// The result of [`Policy::source`].
struct PolicySource {
    policy: Policy,
    random: u64,
    /// Released handles, the latest last; bounded by [`MAX_FREE`].
    free: Vec<(HandleKind, u32)>,
}

/// Released handles that [`Policy::Reused`] remembers.
const MAX_FREE: usize = 4096;

impl PolicySource {
    /// xorshift64*: good enough to be hostile, and repeatable.
    fn random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    fn reused(&mut self, kind: HandleKind) -> Option<u32> {
        let latest = self.free.iter().rposition(|(of, _)| *of == kind)?;
        Some(self.free.remove(latest).1)
    }
}

impl HandleSource for PolicySource {
    fn candidate(&mut self, kind: HandleKind, wanted: u32, virtual_in_use: &dyn Fn() -> Option<u32>) -> u32 {
        match self.policy {
            Policy::Stable => wanted,
            Policy::Random => self.random() & kind.mask(),
            Policy::Reused => self.reused(kind).unwrap_or_else(|| self.random() & kind.mask()),
            Policy::Colliding => virtual_in_use().unwrap_or_else(|| self.random() & kind.mask()),
        }
    }

    fn reissues(&self) -> bool {
        self.policy != Policy::Stable
    }

    fn released(&mut self, kind: HandleKind, handle: u32) {
        if self.policy == Policy::Reused && self.free.len() < MAX_FREE {
            self.free.push((kind, handle));
        }
    }
}
