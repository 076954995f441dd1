//! Searches all RAM for addresses, mostly while the guest runs.
//!
//! First all of RAM is looked at, then, round by round, the pages that were written since they were
//! looked at: the host's log has them. When they are few, the vCPUs are stopped for the last of
//! them and for the registers. A page that was not written since it was looked at is as it was, so
//! the result is that of a look at all RAM during the stop (`liveness::scan_references`), which
//! debug builds compare.

#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "public with the feature `testing`")
)]

use std::collections::BTreeSet;

use exoprobe_guest::dirty::{DirtyLog, DirtyLogError, LoggedHostWrites, PageRun, PageSet};
use exoprobe_guest::{Gpa, Guest, GuestRam, Registers, VcpuError};
use rustc_hash::FxHashMap;

use crate::engine::optimize::liveness::{Addresses, page_words, scan_references};

/// Most pages that are looked at in a stop: 2 MiB, some 0.3 ms.
const STOP_PAGES: usize = 512;
/// Most pages that are cleared in KVM's log in one call, which holds the lock of its page tables.
const RUN_PAGES: usize = 8192;
/// Most rounds while the guest runs.
const ROUNDS: u32 = 16;
/// Most stops that look at a part of the pages and leave no fewer than an earlier one.
const STOPS: u32 = 64;
/// Pages that are looked at between two of those, while the guest runs: half as many after each
/// [`SLOWER`] stops, so that in the end the guest hardly runs.
const BETWEEN: usize = 4096;
const SLOWER: u32 = 8;
/// Most bytes of RAM of which [`check`] looks at every page.
const ALL_CHECKED: u64 = 64 << 20;
/// Most places that are remembered by page. What else is found counts as found until the end.
const PLACES: usize = 1 << 16;

/// The reason why a search has no result.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A vCPU did not answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The guest writes more between two stops than is looked at in one.
    #[error("the guest writes its memory faster than it can be searched: {0} pages are left")]
    TooFast(usize),
}

/// The work of searches so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SearchStatistics {
    /// Searches that were begun.
    pub searches: u64,
    /// Pages looked at while the guest ran.
    pub pages_running: u64,
    /// Most pages looked at in one stop.
    pub most_pages_stopped: u64,
    /// Searches that looked at all RAM in a stop.
    pub all_stopped: u64,
    /// Why the last of those did.
    pub reason: Option<String>,
}

/// A search for words among `among`. It stops the guest as often as is asked; what was found stays
/// up to date at little cost.
pub struct Search<'a> {
    guest: &'a dyn Guest,
    among: &'a Addresses,
    /// None: all RAM is looked at in the stop.
    logged: Option<Logged<'a>>,
    statistics: &'a mut SearchStatistics,
}

/// A search over a guest whose writes are logged.
struct Logged<'a> {
    ram: &'a GuestRam,
    among: &'a Addresses,
    log: Box<dyn DirtyLog + 'a>,
    host: LoggedHostWrites<'a>,
    /// Pages that may have changed since they were looked at.
    pending: PageSet,
    found: Found,
    is_first: bool,
}

impl<'a> Search<'a> {
    /// Begins a search. One at a time: the log has one reader.
    pub fn new(
        guest: &'a dyn Guest,
        among: &'a Addresses,
        statistics: &'a mut SearchStatistics,
    ) -> Self {
        statistics.searches += 1;
        let mut search = Self { guest, among, logged: None, statistics };
        if !among.is_empty() {
            let host = guest.ram().log_host_writes();
            match guest.log_writes() {
                Ok(log) => search.logged = Some(Logged::new(guest.ram(), among, log, host)),
                Err(error) => search.stop_for_all(&error),
            }
        }
        search
    }

    fn stop_for_all(&mut self, error: &DirtyLogError) {
        tracing::debug!(%error, "the guest stands still while its RAM is searched");
        self.logged = None;
        self.statistics.all_stopped += 1;
        self.statistics.reason = Some(error.to_string());
    }

