//! Ranges within scatter/gather lists.

use crate::work::Sge;

/// The pieces of `sges` that hold bytes `offset..offset + length` of the message.
pub(crate) fn pieces(sges: &[Sge], offset: u32, length: u32) -> impl Iterator<Item = Sge> + '_ {
    let mut skip = offset;
    let mut left = length;
    sges.iter().filter_map(move |sge| {
        let passed = skip.min(sge.length);
        skip -= passed;
        let taken = left.min(sge.length - passed);
        left -= taken;
        let piece = Sge { addr: sge.addr.wrapping_add(u64::from(passed)), length: taken, lkey: sge.lkey };
        (taken > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: 1 }
    }

    #[test]
    fn pieces_span_elements() {
        let sges = [sge(100, 4), sge(200, 0), sge(300, 4)];
        let found: Vec<Sge> = pieces(&sges, 3, 3).collect();
        assert_eq!(found, [sge(103, 1), sge(300, 2)]);
        assert_eq!(pieces(&sges, 0, 0).count(), 0);
    }
}
