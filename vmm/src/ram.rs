//! RAM operations that only this VMM uses: mapping from a snapshot, clearing for a reboot, copying
//! to a file.

use std::fs::File;
use std::sync::Arc;

use exoprobe_guest::addr::to_usize;
use exoprobe_guest::memory::{MemoryError, RamRange, leave_out_of_dumps};
use exoprobe_guest::{Gpa, GuestRam};
use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

/// Bytes of RAM that are copied at once to a file.
pub(crate) const CHUNK: usize = 1 << 20;
pub(crate) const PROT_RAM: i32 = libc::PROT_READ | libc::PROT_WRITE;
const MAP_RAM: i32 = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE;

/// RAM whose first content is in `file`, ranges back to back from `offset` on. The
/// mapping is private: pages are read when touched and the file never changes.
///
/// # Errors
/// As [`GuestRam::anonymous`].
pub(crate) fn from_file(
    ranges: &[RamRange],
    file: File,
    offset: u64,
) -> Result<GuestRam, MemoryError> {
    let shared = Arc::new(file);
    let mut at = offset;
    GuestRam::map(ranges, |range| {
        let here = FileOffset::from_arc(Arc::clone(&shared), at);
        at += range.len;
        MmapRegionBuilder::new(to_usize(range.len))
            .with_file_offset(here)
            .with_mmap_prot(PROT_RAM)
            .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_NORESERVE)
    })
}

/// Clears all RAM, and returns its pages to the host, except for huge pages: another program could
/// take them. RAM that was mapped from a file no longer is, and locked RAM no longer is locked. A
/// concurrent reader sees each byte unchanged or zero.
///
/// # Errors
/// [`MemoryError::Map`] when the host refuses.
pub(crate) fn clear(ram: &GuestRam) -> Result<(), MemoryError> {
    for region in ram.as_vm_memory().iter() {
        if region.flags() & libc::MAP_HUGETLB != 0 {
            overwrite(ram, region);
            continue;
        }
        let flags = MAP_RAM | libc::MAP_FIXED;
        // SAFETY: the range is exactly one mapping that `ram` owns, so no other mapping is
        // replaced, and its owner unmaps the new one in its place. Accesses go through raw pointers
        // and atomics (`words`), for which the memory stays readable and writable all the time
        // (mmap(2) replaces it in one step): to them the guest may have written zeros, as it may at
        // any moment. The host's kernel notifies KVM of the change.
        let mapped =
            unsafe { libc::mmap(region.as_ptr().cast(), region.size(), PROT_RAM, flags, -1, 0) };
        let left_out = match mapped {
            libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
            // The advice was the old mapping's.
            _ => leave_out_of_dumps(region.as_ptr(), region.size()),
        };
        left_out.map_err(|error| {
            let source = MmapRegionError::Mmap(error);
            MemoryError::Map { mib: region.len() >> 20, source }
        })?;
    }
    Ok(())
}

/// Writes zeros to a region.
fn overwrite(ram: &GuestRam, region: &GuestRegionMmap) {
    let zeros = vec![0; CHUNK];
    for at in (0..region.len()).step_by(CHUNK) {
        let len = to_usize(region.len() - at).min(CHUNK);
        let gpa = Gpa(region.start_addr().0 + at);
        ram.write(gpa, &zeros[..len]).expect("a region of RAM is in RAM");
    }
}

/// Passes a copy of all RAM to `take`, in ascending order, in chunks with their first addresses,
/// until `take` fails.
///
/// # Errors
/// The error of `take`.
///
/// # Panics
/// Never: all addresses read are in RAM.
pub(crate) fn for_each_chunk<E>(
    ram: &GuestRam,
    mut take: impl FnMut(Gpa, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; CHUNK];
    for range in ram.ranges() {
        for at in (0..range.len).step_by(CHUNK) {
            let chunk = &mut buffer[..to_usize((range.len - at).min(CHUNK as u64))];
            let gpa = Gpa(range.start.0 + at);
            ram.read(gpa, chunk).expect("a range of RAM is in RAM");
            take(gpa, chunk)?;
        }
    }
    Ok(())
}

/// Host address of the first byte of the RAM range that starts at `start`.
pub(crate) fn host_address(ram: &GuestRam, start: Gpa) -> u64 {
    let host = ram.as_vm_memory().get_host_address(GuestAddress(start.0));
    host.expect("the range starts in RAM") as u64
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::testing::has_vm_flag;

    use super::*;

    #[test]
    fn cleared_ram_is_zero_and_its_file_is_as_it_was() {
        let ranges = [
            RamRange { start: Gpa(0), len: 1 << 20 },
            RamRange { start: Gpa(1 << 30), len: 1 << 20 },
        ];
        let content = vec![7; 2 << 20];
        let path = std::env::temp_dir().join(format!("exoprobe-ram-{}", std::process::id()));
        std::fs::write(&path, &content).unwrap();
        let from_file = from_file(&ranges, File::open(&path).unwrap(), 0).unwrap();
        let anonymous = GuestRam::anonymous(&ranges).unwrap();
        let last = Gpa((1 << 30) + (1 << 20) - 1);
        for ram in [from_file, anonymous] {
            ram.write(Gpa(0), &[1, 2]).unwrap();
            ram.store_byte(last, 3).unwrap();
            let is_dumped = || {
                let starts = ranges.iter().map(|range| to_usize(host_address(&ram, range.start)));
                starts.map(|at| has_vm_flag(at, "dd")).any(|left_out| !left_out)
            };
            assert!(!is_dumped());
            clear(&ram).unwrap();
            assert!(!is_dumped());
            for range in &ranges {
                let mut bytes = vec![1; to_usize(range.len)];
                ram.read(range.start, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0));
            }
            ram.store_byte(last, 4).unwrap();
            assert_eq!(ram.load_byte(last), Ok(4), "it is memory as before");
        }
        assert_eq!(std::fs::read(&path).unwrap(), content);
        std::fs::remove_file(&path).unwrap();
    }
}