    /// Looks at all pages that were written since they were looked at, while the guest runs, until
    /// few are left or there are not fewer of them. Calls `pause` after each 32 MiB at most.
    pub fn settle(&mut self, pause: &mut dyn FnMut()) {
        let Some(logged) = &mut self.logged else { return };
        match logged.settle(pause) {
            Ok(looked) => self.statistics.pages_running += looked as u64,
            Err(error) => self.stop_for_all(&error),
        }
    }

    /// Stops the guest and calls `access` once with the numbers of the ranges that a register or an
    /// aligned word of RAM points into. It may be stopped several times, each for a bounded number
    /// of pages.
    ///
    /// # Errors
    /// [`SearchError`]; `access` was not called.
    pub fn stop(&mut self, access: &mut dyn FnMut(&BTreeSet<usize>)) -> Result<(), SearchError> {
        self.settle(&mut || ());
        let mut throttle = Throttle::default();
        while let Some(logged) = &mut self.logged {
            let mut looked = Ok(false);
            let (ram, among, most) =
                (logged.ram, self.among, &mut self.statistics.most_pages_stopped);
            self.guest.with_vcpus_still(&mut |registers| {
                looked = logged.look_stopped(most);
                if let Ok(true) = looked {
                    let mut found = logged.found.numbers();
                    among.scan_registers(registers, &mut found);
                    check(ram, registers, among, &found);
                    access(&found);
                }
            })?;
            let looked = match looked {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let left = logged.pending.count();
                    let pages = throttle.next(left).ok_or(SearchError::TooFast(left))?;
                    logged.look(pages, &mut || ())
                }
                Err(error) => Err(error),
            };
            match looked {
                Ok(pages) => self.statistics.pages_running += pages as u64,
                Err(error) => self.stop_for_all(&error),
            }
        }
        self.stop_once(access)
    }

    /// Looks at all RAM in one stop.
    fn stop_once(&self, access: &mut dyn FnMut(&BTreeSet<usize>)) -> Result<(), SearchError> {
        let ram = self.guest.ram();
        Ok(self.guest.with_vcpus_still(&mut |registers| {
            access(&scan_references(ram, registers, self.among));
        })?)
    }
}

/// How often the guest was stopped and pages were left.
#[derive(Default)]
struct Throttle {
    stops: u32,
    /// Stops since the number of pages that were left was lowest, and this number.
    since: u32,
    fewest: Option<usize>,
}

impl Throttle {
    /// After a stop that left so many pages: how many to look at while the guest runs, before the
    /// next. `None` once stops do not help.
    fn next(&mut self, left: usize) -> Option<usize> {
        self.stops += 1;
        let is_progress = self.fewest.is_none_or(|fewest| left + STOP_PAGES / 8 < fewest);
        self.since = if is_progress { 0 } else { self.since + 1 };
        self.fewest = Some(self.fewest.map_or(left, |fewest| fewest.min(left)));
        let pages = BETWEEN.checked_shr(self.stops / SLOWER).unwrap_or(0);
        (self.since < STOPS).then_some(pages)
    }
}

/// Debug builds look at all RAM, too: what is in use must be found. Of large guests they leave out
/// pages that the host has no memory for.
fn check(ram: &GuestRam, registers: &[Registers], among: &Addresses, found: &BTreeSet<usize>) {
    if cfg!(debug_assertions) {
        let all = match ram.size() {
            ..=ALL_CHECKED => scan_references(ram, registers, among),
            _ => scan_touched(ram, registers, among),
        };
        let missed: Vec<_> = all.difference(found).collect();
        assert!(missed.is_empty(), "the search missed {missed:?}");
    }
}

/// As [`scan_references`], but for pages that the host has no memory for: they are zero.
fn scan_touched(ram: &GuestRam, registers: &[Registers], among: &Addresses) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    among.scan_registers(registers, &mut found);
    let mut pages = PageSet::all(ram);
    while let Some(mut run) = pages.take_run(RUN_PAGES) {
        run.keep_touched(ram);
        for page in run.pages() {
            among.scan(page_words(ram, page), |number| _ = found.insert(number));
        }
    }
    found
}

