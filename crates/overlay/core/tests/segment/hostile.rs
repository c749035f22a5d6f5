//! Frames with arbitrary bytes: each gets an answer, and merged ones can be split again.

use fastrand::Rng;
use overlay::segment::{Plan, VnetHeader, complete_checksum};

use crate::frames::Packet;
use crate::{Frame, assert_given_back, merge, split};

fn short_segment(rng: &mut Rng) -> Packet {
    let mut packet = Packet::any(rng);
    packet.payload.truncate(300);
    packet.size = packet.size.min(100);
    packet
}

/// Changes a few bytes, most of them in the headers, or cuts the frame.
fn mangle(rng: &mut Rng, (vnet, frame): &mut Frame) {
    let mut header = vnet.encode();
    for _ in 0..rng.usize(..3) {
        match rng.u8(..8) {
            0 => header[rng.usize(..10)] = rng.u8(..),
            1 => frame.truncate(rng.usize(..=frame.len())),
            _ if frame.is_empty() => frame.push(rng.u8(..)),
            _ => {
                let at = rng.usize(..frame.len().min(120));
                frame[at] = if rng.bool() { rng.u8(..) } else { frame[at] ^ 1 << rng.u8(..8) };
            }
        }
    }
    *vnet = VnetHeader::decode(&header);
}

#[test]
fn any_frame_is_split_or_refused() {
    let mut taken = 0;
    for seed in 0..15_000 {
        let rng = &mut Rng::with_seed(seed);
        let packet = short_segment(rng);
        let mut frame = (packet.vnet(), packet.partial());
        mangle(rng, &mut frame);
        let mut bytes = frame.1.clone();
        let _ = complete_checksum(&frame.0, &mut bytes);
        if Plan::of(&frame.0, &frame.1).is_err() {
            continue;
        }
        taken += 1;
        let pieces = split(&frame.0, &frame.1);
        for (vnet, piece) in &pieces {
            complete_checksum(vnet, &mut piece.clone()).unwrap();
        }
        assert_given_back(&pieces, &merge(&pieces));
    }
    assert!((3_000..14_000).contains(&taken), "{taken}");
}

#[test]
fn any_frames_are_merged_or_pass() {
    for seed in 0..5_000 {
        let rng = &mut Rng::with_seed(seed);
        let packet = short_segment(rng);
        let mut frames = split(&packet.vnet(), &packet.partial());
        for frame in &mut frames {
            if rng.u8(..4) == 0 {
                mangle(rng, frame);
            }
        }
        assert_given_back(&frames, &merge(&frames));
    }
}
