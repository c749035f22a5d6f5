use super::*;
use crate::criu::pages::local::Local;
use crate::criu::protobuf;
use crate::memory::MemorySink;

const PROCESS: Owner = Owner::Process(7);

fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE]
}

fn at(page: u64) -> u64 {
    page * PAGE as u64
}

fn put(images: &mut MemoryImages, first: u64, bytes: &[u8]) {
    let pages: Vec<u8> = bytes.iter().flat_map(|byte| page(*byte)).collect();
    images.write(PROCESS, at(first), &pages).unwrap();
}

/// The memory as CRIU reads it: each page with the byte that fills it.
fn restored(directory: &Path, owner: Owner) -> Vec<(u64, u8)> {
    let mut read = Vec::new();
    for (page, count, flags, offset) in entries(directory, owner) {
        for next in 0..count {
            read.push((page + next, byte_of(directory, owner, page + next, flags, offset + next)));
        }
    }
    read
}

fn byte_of(directory: &Path, owner: Owner, page: u64, flags: u64, index: u64) -> u8 {
    if flags == PRESENT {
        let mut bytes = vec![0; PAGE];
        let number = 1;
        File::open(directory.join(pages_image(number)))
            .unwrap()
            .read_exact_at(&mut bytes, at(index))
            .unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        return bytes[0];
    }
    assert_eq!(flags, IN_PARENT);
    let parent = directory.join(PARENT);
    let holds = |(start, count, ..): &(u64, u64, u64, u64)| (*start..*start + *count).contains(&page);
    let (start, _, flags, offset) = entries(&parent, owner).into_iter().find(holds).unwrap();
    byte_of(&parent, owner, page, flags, offset + page - start)
}

/// First page, number, flags, and index in the file beside it, of each run.
fn entries(directory: &Path, owner: Owner) -> Vec<(u64, u64, u64, u64)> {
    let image = fs::read(directory.join(pagemap_image(owner))).unwrap();
    let mut rest = &image[protobuf::MAGIC..];
    let mut messages = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (message, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        messages.push(message);
        rest = after;
    }
    assert_eq!(protobuf::number(messages[0], 1), Some(1));
    let mut offset = 0;
    let field = |message: &[u8], field| protobuf::number(message, field).unwrap();
    let entry = |message: &&[u8]| {
        let (address, count, flags) = (field(message, 1), field(message, 5), field(message, 4));
        let here = offset;
        offset += if flags == PRESENT { count } else { 0 };
        (address / PAGE as u64, count, flags, here)
    };
    messages[1..].iter().map(entry).collect()
}

#[test]
fn one_account_equals_images_of_criu() {
    let directory = tempfile::tempdir().unwrap();
    let local = Local::new(directory.path());
    for _ in 0..2 {
        local.begin().unwrap();
        local.open(PROCESS).unwrap();
        let _left = fs::remove_dir_all(directory.path().join("round-1"));
        local.take(PROCESS, at(5), &[page(1), page(2)].concat()).unwrap();
        local.take(PROCESS, at(9), &page(3)).unwrap();
    }
    local.end().unwrap();
    assert_eq!(restored(directory.path(), PROCESS), [(5, 1), (6, 2), (9, 3)]);
    assert!(!directory.path().join(PARENT).exists());
}

#[test]
fn earlier_pages_are_found_in_parents() {
    let directory = tempfile::tempdir().unwrap();
    let mut images = MemoryImages::new(directory.path());
    images.begin();
    put(&mut images, 10, &[1, 2, 3, 4]);
    images.begin();
    // Before, within and behind the stored pages.
    put(&mut images, 8, &[5, 6, 7]);
    put(&mut images, 13, &[8, 9]);
    images.begin();
    images.open(PROCESS);
    put(&mut images, 11, &[10]);
    put(&mut images, 20, &[11]);
    // Page 9 is not in the layout any more.
    for (first, count) in [(8, 1), (10, 5), (20, 1)] {
        images.keep(PROCESS, at(first), count).unwrap();
    }
    images.finish().unwrap();
    let expected = [(8, 5), (10, 7), (11, 10), (12, 3), (13, 8), (14, 9), (20, 11)];
    assert_eq!(restored(directory.path(), PROCESS), expected);
}