impl<'a> Logged<'a> {
    fn new(
        ram: &'a GuestRam,
        among: &'a Addresses,
        log: Box<dyn DirtyLog + 'a>,
        host: LoggedHostWrites<'a>,
    ) -> Self {
        let pending = PageSet::all(ram);
        Self { ram, among, log, host, pending, found: Found::default(), is_first: true }
    }

    /// Adds the pages that were written to those to look at.
    fn gather(&mut self) -> Result<usize, DirtyLogError> {
        self.log.read(&mut self.pending)?;
        self.host.take(|at| self.pending.insert(at));
        Ok(self.pending.count())
    }

    /// Returns how many pages were looked at.
    fn settle(&mut self, pause: &mut dyn FnMut()) -> Result<usize, DirtyLogError> {
        let mut looked = 0;
        let mut before = usize::MAX;
        for _ in 0..ROUNDS {
            looked += self.look(usize::MAX, pause)?;
            let pages = self.gather()?;
            if pages <= STOP_PAGES || pages >= before {
                break;
            }
            before = pages;
        }
        Ok(looked)
    }

    /// Looks at up to so many of the pages to look at, and has their next writes logged before.
    /// Returns their number. Calls `pause` after each part.
    fn look(&mut self, most: usize, pause: &mut dyn FnMut()) -> Result<usize, DirtyLogError> {
        let mut looked = 0;
        while looked < most
            && let Some(mut run) = self.pending.take_run((most - looked).min(RUN_PAGES))
        {
            self.log.clear(&run)?;
            if self.is_first {
                run.keep_touched(self.ram);
            }
            looked += self.scan(&run);
            pause();
        }
        self.is_first = false;
        Ok(looked)
    }

    /// With the vCPUs still: looks at all pages that are left. Returns false if there are too many:
    /// some of them were looked at, and their next writes are logged. `most` becomes the number of
    /// pages that were looked at, unless it is higher.
    fn look_stopped(&mut self, most: &mut u64) -> Result<bool, DirtyLogError> {
        let is_last = self.gather()? <= STOP_PAGES;
        let mut looked = 0;
        if !is_last {
            looked = self.look(STOP_PAGES, &mut || ())?;
        }
        // They stay in the log, and are looked at again at the next stop.
        while is_last && let Some(run) = self.pending.take_run(STOP_PAGES) {
            looked += self.scan(&run);
        }
        *most = (*most).max(looked as u64);
        Ok(is_last)
    }

    fn scan(&mut self, run: &PageRun) -> usize {
        for page in run.pages() {
            self.found.forget(page);
            let words = page_words(self.ram, page);
            self.among.scan(words, |number| self.found.add(page, number));
        }
        run.count()
    }
}

/// Where words among the ranges were found.
#[derive(Default)]
struct Found {
    by_page: FxHashMap<Gpa, BTreeSet<usize>>,
    places: usize,
    /// Numbers without a place: there were too many.
    others: BTreeSet<usize>,
}

impl Found {
    fn forget(&mut self, page: Gpa) {
        if let Some(numbers) = self.by_page.remove(&page) {
            self.places -= numbers.len();
        }
    }

    fn add(&mut self, page: Gpa, number: usize) {
        if self.places >= PLACES {
            self.others.insert(number);
        } else if self.by_page.entry(page).or_default().insert(number) {
            self.places += 1;
        }
    }

    fn numbers(&self) -> BTreeSet<usize> {
        self.by_page.values().flatten().chain(&self.others).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest may fill its RAM with such words.
    #[test]
    fn places_are_remembered_up_to_a_number_and_all_others_stay_found() {
        let page = |number: usize| Gpa(number as u64 * 4096);
        let mut found = Found::default();
        (0..PLACES).for_each(|number| found.add(page(number), number % 2));
        assert_eq!((found.numbers(), found.others.len()), (BTreeSet::from([0, 1]), 0));
        found.add(page(PLACES), 2);
        (0..=PLACES).for_each(|number| found.forget(page(number)));
        assert_eq!((found.numbers(), found.places), (BTreeSet::from([2]), 0));
        found.add(page(0), 3);
        found.add(page(0), 3);
        assert_eq!((found.numbers(), found.places), (BTreeSet::from([2, 3]), 1));
    }
}
