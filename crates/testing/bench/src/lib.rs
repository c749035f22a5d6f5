//! The common parts of the benchmarks. Each benchmark runs ours and the peer in turn, several times, so that
//! both see the same machine, and ends with one line of JSON.
//!
//! * [`report`]: medians, and the line at the end.
//! * [`figure`]: the figure in the output of perftest or of a peer's benchmark.
//! * [`exchange`]: one run of perftest or of a peer's benchmark in a lab.
//! * [`fabric_perf`]: the benchmark of libfabric, which is ours.
//! * [`inside`]: messages within one device, without anything else.
//! * [`handles`]: the cost of virtual handles.
//! * [`scale`]: the cost of a large device.
//! * [`telemetry`]: the cost of samples and counts.
//! * [`net`]: the overlay against others.
//! * [`plain`]: the time that plain CRIU takes for the same program as a move.
//! * [`plan`]: the solver on problems with known values.
//! * [`contained`]: the time that runc takes for the same container as a move.
//! * [`vm`]: the time that plain QEMU takes for the same virtual machine as a move.

pub mod contained;
pub mod exchange;
pub mod fabric_perf;
pub mod figure;
pub mod handles;
pub mod inside;
pub mod net;
pub mod plain;
pub mod plan;
pub mod report;
pub mod scale;
pub mod telemetry;
pub mod vm;
