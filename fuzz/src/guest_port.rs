//! The port of a virtual machine: frames, among bytes that are none, for the relay in the node and for the agent in the guest.

use std::net::{Ipv4Addr, SocketAddrV4};

use guest::frames::{Frames, encode};
use guest::wire::{Stream, TOKEN, ToGuest, ToHost, VERSION};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::input::Input;

/// Bytes arrive in pieces. Each message that is found is one that could have been sent, and as many bytes have arrived.
pub fn frames(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.coin() { understand::<ToHost>(input) } else { understand::<ToGuest>(input) }
}

fn understand<M: Serialize + DeserializeOwned>(mut input: Input<'_>) {
    let (mut frames, mut found, size) = (Frames::default(), 0, usize::from(input.byte()) + 1);
    let (stretch, gives_up) = (usize::from(input.byte()) + 1, input.coin());
    let arriving = input.rest().repeat(stretch);
    for piece in arriving.chunks(size * stretch) {
        frames.push(piece);
        while let Some(message) = frames.take::<M>() {
            found += encode(&message).len();
        }
        if gives_up && frames.is_within() {
            frames.skip();
        }
    }
    assert!(found <= arriving.len(), "{found} bytes of messages in {} bytes", arriving.len());
}

/// Frames of all messages, whole and torn.
pub fn seeds() -> Vec<Vec<u8>> {
    let to_host = [
        ToHost::Hello { version: VERSION, generation: 7 },
        ToHost::Opened { connection: 1, pid: 2 },
        ToHost::Message { connection: 1, bytes: vec![3; 40] },
        ToHost::Closed { connection: 1 },
    ];
    let address = SocketAddrV4::new(Ipv4Addr::new(169, 254, 77, 1), 9);
    let stream = Stream { token: [1; TOKEN], otherwise: vec![4; 9] };
    let to_guest = [
        ToGuest::Welcome { version: VERSION, generation: 7, mac: [2; 6], address },
        ToGuest::Message { connection: 1, bytes: vec![5; 40], stream: Some(stream) },
        ToGuest::Closed { connection: 1 },
    ];
    let frames = to_host.iter().map(|message| (1, encode(message)));
    let frames: Vec<_> = frames.chain(to_guest.iter().map(|message| (0, encode(message)))).collect();
    let script = |kind: u8, pieces: &[u8], stream: &[u8]| [&[kind], pieces, stream].concat();
    let mut seeds = Vec::new();
    for (kind, frame) in &frames {
        let torn = [&frame[..frame.len() / 2], frame].concat();
        seeds.push(script(*kind, &[255, 0, 0], frame));
        seeds.push(script(*kind, &[4, 2, 1], &torn));
    }
    seeds
}
