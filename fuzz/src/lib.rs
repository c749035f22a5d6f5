//! Fuzz targets for all code that reads input of another party.
//!
//! ```text
//!  corpus/TARGET, seeds ──▶ Target::run(bytes) ──▶ the code of the project; a panic is a finding
//!         ▲                      ▲
//!   make fuzz: libFuzzer         make test: tests/replay.rs, all inputs and some thousand mutations of them,
//!   grows it by coverage         the same each time
//! ```
//!
//! A target takes any bytes. For a parser with a state machine behind it, the bytes are a script
//! ([`input::Input`]) of the attacker's messages, the application's calls, and the time. A target asserts invariants that hold
//! for any script: memory that is not the attacker's is unchanged, no content of it leaks, and others' connections work on.
//!
//! * [`messages`]: messages that are decoded as a whole. * [`procfs`]: text and files that instances may shape.
//! * [`manager`]: connection managers. * [`socket`]: sockets over connections. * [`directory`]: the directory of a fabric.
//! * [`ring`]: rings in memory that the other side can overwrite.
//! * [`link`]: a whole device with an honest peer and a hostile one, over a stream or over shared memory.
//! * [`segments`]: segments from TAP devices, and merged ones for them. [`overlay_node`]: messages of other nodes, and
//!   frames for a switch.
//! * [`guest_port`]: frames of a virtual machine's port.
//! * [`datagrams`]: datagrams of strangers, or changed in flight.
//! * [`memory`]: the memory limit of targets. * [`mutation`]: mutations without a fuzzer.

pub mod datagrams;
pub mod directory;
pub mod guest_port;
pub mod input;
pub mod link;
pub mod manager;
pub mod memory;
pub mod messages;
pub mod mutation;
pub mod overlay_node;
pub mod procfs;
pub mod ring;
pub mod segments;
pub mod socket;

use std::path::PathBuf;

/// A reader of another party's bytes.
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Lets it read `bytes`. Panics if it does not take that as it should.
    body: fn(&[u8]),
    /// Inputs that pass the first checks: real messages.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutations in `make test`: more where they are cheap.
    pub rounds: u32,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", body: messages::frame, seeds: messages::frame_seeds, rounds: 20_000 },
    Target { name: "attach", body: messages::attach, seeds: messages::attach_seeds, rounds: 20_000 },
    Target { name: "rpc", body: messages::rpc, seeds: messages::rpc_seeds, rounds: 20_000 },
    Target { name: "record", body: messages::record, seeds: messages::record_seeds, rounds: 20_000 },
    Target { name: "api", body: messages::api, seeds: messages::api_seeds, rounds: 20_000 },
    Target { name: "token", body: messages::token, seeds: messages::token_seeds, rounds: 20_000 },
    Target { name: "criu", body: messages::criu, seeds: messages::criu_seeds, rounds: 20_000 },
    Target { name: "procfs", body: procfs::run, seeds: procfs::seeds, rounds: 20_000 },
    Target { name: "manager", body: manager::run, seeds: manager::seeds, rounds: 5_000 },
    Target { name: "socket", body: socket::run, seeds: socket::seeds, rounds: 5_000 },
    Target { name: "directory", body: directory::run, seeds: directory::seeds, rounds: 5_000 },
    Target { name: "split", body: segments::split, seeds: segments::split_seeds, rounds: 20_000 },
    Target { name: "merge", body: segments::merging, seeds: segments::merge_seeds, rounds: 5_000 },
    Target {
        name: "content",
        body: overlay_node::content,
        seeds: overlay_node::content_seeds,
        rounds: 20_000,
    },
    Target { name: "switch", body: overlay_node::switch, seeds: overlay_node::switch_seeds, rounds: 5_000 },
    Target { name: "lane", body: datagrams::lane, seeds: datagrams::lane_seeds, rounds: 5_000 },
    Target {
        name: "handed-over",
        body: datagrams::handed_over,
        seeds: datagrams::handed_over_seeds,
        rounds: 20_000,
    },
    Target { name: "guest-port", body: guest_port::frames, seeds: guest_port::seeds, rounds: 5_000 },
    Target { name: "trains", body: messages::trains, seeds: messages::trains_seeds, rounds: 2_000 },
    Target { name: "ring", body: ring::run, seeds: ring::seeds, rounds: 2_000 },
    Target { name: "stream-link", body: link::over_stream, seeds: link::stream_seeds, rounds: 500 },
    Target { name: "ring-link", body: link::over_ring, seeds: link::ring_seeds, rounds: 500 },
];

/// The target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Lets it read `bytes`.
    ///
    /// # Panics
    /// If that is a finding.
    pub fn run(&self, bytes: &[u8]) {
        memory::within_bounds(|| (self.body)(bytes));
    }

    /// The archive of its corpus, which `scripts/fuzz.sh` writes.
    #[must_use]
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{}.tar.gz", self.name))
    }
}
