//! The internet checksum (RFC 1071): sums in ones' complement.

use super::vnet::{VnetError, VnetHeader};

/// Where UDP has its checksum. To UDP alone a checksum of 0 means that there is none.
pub(super) const UDP_OFFSET: u16 = 6;

/// The sum of `bytes` as big-endian words, not yet folded; an odd one at the end is the upper half of a word. Sums of
/// parts may be added if these begin at even places.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().chain([&last]).map(|word| u64::from(u32::from_be_bytes(*word))).sum()
}

/// Folds `sum` into a word. It is 0 only of 0.
pub(super) fn fold(sum: u64) -> u16 {
    let halves = (sum >> 32) + (sum & 0xffff_ffff);
    let words = (halves >> 32) + (halves >> 16 & 0xffff) + (halves & 0xffff);
    // The halves are at most 0x1_ffff_fffe, and so the words 0x1_fffe: this carry is the last one.
    ((words >> 16) + (words & 0xffff)) as u16
}

/// Completes the partial checksum of `frame`, for receivers that would not; does nothing if it is not partial.
///
/// # Errors
/// If `vnet` does not fit the frame, which is then unchanged.
pub fn complete_checksum(vnet: &VnetHeader, frame: &mut [u8]) -> Result<(), VnetError> {
    vnet.validate(frame.len())?;
    if !vnet.needs_checksum() {
        return Ok(());
    }
    let start = usize::from(vnet.csum_start);
    let at = start + usize::from(vnet.csum_offset);
    let checksum = match !fold(sum(&frame[start..])) {
        0 if vnet.csum_offset == UDP_OFFSET => 0xffff,
        other => other,
    };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Word by word, with each carry added at once.
    fn slowly(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum: u16, word| {
            let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    #[test]
    fn sums_match_a_sum_of_words() {
        let mut rng = fastrand::Rng::with_seed(1);
        for length in 0..300 {
            let bytes: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
            assert_eq!(fold(sum(&bytes)), slowly(&bytes));
            let ones = vec![0xff; length];
            assert_eq!(fold(sum(&ones)), slowly(&ones));
        }
    }

    #[test]
    fn folding_keeps_every_carry() {
        for (sum, word) in [
            (0, 0),
            (0xffff, 0xffff),
            (0x1_0000, 1),
            (0x1_ffff_ffff, 1),
            (u64::MAX, 0xffff),
            (0xffff_ffff_fffe_ffff, 0xfffe),
            (0xffff_0000_0000_0001, 1),
        ] {
            assert_eq!(fold(sum), word, "{sum:#x}");
        }
    }

    #[test]
    fn udp_has_no_checksum_of_0() {
        for (offset, checksum) in [(UDP_OFFSET, 0xffff_u16), (UDP_OFFSET + 2, 0)] {
            let mut frame = [0; 12];
            frame[2..4].copy_from_slice(&[0xff; 2]);
            complete_checksum(&VnetHeader::partial(2, offset), &mut frame).unwrap();
            let at = usize::from(2 + offset);
            assert_eq!(frame[at..at + 2], checksum.to_be_bytes());
        }
    }

    #[test]
    fn absent_and_complete_checksums_are_left() {
        let mut frame = [7; 12];
        complete_checksum(&VnetHeader::default(), &mut frame).unwrap();
        assert!(complete_checksum(&VnetHeader::partial(9, 2), &mut frame).is_err());
        assert_eq!(frame, [7; 12]);
        complete_checksum(&VnetHeader::partial(8, 2), &mut frame).unwrap();
        assert_ne!(frame, [7; 12]);
    }
}
