//! Segments, split and merged again, against pieces that are made one by one.

mod follow;
mod frames;
mod hostile;
mod merging;
mod splitting;

use overlay::segment::{Merger, Plan, VnetHeader};

/// A frame with its `vnet` header.
pub type Frame = (VnetHeader, Vec<u8>);

/// The pieces of a frame. They are laid out behind one another, as a sender does.
pub fn split(vnet: &VnetHeader, frame: &[u8]) -> Vec<Frame> {
    const ROOM: usize = 7;
    let plan = Plan::of(vnet, frame).unwrap();
    let lengths: Vec<usize> = (0..plan.pieces()).map(|index| plan.piece_length(index)).collect();
    let mut buffer = vec![0xee; lengths.iter().map(|length| length + ROOM).sum()];
    let (mut rest, mut pieces) = (buffer.as_mut_slice(), Vec::new());
    for (index, length) in lengths.into_iter().enumerate() {
        let (piece, behind) = std::mem::take(&mut rest).split_at_mut(length + ROOM);
        assert_eq!(plan.write_piece(index, frame, piece), length);
        assert_eq!(piece[length..], [0xee; ROOM], "nothing is written behind a piece");
        pieces.push((plan.piece_vnet(), piece[..length].to_vec()));
        rest = behind;
    }
    pieces
}

/// The result of merging, with the number of frames in each result.
pub fn merge(pieces: &[Frame]) -> Vec<(Frame, usize)> {
    let (mut merger, mut merged) = (Merger::default(), Vec::new());
    for (vnet, piece) in pieces {
        if !merger.push(*vnet, piece) {
            merged.push(written(&mut merger));
            assert!(merger.push(*vnet, piece), "after a segment was taken all is taken");
        }
    }
    if !pieces.is_empty() {
        merged.push(written(&mut merger));
    }
    assert!(merger.take().is_none());
    merged
}

fn written(merger: &mut Merger<'_>) -> (Frame, usize) {
    let segment = merger.take().unwrap();
    let frame = [&[segment.header], segment.payloads].concat().concat();
    ((segment.vnet, frame), segment.payloads.len().max(1))
}

/// Splits merged frames, and checks that the result equals the original.
pub fn assert_given_back(pieces: &[Frame], merged: &[(Frame, usize)]) {
    let mut rest = pieces;
    for ((vnet, frame), count) in merged {
        let (from, behind) = rest.split_at(*count);
        if *count == 1 {
            assert_eq!((vnet, frame), (&from[0].0, &from[0].1));
        } else {
            assert_eq!(split(vnet, frame), from);
        }
        rest = behind;
    }
    assert!(rest.is_empty());
}
