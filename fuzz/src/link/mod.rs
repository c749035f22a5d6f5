//! A device with an honest peer and a hostile one.
//!
//! ```text
//!  honest device ═══ pipe ═══ device ═══ pipe or rings ═══ attacker: frames of the script
//!                              │
//!   guard │ attacker may write │ may read │ unused   │ honest peer's │ guard
//! ```
//!
//! The script holds the attacker's frames, the application's calls with the objects that the attacker may use, the time,
//! and the honest peer's turns. For any script, honest messages arrive as they were sent, memory that was not granted is unchanged, and
//! no content of it reaches the attacker.
//!
//! * [`world`]: the devices. * [`attacker`]: frames. * [`application`]: the application's calls.
//! * [`pipe`], [`arena`]: streams and memory.

pub mod application;
pub mod arena;
pub mod attacker;
pub mod pipe;
pub mod world;

use softhca::wire::Opcode;

use crate::input::Input;

use attacker::{Line, script};
use world::World;

/// Over a stream of bytes, as between hosts.
///
/// # Panics
/// If any party except the attacker is affected.
pub fn over_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    World::new(input.byte(), Line::stream).run(&mut input);
}

/// Over rings in shared memory, as on one host.
///
/// # Panics
/// As [`over_stream`].
pub fn over_ring(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    World::new(input.byte(), Line::ring).run(&mut input);
}

/// Scripts for streams.
#[must_use]
pub fn stream_seeds() -> Vec<Vec<u8>> {
    let requests = [
        (Opcode::Send, 0),
        (Opcode::SendImm, 1),
        (Opcode::Write, 0),
        (Opcode::WriteImm, 1),
        (Opcode::Read, 0),
        (Opcode::FetchAdd, 0),
        (Opcode::CompareSwap, 4),
        (Opcode::SendInvalidate, 0),
        (Opcode::Datagram, 5),
        (Opcode::DatagramImm, 5),
    ];
    let mut seeds: Vec<Vec<u8>> = (0..4)
        .flat_map(|policy| {
            requests.iter().map(move |(opcode, qp)| [vec![policy], script::request(*opcode, *qp)].concat())
        })
        .collect();
    let answers = [Opcode::Ack, Opcode::Nak, Opcode::ReadResponse, Opcode::AtomicResponse, Opcode::ResyncAck];
    for (kind, answer) in answers.into_iter().enumerate() {
        seeds.push([vec![0], script::post(0, kind as u8), script::answer(answer, 0)].concat());
    }
    let xrc = [script::request(Opcode::SelectSrq, 2), script::request(Opcode::Send, 2)];
    seeds.push([vec![0], xrc.concat()].concat());
    let all: Vec<u8> = requests.iter().flat_map(|(opcode, qp)| script::request(*opcode, *qp)).collect();
    seeds.push([vec![1], all, script::relink(), script::request(Opcode::Resync, 0)].concat());
    seeds
}

/// Scripts for rings: the same, with the operations that only rings have.
#[must_use]
pub fn ring_seeds() -> Vec<Vec<u8>> {
    let mut seeds = stream_seeds();
    for word in 0..8 {
        seeds.push([vec![0], script::request(Opcode::Send, 0), script::poke(word)].concat());
    }
    let export = [script::post(0, 2), script::pass_memory(), script::answer(Opcode::Export, 0)];
    seeds.push([vec![0], export.concat(), script::post(0, 2)].concat());
    seeds
}
