//! The source's record of the memory that the destination already has: a digest for each page.

use std::collections::HashMap;
use std::io;

use engine_api::PAGE;
use instance::Region;
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// The number of pages whose digests are stored together.
const CHUNK: usize = 256;

/// The length of a secret for XXH3, in bytes.
const SECRET: usize = 192;

/// Digests of pages by their address. They are keyed with a secret of this move, so that a program cannot prepare two pages with
/// the same digest.
pub struct Known {
    secret: [u8; SECRET],
    chunks: HashMap<(Region, u64), Box<[u128; CHUNK]>>,
}

impl Known {
    /// Makes an empty record.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new() -> io::Result<Self> {
        let mut secret = [0; SECRET];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        Ok(Self { secret, chunks: HashMap::new() })
    }

    /// Calls `changed` with the address of each page in `pages`, which begin at `address`, that differs from the recorded one.
    pub fn compare(&self, region: Region, address: u64, pages: &[u8], mut changed: impl FnMut(u64)) {
        for (number, page) in (address / PAGE as u64..).zip(pages.chunks(PAGE)) {
            let chunk = self.chunks.get(&(region, number / CHUNK as u64));
            let digest = chunk.map_or(0, |chunk| chunk[(number % CHUNK as u64) as usize]);
            if digest == 0 || digest != xxh3_128_with_secret(page, &self.secret) {
                changed(number * PAGE as u64);
            }
        }
    }

    /// Calls `changed` with each page in `pages`, which begin at `address`, that differs from the recorded one, and with its address, and
    /// records it.
    pub fn update(
        &mut self,
        region: Region,
        address: u64,
        pages: &[u8],
        mut changed: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut number = address / PAGE as u64;
        let mut left = pages;
        while !left.is_empty() {
            let at = (number % CHUNK as u64) as usize;
            let (now, rest) = left.split_at(left.len().min((CHUNK - at) * PAGE));
            let key = (region, number / CHUNK as u64);
            let chunk = self.chunks.entry(key).or_insert_with(|| Box::new([0; CHUNK]));
            for (page, digest) in now.chunks(PAGE).zip(&mut chunk[at..]) {
                let present = xxh3_128_with_secret(page, &self.secret);
                // Zero means unknown: a page with this digest is sent each time.
                if *digest != present || present == 0 {
                    *digest = present;
                    changed(number * PAGE as u64, page)?;
                }
                number += 1;
            }
            left = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Region = Region(1);

    fn changes(known: &mut Known, region: Region, first: u64, bytes: &[u8]) -> Vec<(u64, u8)> {
        let pages: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; PAGE]).collect();
        let mut changes = Vec::new();
        let note = |address, page: &[u8]| {
            changes.push((address / PAGE as u64, page[0]));
            Ok(())
        };
        known.update(region, first * PAGE as u64, &pages, note).unwrap();
        changes
    }

    #[test]
    fn known_pages_are_not_sent_again() {
        let mut known = Known::new().unwrap();
        // Over the end of a chunk.
        assert_eq!(changes(&mut known, PROCESS, 254, &[1, 2, 3]), [(254, 1), (255, 2), (256, 3)]);
        assert_eq!(changes(&mut known, PROCESS, 253, &[0, 1, 9, 3, 4]), [(253, 0), (255, 9), (257, 4)]);
        assert_eq!(changes(&mut known, PROCESS, 253, &[0, 1, 9, 3, 4]), []);
        assert_eq!(changes(&mut known, Region(2), 254, &[1]), [(254, 1)], "another's");
    }

    #[test]
    fn comparing_a_page_does_not_make_it_known() {
        let mut known = Known::new().unwrap();
        changes(&mut known, PROCESS, 254, &[1, 2, 3]);
        let pages: Vec<u8> = [1, 9, 3, 4].iter().flat_map(|byte| [*byte; PAGE]).collect();
        for _ in 0..2 {
            let mut changed = Vec::new();
            known.compare(PROCESS, 254 * PAGE as u64, &pages, |address| changed.push(address / PAGE as u64));
            assert_eq!(changed, [255, 257]);
        }
    }

    #[test]
    fn one_changed_byte_is_noticed_wherever_it_is() {
        let mut known = Known::new().unwrap();
        let mut page = vec![0; PAGE];
        let mut changed = 0;
        for byte in 0..PAGE {
            known
                .update(PROCESS, 0, &page, |_, _| {
                    changed += 1;
                    Ok(())
                })
                .unwrap();
            page[byte] = 1;
        }
        assert_eq!(changed, PAGE);
    }
}
