//! What folders were like a moment ago: the kernel asks for each part of a path each time, and what a file is, its
//! folder tells.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::path::TracePath;

/// How long what has gone by another hand than this mount's may still be seen.
const KEEP: Duration = Duration::from_secs(1);

/// Folders as they were last listed.
#[derive(Debug)]
pub(super) struct Listings {
    keep: Duration,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    folders: HashMap<TracePath, Listing>,
    /// How often something was changed by way of this mount.
    changes: u64,
    swept: Instant,
}

#[derive(Debug)]
struct Listing {
    /// When it was asked for.
    asked: Instant,
    entries: HashMap<String, Entry>,
}

/// A question to the service for what is in a folder.
pub(super) struct Asked {
    at: Instant,
    changes: u64,
}

impl Listings {
    pub(super) fn new() -> Self {
        Self::kept_for(KEEP)
    }

    pub(super) fn kept_for(keep: Duration) -> Self {
        let known = Known { folders: HashMap::new(), changes: 0, swept: Instant::now() };
        Self { keep, known: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was in a folder a moment ago; `None` also where it has to be asked.
    pub(super) fn get(&self, folder: &TracePath, name: &str) -> Option<Entry> {
        let known = self.known();
        let listing = known.folders.get(folder)?;
        (listing.asked.elapsed() < self.keep).then(|| listing.entries.get(name).cloned())?
    }

    /// The service is about to be asked.
    pub(super) fn ask(&self) -> Asked {
        Asked { at: Instant::now(), changes: self.known().changes }
    }

    /// It has answered. An answer that a change may have overtaken is not kept.
    pub(super) fn put(&self, folder: &TracePath, asked: &Asked, entries: &[Entry]) {
        let mut known = self.known();
        if known.changes != asked.changes {
            return;
        }
        // What nobody looks at any more does not stay.
        if known.swept.elapsed() >= self.keep {
            known.folders.retain(|_, listing| listing.asked.elapsed() < self.keep);
            known.swept = Instant::now();
        }
        let entries = entries.iter().map(|entry| (entry.name.clone(), entry.clone())).collect();
        known.folders.insert(folder.clone(), Listing { asked: asked.at, entries });
    }

    /// Nothing is known of a folder.
    pub(super) fn forget(&self, folder: &TracePath) {
        self.known().folders.remove(folder);
    }

    /// Something is being changed by way of this mount, until what this gives is dropped: nothing that was known before
    /// then is known any more.
    pub(super) fn change(&self) -> Change<'_> {
        Change(self)
    }
}

/// A change that is under way. Whoever waits for it may be called away: it is over then, too.
pub(super) struct Change<'a>(&'a Listings);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut known = self.0.known();
        known.changes += 1;
        known.folders.clear();
    }
}

#[cfg(test)]
mod tests {
    use fuser::FileType;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn entries() -> [Entry; 1] {
        [Entry { name: "a".to_owned(), kind: FileType::Directory, mode: 0o750 }]
    }

    #[test]
    fn what_was_listed_is_known_until_it_is_old_or_something_changes() {
        let root = TracePath::root();
        let listings = Listings::kept_for(LONG);
        assert_eq!(listings.get(&root, "a"), None);
        listings.put(&root, &listings.ask(), &entries());
        assert_eq!(listings.get(&root, "a").as_ref(), entries().first());
        assert_eq!(listings.get(&root, "b"), None, "it may have come meanwhile");
        drop(listings.change());
        assert_eq!(listings.get(&root, "a"), None);
        let asked = listings.ask();
        drop(listings.change());
        listings.put(&root, &asked, &entries());
        assert_eq!(listings.get(&root, "a"), None, "the answer may be of before the change");
        listings.put(&root, &listings.ask(), &entries());
        listings.forget(&root);
        assert_eq!(listings.get(&root, "a"), None);
    }

    #[test]
    fn what_is_old_is_not_known_and_does_not_stay() {
        let listings = Listings::kept_for(Duration::ZERO);
        let folder = TracePath::root().child("events").unwrap();
        listings.put(&folder, &listings.ask(), &entries());
        assert_eq!(listings.get(&folder, "a"), None);
        listings.put(&TracePath::root(), &listings.ask(), &entries());
        assert_eq!(listings.known().folders.len(), 1);
    }
}
