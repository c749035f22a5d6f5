//! What the benchmarks share. Each runs ours and the peer in turn, several times, so that both see
//! the same machine, and ends with one line of JSON.
//!
//! * [`report`]: medians, and the line at the end.
//! * [`figure`]: the figure in the output of perftest or of a peer's benchmark.
//! * [`exchange`]: one run of perftest or of a peer's benchmark in a lab.
//! * [`fabric_perf`]: the benchmark of libfabric, which is ours.
//! * [`inside`]: messages within one device, without anything else.
//! * [`handles`]: what virtual handles cost.
//! * [`scale`]: what a large device costs.
//! * [`net`]: the overlay against others.
//! * [`plain`]: what plain CRIU takes for the same program as a move.
//! * [`contained`]: what runc takes for the same container as a move.

pub mod contained;
pub mod exchange;
pub mod fabric_perf;
pub mod figure;
pub mod handles;
pub mod inside;
pub mod net;
pub mod plain;
pub mod report;
pub mod scale;
