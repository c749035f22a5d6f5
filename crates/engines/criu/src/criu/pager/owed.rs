//! The missing pages of a process, with the address of each at the source.
//!
//! Each page of the source has one place in a process, and `mremap` may move it to another. The table can be searched both ways.

use std::collections::BTreeMap;

/// The location of a page when the instance was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Its process, by the PID in the instance.
    pub pid: u32,
    /// Its number: the address divided by the size of a page.
    pub page: u64,
}

/// A run of consecutive missing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of pages.
    pub pages: u64,
    /// The source of the first page.
    pub source: Source,
    /// Whether they have been requested.
    pub is_asked: bool,
}

/// The missing pages of a process. Pages are given by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Owed {
    /// By the first page; runs do not overlap.
    runs: BTreeMap<u64, Run>,
    /// The first page of each run, by its source.
    places: BTreeMap<Source, u64>,
}

impl Run {
    /// The rest of the run after so many pages.
    fn behind(self, pages: u64) -> Self {
        let source = Source { page: self.source.page + pages, ..self.source };
        Self { pages: self.pages - pages, source, ..self }
    }
}

impl Owed {
    /// Adds missing pages. Neither the pages nor their sources may be in the table yet.
    pub fn insert(&mut self, page: u64, run: Run) {
        self.places.insert(run.source, page);
        self.runs.insert(page, run);
    }

    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many pages are missing.
    pub fn pages(&self) -> u64 {
        self.runs.values().map(|run| run.pages).sum()
    }

    /// Removes all missing pages.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The run of missing pages from `page` on, if `page` is missing.
    pub fn find(&self, page: u64) -> Option<Run> {
        let (start, run) = self.runs.range(..=page).next_back()?;
        let into = page - start;
        (into < run.pages).then(|| run.behind(into))
    }

    /// The first missing pages whose sources are in this range, and their place.
    pub fn from(&self, source: Source, pages: u64) -> Option<(u64, Run)> {
        let end = Source { page: source.page + pages, ..source };
        let before = self.places.range(..source).next_back().and_then(|(first, page)| {
            let into = source.page.checked_sub(first.page).filter(|_| first.pid == source.pid)?;
            let run = self.runs.get(page).filter(|run| into < run.pages)?;
            Some((page + into, run.behind(into)))
        });
        let (page, run) = before.or_else(|| {
            let (_, page) = self.places.range(source..end).next()?;
            Some((*page, *self.runs.get(page)?))
        })?;
        let most = end.page - run.source.page;
        Some((page, Run { pages: run.pages.min(most), ..run }))
    }

    /// The first missing pages that have not been requested.
    pub fn first_unasked(&self) -> Option<(u64, Run)> {
        self.runs.iter().find(|(_, run)| !run.is_asked).map(|(page, run)| (*page, *run))
    }

    /// Marks pages as requested.
    pub fn ask(&mut self, page: u64, pages: u64) {
        for (page, run) in self.take(page, pages) {
            self.insert(page, Run { is_asked: true, ..run });
        }
    }

    /// Marks all pages as not requested, since the answers are lost.
    pub fn forget_asked(&mut self) {
        self.runs.values_mut().for_each(|run| run.is_asked = false);
    }

    /// Removes pages that are no longer missing.
    pub fn remove(&mut self, page: u64, pages: u64) {
        self.take(page, pages);
    }

    /// Moves missing pages from `from` to `to`, replacing missing pages there.
    pub fn relocate(&mut self, from: u64, to: u64, pages: u64) {
        let moved = self.take(from, pages);
        self.take(to, pages);
        for (page, run) in moved {
            self.insert(page - from + to, run);
        }
    }

    fn take(&mut self, page: u64, pages: u64) -> Vec<(u64, Run)> {
        let end = page.saturating_add(pages);
        self.cut(page);
        self.cut(end);
        let taken: Vec<_> = self.runs.range(page..end).map(|(page, run)| (*page, *run)).collect();
        for (page, run) in &taken {
            self.runs.remove(page);
            self.places.remove(&run.source);
        }
        taken
    }

    /// Splits a run at the beginning of `page`.
    fn cut(&mut self, page: u64) {
        let Some((&start, &run)) = self.runs.range(..page).next_back() else { return };
        let before = page - start;
        if before < run.pages {
            self.runs.insert(start, Run { pages: before, ..run });
            self.insert(page, run.behind(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;

    fn source(page: u64) -> Source {
        Source { pid: PID, page }
    }

    /// Missing pages that are at their original addresses.
    fn owed(runs: &[(u64, u64)]) -> Owed {
        let mut owed = Owed::default();
        for (page, pages) in runs {
            owed.insert(*page, Run { pages: *pages, source: source(*page), is_asked: false });
        }
        owed
    }

    fn runs(owed: &Owed) -> Vec<(u64, u64, u64)> {
        assert_eq!(owed.runs.len(), owed.places.len());
        assert!(owed.runs.iter().all(|(page, run)| owed.places[&run.source] == *page));
        owed.runs.iter().map(|(page, run)| (*page, run.pages, run.source.page)).collect()
    }

    #[test]
    fn arrived_pages_are_not_missing() {
        let mut owed = owed(&[(10, 10), (30, 5)]);
        owed.remove(12, 3);
        assert_eq!(runs(&owed), [(10, 2, 10), (15, 5, 15), (30, 5, 30)]);
        owed.remove(0, 11);
        owed.remove(18, 100);
        assert_eq!(runs(&owed), [(11, 1, 11), (15, 3, 15)]);
        assert_eq!((owed.pages(), owed.find(11).map(|run| run.pages), owed.find(12)), (4, Some(1), None));
    }

    #[test]
    fn moved_pages_are_missing_at_their_new_place() {
        let mut owed = owed(&[(10, 10), (100, 10)]);
        owed.relocate(15, 102, 6);
        assert_eq!(runs(&owed), [(10, 5, 10), (100, 2, 100), (102, 5, 15), (108, 2, 108)]);
        // Overlapping itself, by one page.
        owed.relocate(102, 103, 5);
        assert_eq!(runs(&owed), [(10, 5, 10), (100, 2, 100), (103, 5, 15), (108, 2, 108)]);
    }

    #[test]
    fn pages_from_the_source_are_found_by_their_source() {
        let mut owed = owed(&[(10, 10)]);
        owed.relocate(15, 50, 3);
        let mut found = Vec::new();
        while let Some((page, run)) = owed.from(source(12), 5) {
            found.push((page, run.pages, run.source.page));
            owed.remove(page, run.pages);
        }
        assert_eq!(found, [(12, 3, 12), (50, 2, 15)]);
        assert_eq!(runs(&owed), [(10, 2, 10), (18, 2, 18), (52, 1, 17)]);
        assert_eq!(owed.from(Source { pid: PID + 1, page: 1 }, 9), None);
    }

    #[test]
    fn each_page_is_requested_once() {
        let mut owed = owed(&[(10, 4)]);
        owed.ask(10, 1);
        owed.ask(12, 1);
        assert_eq!(owed.first_unasked().map(|(page, run)| (page, run.pages)), Some((11, 1)));
        owed.ask(11, 1);
        assert_eq!(owed.first_unasked().map(|(page, run)| (page, run.pages)), Some((13, 1)));
        owed.forget_asked();
        assert_eq!(owed.first_unasked().map(|(page, _)| page), Some(10));
    }
}
