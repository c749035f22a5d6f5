//! The places of one owner's pages.

use std::collections::BTreeMap;

use super::{Run, Whereabouts};

/// The place of a page in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory of its file.
    pub round: u16,
    /// The index of the page in that file.
    pub index: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    place: Place,
    count: u64,
}

/// Runs of pages by their first page, without overlaps.
#[derive(Debug, Default)]
pub struct Slots {
    slots: BTreeMap<u64, Slot>,
    /// For each directory, the number of appended pages, and the page behind the last one.
    appended: BTreeMap<u16, (u64, u64)>,
}

impl Slots {
    /// The place of `page`, if it is stored, and how many of `count` pages are stored consecutively from there.
    pub fn find(&self, page: u64, count: u64) -> Option<(Place, u64)> {
        let (start, slot) = self.slots.range(..=page).next_back()?;
        let into = page - start;
        let left = slot.count.checked_sub(into).filter(|left| *left > 0)?;
        Some((Place { index: slot.place.index + into, ..slot.place }, left.min(count)))
    }

    /// Whether `page` is behind all pages appended in `round`.
    pub fn may_append(&self, round: u16, page: u64) -> bool {
        self.appended.get(&round).is_none_or(|(_, end)| page >= *end)
    }

    /// Appends `page`, which must not be stored yet, and those of the `count` pages from there that are not stored either.
    pub fn append(&mut self, round: u16, page: u64, count: u64) -> (Place, u64) {
        let next = self.slots.range(page..).next().map(|(start, _)| start - page);
        let count = next.map_or(count, |free| free.min(count));
        let (index, end) = self.appended.entry(round).or_default();
        let place = Place { round, index: *index };
        (*index, *end) = (*index + count, page + count);
        match self.slots.range_mut(..page).next_back() {
            Some((start, slot)) if start + slot.count == page && slot.is_before(place) => slot.count += count,
            _ => drop(self.slots.insert(page, Slot { place, count })),
        }
        (place, count)
    }

    /// The number of pages appended in `round`.
    pub fn appended(&self, round: u16) -> u64 {
        self.appended.get(&round).map_or(0, |(count, _)| *count)
    }

    /// All runs stored up to `round`.
    pub fn up_to(&self, round: u16) -> Vec<Run> {
        let known = self.slots.iter().filter(|(_, slot)| slot.place.round <= round);
        let mut runs = Vec::new();
        known.for_each(|(page, slot)| add(&mut runs, *page, slot.count, slot.place.seen_from(round)));
        runs
    }

    /// The runs of `layout` for the pagemap of `round`, with the pages of `left` marked as left at the source. `None` if a page
    /// that was appended in `round` is not in the layout, or if another page of it has not arrived.
    pub fn of_layout(&self, layout: &[(u64, u64)], left: &[(u64, u64)], round: u16) -> Option<Vec<Run>> {
        let (mut runs, mut here, mut left) = (Vec::new(), 0, left.iter().copied().peekable());
        for &(mut page, count) in layout {
            let end = page + count;
            while page < end {
                while left.next_if(|(start, count)| start + count <= page).is_some() {}
                let (at, found) = match left.peek() {
                    Some((start, count)) if *start <= page => {
                        (Whereabouts::LeftBehind, (start + count).min(end) - page)
                    }
                    next => {
                        let until = next.map_or(end, |(start, _)| end.min(*start));
                        let (place, found) = self.find(page, until - page)?;
                        (place.seen_from(round), found)
                    }
                };
                here += if at == Whereabouts::Here { found } else { 0 };
                add(&mut runs, page, found, at);
                page += found;
            }
        }
        (here == self.appended(round)).then_some(runs)
    }
}

impl Place {
    fn seen_from(self, round: u16) -> Whereabouts {
        if self.round == round { Whereabouts::Here } else { Whereabouts::InParent }
    }
}

impl Slot {
    fn is_before(&self, place: Place) -> bool {
        self.place.round == place.round && self.place.index + self.count == place.index
    }
}

/// Appends pages to runs, in ascending order.
fn add(runs: &mut Vec<Run>, page: u64, count: u64, at: Whereabouts) {
    match runs.last_mut() {
        Some(last) if last.at == at && last.page + last.count == page => last.count += count,
        _ => runs.push(Run { page, count, at }),
    }
}
