//! Kernel and initramfs files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::bzimage::{self, Unpacker};
use super::kernel::{ImageError, LoadedKernel, load_elf, low_ram_end};
use exoprobe_guest::Gpa;
use exoprobe_guest::GuestRam;
use exoprobe_guest::addr::to_usize;
use exoprobe_guest::layout::MMIO_GAP_START;
use exoprobe_guest::paging::PAGE_SIZE;

const ELF_MAGIC: &[u8] = b"\x7fELF";
const BZIMAGE_MAGIC: &[u8] = b"HdrS";
const BZIMAGE_MAGIC_OFFSET: usize = 0x202;

/// An initramfs in RAM.
#[derive(Clone, Copy)]
pub(super) struct Initramfs {
    pub(super) start: Gpa,
    pub(super) size: u64,
}

fn open(path: &Path) -> Result<(File, u64), ImageError> {
    let fail = |source| ImageError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_dir() {
        return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    if meta.len() == 0 {
        return Err(ImageError::Empty(path.to_owned()));
    }
    Ok((file, meta.len()))
}

/// Loads an ELF vmlinux at its physical addresses, or a bzImage by `unpacker`.
pub(super) fn load_kernel(
    ram: &GuestRam,
    path: &Path,
    unpacker: Unpacker,
) -> Result<LoadedKernel, ImageError> {
    let (mut file, _) = open(path)?;
    let mut head = Vec::new();
    file.by_ref()
        .take(PAGE_SIZE)
        .read_to_end(&mut head)
        .map_err(|source| ImageError::Read { path: path.to_owned(), source })?;
    if head.starts_with(ELF_MAGIC) {
        load_elf(ram, path, &mut file, &head)
    } else if head[BZIMAGE_MAGIC_OFFSET.min(head.len())..].starts_with(BZIMAGE_MAGIC) {
        bzimage::load(ram, path, &mut file, unpacker)
    } else {
        Err(ImageError::NotAKernel(path.to_owned()))
    }
}

/// Loads the initramfs as high as it fits below 3 GiB, without overlapping the kernel.
pub(super) fn load_initramfs(
    ram: &GuestRam,
    path: &Path,
    kernel: &LoadedKernel,
) -> Result<Initramfs, ImageError> {
    let (mut file, size) = open(path)?;
    let highest =
        kernel.header.map_or(MMIO_GAP_START, |h| u64::from(h.initrd_addr_max).saturating_add(1));
    let top = low_ram_end(ram).min(highest);
    let room = top.saturating_sub(kernel.end.0.next_multiple_of(PAGE_SIZE));
    let needed_mib =
        kernel.end.0.saturating_add(size).saturating_add(2 * PAGE_SIZE).div_ceil(1 << 20);
    let too_large =
        || ImageError::InitramfsTooLarge { path: path.to_owned(), size, room, needed_mib };
    if size > room {
        return Err(too_large());
    }
    let start = Gpa(top - size).align_down(PAGE_SIZE);
    let fail = |source| ImageError::Read { path: path.to_owned(), source };
    file.seek(SeekFrom::Start(0)).map_err(fail)?;
    let mut data = Vec::with_capacity(to_usize(size));
    file.take(size).read_to_end(&mut data).map_err(fail)?;
    ram.write(start, &data).map_err(|_| too_large())?;
    Ok(Initramfs { start, size })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::kernel::EM_X86_64;
    use super::*;
    use exoprobe_guest::memory::ram_ranges;
    use std::io::Write;

    pub(in crate::boot) fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn load(content: &[u8]) -> Result<LoadedKernel, ImageError> {
        let ram = GuestRam::anonymous(&ram_ranges(32)).unwrap();
        load_kernel(&ram, file(content).path(), Unpacker::Guest)
    }

    /// A minimal ELF header with one program header that promises `filesz` bytes at 16 MiB.
    pub(crate) fn elf(machine: u16, paddr: u64, filesz: u64, memsz: u64) -> Vec<u8> {
        let mut image = vec![0; 120];
        image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        image[18..20].copy_from_slice(&machine.to_le_bytes());
        image[24..32].copy_from_slice(&0x100_0000u64.to_le_bytes());
        image[32..40].copy_from_slice(&64u64.to_le_bytes());
        image[54..56].copy_from_slice(&56u16.to_le_bytes());
        image[56..58].copy_from_slice(&1u16.to_le_bytes());
        image[64..68].copy_from_slice(&1u32.to_le_bytes());
        image[72..80].copy_from_slice(&0u64.to_le_bytes());
        image[88..96].copy_from_slice(&paddr.to_le_bytes());
        image[96..104].copy_from_slice(&filesz.to_le_bytes());
        image[104..112].copy_from_slice(&memsz.to_le_bytes());
        image
    }

    #[test]
    fn a_well_formed_elf_loads() {
        let kernel = load(&elf(EM_X86_64, 0x100_0000, 120, 4096)).unwrap();
        assert_eq!(kernel.entry, Gpa(0x100_0000));
        assert_eq!(kernel.end, Gpa(0x100_1000));
    }

    #[test]
    fn bad_images_are_told_apart() {
        let missing = load_kernel(
            &GuestRam::anonymous(&ram_ranges(32)).unwrap(),
            Path::new("/nonexistent/vmlinux"),
            Unpacker::Guest,
        );
        assert!(matches!(missing, Err(ImageError::Read { .. })));
        assert!(matches!(load(b""), Err(ImageError::Empty(_))));
        assert!(matches!(load(b"#!/bin/sh\n"), Err(ImageError::NotAKernel(_))));
        let arm = load(&elf(183, 0x100_0000, 120, 4096));
        assert!(matches!(arm, Err(ImageError::NotX86_64 { .. })));
        let short = load(&elf(EM_X86_64, 0x100_0000, 1 << 20, 1 << 20));
        assert!(matches!(short, Err(ImageError::Load { .. })), "truncated");
        let high = load(&elf(EM_X86_64, 0x100_0000, 120, 1 << 40));
        assert!(matches!(high, Err(ImageError::Load { .. })), "larger than memory");
        assert!(load(&elf(EM_X86_64, u64::MAX - 8, 120, u64::MAX)).is_err());
        assert!(load(ELF_MAGIC).is_err());
        let mut bz = vec![0; 0x260];
        bz[0x202..0x206].copy_from_slice(b"HdrS");
        assert!(load(&bz).is_err());
    }

    #[test]
    fn an_initramfs_larger_than_memory_is_refused_with_the_room_there_is() {
        let ram = GuestRam::anonymous(&ram_ranges(24)).unwrap();
        let kernel = LoadedKernel { entry: Gpa(0), end: Gpa(20 << 20), header: None };
        let large = file(&vec![7; 5 << 20]);
        let refused = load_initramfs(&ram, large.path(), &kernel);
        assert!(matches!(
            refused,
            Err(ImageError::InitramfsTooLarge { room, .. }) if room == 4 << 20
        ));
        let small = load_initramfs(&ram, file(b"070701").path(), &kernel).unwrap();
        assert_eq!(small.start, Gpa((24 << 20) - 4096));
    }
}
