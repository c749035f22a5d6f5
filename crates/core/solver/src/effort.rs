//! How long a search goes on.

/// Tells a search how much of its effort is spent.
pub trait Effort {
    /// The spent fraction, from 0 to 1, after further `steps`. The search ends at 1.
    fn spent(&mut self, steps: u64) -> f64;
}

/// A number of steps: the result of a search depends on nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    limit: u64,
    done: u64,
}

impl Steps {
    /// So many steps.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, done: 0 }
    }
}

impl Effort for Steps {
    fn spent(&mut self, steps: u64) -> f64 {
        self.done += steps;
        self.done as f64 / self.limit.max(1) as f64
    }
}

/// A part of another effort: it is spent when `limit` of the other one is.
pub(crate) struct Until<'e> {
    pub effort: &'e mut dyn Effort,
    pub limit: f64,
}

impl Effort for Until<'_> {
    fn spent(&mut self, steps: u64) -> f64 {
        self.effort.spent(steps) / self.limit
    }
}
