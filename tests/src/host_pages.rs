//! The host's huge pages of 2 MiB.

use std::path::Path;

/// Their number, which root may change.
pub(crate) const COUNT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Huge pages of the host's that no program has. Their former number is set again when this goes.
#[derive(Debug)]
pub struct HostPages {
    former: u64,
}

fn read(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("the host has huge pages");
    text.trim().parse().expect("a number")
}

impl HostPages {
    /// Adds what is missing to so many free ones, by root alone. A killed test leaves its own.
    ///
    /// # Panics
    /// When the host has no memory for them.
    #[must_use]
    pub fn add(pages: u64) -> Self {
        let added = Self { former: read(COUNT) };
        let number = added.former + pages.saturating_sub(read(FREE));
        std::fs::write(COUNT, number.to_string()).expect("root may");
        assert_eq!(read(COUNT), number, "the host has that many huge pages");
        added
    }

    /// The number that no program has.
    ///
    /// # Panics
    /// When the host does not report it.
    #[must_use]
    pub fn free(&self) -> u64 {
        read(FREE)
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        drop(std::fs::write(COUNT, self.former.to_string()));
    }
}

/// Whether the number can be changed here.
pub(crate) fn can_be_changed() -> bool {
    std::fs::File::options().write(true).open(Path::new(COUNT)).is_ok()
}