#[test]
fn a_repeated_dump_has_the_pages_of_its_last_account() {
    let directory = tempfile::tempdir().unwrap();
    let mut images = MemoryImages::new(directory.path());
    for (round, byte) in [(1, 1), (2, 2), (3, 3)] {
        images.begin();
        images.open(PROCESS);
        put(&mut images, round, &[byte, byte]);
        images.keep(PROCESS, at(round), 2).unwrap();
    }
    images.begin();
    images.open(PROCESS);
    images.keep(PROCESS, at(2), 2).unwrap();
    images.finish().unwrap();
    assert_eq!(restored(directory.path(), PROCESS), [(2, 2), (3, 3)]);
}

#[test]
fn an_owner_without_pages_has_a_pagemap_and_a_removed_one_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut images = MemoryImages::new(directory.path());
    put(&mut images, 1, &[1]);
    images.write(Owner::Shared(9), 0, &page(2)).unwrap();
    images.begin();
    images.open(PROCESS);
    images.finish().unwrap();
    assert_eq!(restored(directory.path(), PROCESS), []);
    assert!(!directory.path().join(pagemap_image(Owner::Shared(9))).exists());
}

#[test]
fn pages_left_behind_are_marked_even_if_they_have_arrived() {
    let directory = tempfile::tempdir().unwrap();
    let mut images = MemoryImages::new(directory.path());
    put(&mut images, 1, &[1, 2, 3]);
    images.begin();
    put(&mut images, 6, &[6]);
    images.keep(PROCESS, at(1), 6).unwrap();
    images.leave(PROCESS, at(2), 1).unwrap();
    images.leave(PROCESS, at(4), 2).unwrap();
    images.finish().unwrap();
    let flags =
        entries(directory.path(), PROCESS).into_iter().map(|(page, count, flags, _)| (page, count, flags));
    let expected =
        [(1, 1, IN_PARENT), (2, 1, LEFT_BEHIND), (3, 1, IN_PARENT), (4, 2, LEFT_BEHIND), (6, 1, PRESENT)];
    assert_eq!(Vec::from_iter(flags), expected);
    let pagemap = fs::read(directory.path().join(pagemap_image(PROCESS))).unwrap();
    assert_eq!(left_behind(&pagemap).unwrap(), [(2, 1), (4, 2)]);
    assert_eq!(process_of(&pagemap_image(PROCESS)), Some(7));
    assert!(MemoryImages::new(directory.path()).leave(Owner::Shared(9), 0, 1).is_err());
    assert_eq!(process_of(&pagemap_image(Owner::Shared(9))), None);
    assert_eq!(left_behind(&pagemap[..pagemap.len() - 1]), None);
}

#[test]
fn invalid_pages_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut images = MemoryImages::new(directory.path());
    assert!(images.write(PROCESS, 1, &page(1)).is_err());
    assert!(images.write(PROCESS, 0, &[1; 5]).is_err());
    images.write(PROCESS, u64::MAX - 4095, &page(1)).unwrap();
    images.keep(PROCESS, at(5), 2).unwrap();
    assert!(images.keep(PROCESS, at(6), 1).is_err(), "not in rising order");
    assert!(images.keep(PROCESS, at(8), u64::MAX).is_err(), "too many");
    assert!(images.finish().is_err(), "pages that have not come");
}

#[test]
fn random_accounts_restore_the_last_one() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut images = MemoryImages::new(directory.path());
        let mut known = BTreeMap::new();
        for _ in 0..1 + random.u64(..6) {
            images.begin();
            let mut first = random.u64(..8);
            while first < 60 {
                let bytes: Vec<u8> = (0..1 + random.u64(..6)).map(|_| random.u8(..250)).collect();
                put(&mut images, first, &bytes);
                known.extend((first..).zip(bytes.iter().copied()));
                first += bytes.len() as u64 + random.u64(..12);
            }
        }
        images.begin();
        images.open(PROCESS);
        let left: BTreeMap<u64, u8> = known.into_iter().filter(|_| random.u64(..5) > 0).collect();
        left.keys().for_each(|page| images.keep(PROCESS, at(*page), 1).unwrap());
        images.finish().unwrap();
        assert_eq!(restored(directory.path(), PROCESS), Vec::from_iter(left), "seed {seed}");
    }
}
