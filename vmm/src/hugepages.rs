//! RAM of huge pages. All are taken from the host before the guest runs, so that no access of the
//! guest finds none left, which would end this process (SIGBUS).

use std::path::Path;

use exoprobe_guest::GuestRam;
use exoprobe_guest::addr::to_usize;
use exoprobe_guest::memory::{MemoryError, RamRange};
use exoprobe_guest::paging::PAGE_SIZE_2M;
use vm_memory::GuestMemoryBackend;
use vm_memory::mmap::MmapRegionBuilder;

use crate::ram::PROT_RAM;

/// The host's huge pages of 2 MiB (Documentation/admin-guide/mm/hugetlbpage.rst).
pub const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
/// Private memory counts as reserved from mmap on: it fails where there are too few pages.
const MAP_HUGE: i32 = libc::MAP_ANONYMOUS
    | libc::MAP_PRIVATE
    | libc::MAP_HUGETLB
    | libc::MAP_HUGE_2MB
    | libc::MAP_POPULATE;

/// Why there is no RAM of huge pages.
#[derive(Debug, thiserror::Error)]
pub enum HugePagesError {
    /// The host's kernel has none of that size.
    #[error("--hugepages: this host has no huge pages of 2 MiB ({HUGE_PAGES}: {0})")]
    None(std::io::Error),
    /// Too few are free.
    #[error(
        "--hugepages: the guest needs {needed} huge pages of 2 MiB, and {free} are free; \
         `echo {total} > /proc/sys/vm/nr_hugepages`, as root, makes the missing ones"
    )]
    Few {
        /// Pages that the RAM consists of.
        needed: u64,
        /// Those that no program has or has reserved.
        free: u64,
        /// Number that the host must have in all.
        total: u64,
    },
    /// They are free, but this process may not have them all.
    #[error(
        "--hugepages: the host gave {given} of {needed} free huge pages of 2 MiB: a limit of the control group \
         (hugetlb.2MB.max) or of its memory nodes (cpuset.mems) is lower; raise it, or lower --memory"
    )]
    Limited {
        /// Pages that the RAM consists of.
        needed: u64,
        /// Those that it got.
        given: u64,
    },
    /// The host refused the mapping.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The number of the host's huge pages.
struct Pool {
    all: u64,
    free: u64,
}

impl Pool {
    fn read(folder: &Path) -> std::io::Result<Self> {
        let number = |name| -> std::io::Result<u64> {
            let text = std::fs::read_to_string(folder.join(name))?;
            text.trim().parse().map_err(|_| std::io::ErrorKind::InvalidData.into())
        };
        let (all, free) = (number("nr_hugepages")?, number("free_hugepages")?);
        // Free ones include those that programs have reserved.
        let reserved = number("resv_hugepages")?;
        Ok(Self { all, free: free.saturating_sub(reserved) })
    }

    fn check(&self, needed: u64) -> Result<(), HugePagesError> {
        let &Self { all, free } = self;
        match needed.checked_sub(free) {
            None | Some(0) => Ok(()),
            Some(missing) => {
                Err(HugePagesError::Few { needed, free, total: all.saturating_add(missing) })
            }
        }
    }
}

/// Fresh zeroed RAM, all of it in the host's memory. `ranges` are multiples of 2 MiB.
///
/// # Errors
/// [`HugePagesError`]; no page was kept.
pub(crate) fn allocate(ranges: &[RamRange]) -> Result<GuestRam, HugePagesError> {
    let needed = ranges.iter().map(|range| range.len.div_ceil(PAGE_SIZE_2M)).sum();
    Pool::read(Path::new(HUGE_PAGES)).map_err(HugePagesError::None)?.check(needed)?;
    let ram = GuestRam::map(ranges, |range| {
        MmapRegionBuilder::new(to_usize(range.len))
            .with_mmap_prot(PROT_RAM)
            .with_mmap_flags(MAP_HUGE)
            .with_hugetlbfs(true)
    })?;
    // mmap does not report a page that it could not populate.
    let given = resident(&ram);
    if given == needed { Ok(ram) } else { Err(HugePagesError::Limited { needed, given }) }
}

/// Number of huge pages that are in the host's memory.
fn resident(ram: &GuestRam) -> u64 {
    let is_resident = |at: *mut u8| {
        let mut state = 0;
        // SAFETY: mincore writes one byte, for the page of 4 KiB at `at`; it reads none of it.
        let result = unsafe { libc::mincore(at.cast(), 1, &raw mut state) };
        result == 0 && state & 1 == 1
    };
    let pages = ram.as_vm_memory().iter().flat_map(|region| {
        let offsets = (0..region.size()).step_by(to_usize(PAGE_SIZE_2M));
        offsets.map(|offset| region.as_ptr().wrapping_add(offset))
    });
    pages.filter(|page| is_resident(*page)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_pages_are_refused_by_the_number_that_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let set = |all: &str, free: &str, reserved: &str| {
            for (name, text) in
                [("nr_hugepages", all), ("free_hugepages", free), ("resv_hugepages", reserved)]
            {
                std::fs::write(dir.path().join(name), format!("{text}\n")).unwrap();
            }
            Pool::read(dir.path())
        };
        let pool = set("100", "40", "10").unwrap();
        pool.check(30).unwrap();
        let error = pool.check(32).unwrap_err().to_string();
        assert!(error.contains("needs 32 huge pages of 2 MiB, and 30 are free"), "{error}");
        assert!(error.contains("`echo 102 > /proc/sys/vm/nr_hugepages`"), "{error}");
        assert!(set("100", "many", "0").is_err());
        assert!(Pool::read(&dir.path().join("none")).is_err());
    }
}
