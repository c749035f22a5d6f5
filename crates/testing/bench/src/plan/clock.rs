//! Effort in CPU time of the calling thread, so that other programs on the machine do not shorten a search.

use rustix::time::{ClockId, clock_gettime};
use solver::effort::Effort;

/// The CPU time that the calling thread has used, in seconds.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// An effort of so much CPU time, from now on.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    begin: f64,
    seconds: f64,
}

impl CpuTime {
    /// So many seconds.
    #[must_use]
    pub fn new(seconds: f64) -> Self {
        Self { begin: cpu_seconds(), seconds }
    }
}

impl Effort for CpuTime {
    fn spent(&mut self, _steps: u64) -> f64 {
        (cpu_seconds() - self.begin) / self.seconds
    }
}
