//! Writes the pages of an instance's memory as image files, from which CRIU restores.
//!
//! CRIU's images may have a *parent*: a directory with earlier images that contain the unchanged pages. So pages that arrived while
//! the instance ran need not be copied again when it is stopped. Here, each page has one place, which later accounts overwrite.
//! Pages that an account adds are appended in a directory of its own:
//!
//! ```text
//! images/            pagemap-7.img  pages-1.img   pages that the last account, the dump, has added
//!   ├ parent ──▶ round-2
//!   ├ round-2/       pagemap-7.img  pages-1.img   pages that the second account has added
//!   │  └ parent ──▶ ../round-1
//!   └ round-1/       pagemap-7.img  pages-1.img
//! ```
//!
//! A pagemap says for each run of pages whether it is in the file beside it, in the parent, or left at the source. Pages in the
//! file are consecutive. All pagemaps are written at the end: only then the pages of the memory are known.

mod slots;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use self::slots::{Place, Slots};
use crate::criu::protobuf::{Message, entries, number};
use crate::memory::{Owner, PAGE};

/// The link from images to their parent images.
pub const PARENT: &str = "parent";

/// The limit of directories: each account may need one.
const MAX_ROUNDS: u16 = 250;

/// The limit of open files.
const MAX_OPEN: usize = 256;

/// The magic number of a pagemap.
const MAGIC: [u32; 2] = [0x5456_4319, 0x5608_4025];

/// Flags of a run in a pagemap.
const IN_PARENT: u64 = 1;
const LEFT_BEHIND: u64 = 2;
const PRESENT: u64 = 4;

/// The memory of an instance in a directory of images.
pub struct MemoryImages {
    pub(super) directory: PathBuf,
    /// The directory itself: a late writer must not write into another directory that has the name by then.
    held: Option<File>,
    owners: BTreeMap<Owner, Held>,
    /// The number of the last directory, from 1.
    rounds: u16,
    /// Whether the last directory belongs to the present account.
    is_begun: bool,
    files: HashMap<(u16, u32), File>,
}

/// The memory of one owner.
struct Held {
    /// The number of its files.
    number: u32,
    slots: Slots,
    /// Its layout in the present account, if it has one: first pages and numbers, in ascending order.
    layout: Option<Vec<(u64, u64)>>,
    /// The part of the layout that is left at the source: first pages and numbers, in ascending order.
    left: Vec<(u64, u64)>,
}

impl MemoryImages {
    /// An empty memory in `directory`.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            held: None,
            owners: BTreeMap::new(),
            rounds: 0,
            is_begun: false,
            files: HashMap::new(),
        }
    }

    /// Begins an account: the layouts of earlier accounts are void.
    pub fn begin(&mut self) {
        self.is_begun = false;
        for held in self.owners.values_mut() {
            (held.layout, held.left) = (None, Vec::new());
        }
    }

    /// Adds an owner.
    pub fn open(&mut self, owner: Owner) {
        self.held(owner).layout.get_or_insert_default();
    }

    /// Adds these pages to the owner's layout. Addresses ascend from call to call.
    ///
    /// # Errors
    /// If they do not.
    pub fn keep(&mut self, owner: Owner, address: u64, pages: u64) -> io::Result<()> {
        append(self.held(owner).layout.get_or_insert_default(), address, pages)
    }

    /// Marks these pages of a process as left at the source, even if they have arrived. Addresses ascend from call to call.
    ///
    /// # Errors
    /// If they do not, or the owner is not a process.
    pub fn leave(&mut self, owner: Owner, address: u64, pages: u64) -> io::Result<()> {
        match owner {
            Owner::Process(_) => append(&mut self.held(owner).left, address, pages),
            Owner::Shared(_) | Owner::Archive(_) => Err(unacceptable()),
        }
    }

    /// Writes whole pages to their place.
    ///
    /// # Errors
    /// If `pages` is not whole pages, there are too many directories, or the write fails.
    pub fn write(&mut self, owner: Owner, address: u64, mut pages: &[u8]) -> io::Result<()> {
        let mut page = page_at(address)?;
        if !pages.len().is_multiple_of(PAGE) || page.checked_add((pages.len() / PAGE) as u64).is_none() {
            return Err(unacceptable());
        }
        while !pages.is_empty() {
            let (place, count) = self.place(owner, page, (pages.len() / PAGE) as u64)?;
            let (now, rest) = pages.split_at(count as usize * PAGE);
            self.file(owner, place.round)?.write_all_at(now, place.index * PAGE as u64)?;
            pages = rest;
            page += count;
        }
        Ok(())
    }

    /// The place of the page, and the number of following pages that are consecutive there.
    fn place(&mut self, owner: Owner, page: u64, count: u64) -> io::Result<(Place, u64)> {
        if let Some(found) = self.held(owner).slots.find(page, count) {
            return Ok(found);
        }
        let last = self.rounds;
        if !self.is_begun || !self.held(owner).slots.may_append(last, page) {
            self.begin_round()?;
        }
        let round = self.rounds;
        Ok(self.held(owner).slots.append(round, page, count))
    }

    fn begin_round(&mut self) -> io::Result<()> {
        if self.rounds == MAX_ROUNDS {
            return Err(unacceptable());
        }
        if self.held.is_none() {
            self.held = Some(File::open(&self.directory)?);
        }
        self.rounds += 1;
        self.is_begun = true;
        fs::DirBuilder::new().mode(0o700).create(self.round(self.rounds))
    }

    fn held(&mut self, owner: Owner) -> &mut Held {
        let number = self.owners.len() as u32 + 1;
        self.owners.entry(owner).or_insert_with(|| Held {
            number,
            slots: Slots::default(),
            layout: None,
            left: Vec::new(),
        })
    }

    fn file(&mut self, owner: Owner, round: u16) -> io::Result<&File> {
        let number = self.held(owner).number;
        if self.files.len() >= MAX_OPEN && !self.files.contains_key(&(round, number)) {
            self.files.clear();
        }
        let path = self.round(round).join(pages_image(number));
        match self.files.entry((round, number)) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(free) => Ok(free.insert(create(&path)?)),
        }
    }

    fn round(&self, round: u16) -> PathBuf {
        self.present().join(format!("round-{round}"))
    }

    /// A path to the directory, whatever its name is by now.
    fn present(&self) -> PathBuf {
        let held = self.held.as_ref();
        held.map_or_else(
            || self.directory.clone(),
            |held| format!("/proc/self/fd/{}", held.as_raw_fd()).into(),
        )
    }

    /// Writes the pagemaps. All pages of the layouts must have arrived.
    ///
    /// # Errors
    /// If pages are missing, or the images cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.files.clear();
        // Pages of the last account are in the directory that CRIU reads first.
        let top = if self.is_begun { self.rounds } else { self.rounds + 1 };
        for round in 1..=top {
            self.link_parent(round, top)?;
            for (owner, held) in &self.owners {
                if let Some(layout) = &held.layout {
                    self.finish_owner(*owner, held, layout, (round, top))?;
                }
            }
        }
        if self.is_begun { fs::remove_dir_all(self.round(top)) } else { Ok(()) }
    }

    fn link_parent(&self, round: u16, top: u16) -> io::Result<()> {
        match round {
            1 => Ok(()),
            _ if round == top => symlink(format!("round-{}", round - 1), self.present().join(PARENT)),
            _ => symlink(format!("../round-{}", round - 1), self.round(round).join(PARENT)),
        }
    }

    /// Writes the pagemap of `round` for an owner, and makes a file of pages beside it: CRIU requires one, even if it is empty.
    fn finish_owner(
        &self,
        owner: Owner,
        held: &Held,
        layout: &[(u64, u64)],
        (round, top): (u16, u16),
    ) -> io::Result<()> {
        let appended = self.round(round);
        let directory = if round == top { self.present() } else { appended.clone() };
        let pages = pages_image(held.number);
        if round == top && held.slots.appended(round) > 0 {
            fs::rename(appended.join(&pages), directory.join(&pages))?;
        } else {
            create(&directory.join(&pages))?;
        }
        let runs = if round == top {
            held.slots.of_layout(layout, &held.left, top)
        } else {
            Some(held.slots.up_to(round))
        };
        let runs = runs.ok_or_else(unacceptable)?;
        write_pagemap(&directory.join(pagemap_image(owner)), held.number, &runs)
    }
}

