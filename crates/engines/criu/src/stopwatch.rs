//! Times the parts of a call.

use std::time::Instant;

use crate::engine::{Phase, Phases, Watch};

/// Measures consecutive parts, and reports each to the watch.
pub(crate) struct Stopwatch<'a> {
    watch: &'a Watch<'a>,
    since: Instant,
    phases: Phases,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(watch: &'a Watch<'a>) -> Self {
        Self { watch, since: Instant::now(), phases: Phases::default() }
    }

    /// Ends a part.
    pub(crate) fn lap(&mut self, name: &str) {
        let elapsed_us = self.since.elapsed().as_micros() as u64;
        let phase = Phase { name: name.to_owned(), elapsed_us };
        (self.watch.progress)(&phase);
        self.phases.0.push(phase);
        self.since = Instant::now();
    }

    pub(crate) fn stop(self) -> Phases {
        self.phases
    }
}