/// A run of pages in a pagemap: its first page, number and location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    page: u64,
    count: u64,
    at: Whereabouts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    /// In the file beside the pagemap.
    Here,
    /// In the parent.
    InParent,
    /// At the source.
    LeftBehind,
}

/// Appends pages to a list of runs, in ascending order.
fn append(runs: &mut Vec<(u64, u64)>, address: u64, pages: u64) -> io::Result<()> {
    let first = page_at(address)?;
    let end = first.checked_add(pages).ok_or_else(unacceptable)?;
    match runs.last_mut() {
        Some((start, count)) if *start + *count == first => *count = end - *start,
        Some((start, count)) if *start + *count > first => return Err(unacceptable()),
        _ => runs.push((first, pages)),
    }
    Ok(())
}

fn write_pagemap(path: &Path, number: u32, runs: &[Run]) -> io::Result<()> {
    let mut image: Vec<u8> = MAGIC.iter().flat_map(|magic| magic.to_le_bytes()).collect();
    let mut head = Message::default();
    head.number(1, u64::from(number));
    push(&mut image, &head);
    for Run { page, count, at } in runs {
        let mut entry = Message::default();
        entry.number(1, page * PAGE as u64);
        entry.number(2, *count);
        entry.number(
            4,
            match at {
                Whereabouts::Here => PRESENT,
                Whereabouts::InParent => IN_PARENT,
                Whereabouts::LeftBehind => LEFT_BEHIND,
            },
        );
        entry.number(5, *count);
        push(&mut image, &entry);
    }
    fs::write(path, image)
}

/// The PID in the instance of the process whose pagemap has this file name.
pub fn process_of(name: &str) -> Option<u32> {
    name.strip_prefix("pagemap-")?.strip_suffix(".img")?.parse().ok()
}

/// The runs of pages that a pagemap marks as left at the source: first pages and numbers. `None` if it is malformed.
pub fn left_behind(pagemap: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    for entry in entries(pagemap)?.into_iter().skip(1) {
        if number(entry, 4)? == LEFT_BEHIND {
            runs.push((number(entry, 1)? / PAGE as u64, number(entry, 5)?));
        }
    }
    Some(runs)
}

fn push(image: &mut Vec<u8>, message: &Message) {
    image.extend((message.0.len() as u32).to_le_bytes());
    image.extend(&message.0);
}

fn pages_image(number: u32) -> String {
    format!("pages-{number}.img")
}

fn pagemap_image(owner: Owner) -> String {
    match owner {
        Owner::Process(pid) => format!("pagemap-{pid}.img"),
        Owner::Shared(number) => format!("pagemap-shmem-{number}.img"),
        // This file does not exist: archives have no pagemap.
        Owner::Archive(number) => format!("pagemap-archive-{number}.img"),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn page_at(address: u64) -> io::Result<u64> {
    if address.is_multiple_of(PAGE as u64) { Ok(address / PAGE as u64) } else { Err(unacceptable()) }
}

fn unacceptable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the description of its memory is invalid")
}

#[cfg(test)]
mod tests;
