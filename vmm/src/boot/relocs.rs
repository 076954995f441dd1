//! Moves an unpacked kernel to another virtual address, as its own decompressor does for KASLR
//! (Linux, arch/x86/boot/compressed: `handle_relocations`, `find_random_virt_addr`). The physical
//! address stays.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use linux_loader::loader::bootparam::setup_header;

use exoprobe_guest::Gpa;
use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{GuestRam, OutsideMemory};

/// KERNEL_IMAGE_SIZE of kernels with CONFIG_RANDOMIZE_BASE: the range of the kernel's virtual
/// addresses.
const IMAGE_SIZE: u64 = 1 << 30;
const WORD: usize = 4;

/// Places in a kernel that depend on where it is mapped, by their own virtual address,
/// sign-extended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Relocations {
    /// 64-bit addresses.
    add64: Vec<u32>,
    /// 32-bit distances from per-CPU data, which is not moved (Linux before 6.15).
    subtract32: Vec<u32>,
    /// 32-bit addresses.
    add32: Vec<u32>,
}

impl Relocations {
    /// Reads the table that follows the ELF file in `unpacked`: three lists, or two, each preceded
    /// by a zero. `None` if there is no table, as in a kernel without KASLR.
    pub(super) fn find(unpacked: &[u8]) -> Option<Self> {
        let table = unpacked.get(elf_len(unpacked)?..)?;
        let (words, []) = table.as_chunks::<WORD>() else { return None };
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (0, lists) = words.split_first()? else { return None };
        let lists: Vec<Vec<u32>> = lists.split(|word| *word == 0).map(<[u32]>::to_vec).collect();
        match <[Vec<u32>; 3]>::try_from(lists) {
            Ok([add64, subtract32, add32]) => Some(Self { add64, subtract32, add32 }),
            Err(lists) => {
                let [add64, add32] = <[Vec<u32>; 2]>::try_from(lists).ok()?;
                Some(Self { add64, subtract32: Vec::new(), add32 })
            }
        }
    }

    /// Returns true if all places are within `kernel`.
    pub(super) fn are_within(&self, kernel: &Range<Gpa>) -> bool {
        let inside = |len: u64| {
            move |word: &u32| {
                let start = gpa(*word);
                start >= kernel.start && start.0.checked_add(len).is_some_and(|e| e <= kernel.end.0)
            }
        };
        self.add64.iter().all(inside(8)) && self.subtract32.iter().chain(&self.add32).all(inside(4))
    }

    /// Moves the kernel in `ram` up by `slide` bytes of virtual address.
    pub(super) fn apply(&self, ram: &GuestRam, slide: u64) -> Result<(), OutsideMemory> {
        // Below 1 GiB: see `random_slide`.
        let slide32 = u32::try_from(slide).unwrap_or_default();
        for word in &self.add64 {
            change(ram, *word, |value| {
                u64::from_le_bytes(value).wrapping_add(slide).to_le_bytes()
            })?;
        }
        for word in &self.subtract32 {
            let moved = |value| u32::from_le_bytes(value).wrapping_sub(slide32).to_le_bytes();
            change(ram, *word, moved)?;
        }
        for word in &self.add32 {
            let moved = |value| u32::from_le_bytes(value).wrapping_add(slide32).to_le_bytes();
            change(ram, *word, moved)?;
        }
        Ok(())
    }
}

/// Physical address of the place that `word` of a table refers to.
fn gpa(word: u32) -> Gpa {
    let gva = i64::from(word.cast_signed()).cast_unsigned();
    Gpa(gva.wrapping_sub(KERNEL_IMAGE_BASE.0))
}

fn change<const N: usize>(
    ram: &GuestRam,
    word: u32,
    moved: impl Fn([u8; N]) -> [u8; N],
) -> Result<(), OutsideMemory> {
    let mut value = [0; N];
    ram.read(gpa(word), &mut value)?;
    ram.write(gpa(word), &moved(value))
}

/// Bytes of the ELF file that `unpacked` begins with: objcopy puts the section headers last.
fn elf_len(unpacked: &[u8]) -> Option<usize> {
    let shoff = u64::from_le_bytes(*unpacked.get(40..)?.first_chunk()?);
    let [entry_size, entries] = [58, 60].map(|at| {
        let field = unpacked.get(at..)?.first_chunk()?;
        Some(u64::from(u16::from_le_bytes(*field)))
    });
    let end = shoff.checked_add(entry_size? * entries?)?;
    usize::try_from(end).ok().filter(|end| *end <= unpacked.len())
}

/// Random distance in bytes to move the kernel by; a multiple of its alignment. 0 if there is no
/// room.
pub(super) fn random_slide(header: &setup_header) -> io::Result<u64> {
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(slide(header, u64::from_le_bytes(random)))
}

fn slide(header: &setup_header, random: u64) -> u64 {
    let align = u64::from(header.kernel_alignment).max(1);
    let taken = header.pref_address.saturating_add(u64::from(header.init_size));
    let places = IMAGE_SIZE.saturating_sub(taken) / align + 1;
    random % places * align
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_guest::memory::ram_ranges;

    /// An ELF header alone, of which `words` follow.
    fn with_table(words: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[40..48].copy_from_slice(&64u64.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file
    }

    const A: u32 = 0x8100_0000;

    #[test]
    fn three_lists_and_two_are_read() {
        let old = Relocations::find(&with_table(&[0, A, A + 8, 0, A + 16, 0, A + 24])).unwrap();
        let read = (old.add64, old.subtract32, old.add32);
        assert_eq!(read, (vec![A, A + 8], vec![A + 16], vec![A + 24]));
        let new = Relocations::find(&with_table(&[0, A, 0, A + 24])).unwrap();
        assert_eq!((new.add64, new.subtract32, new.add32), (vec![A], vec![], vec![A + 24]));
    }

    #[test]
    fn what_is_no_table_is_none() {
        for words in [&[][..], &[0], &[A], &[A, 0, A, 0], &[0, 0, 0, 0, 0], &[0, 1, 2]] {
            assert_eq!(Relocations::find(&with_table(words)), None, "{words:x?}");
        }
        let mut odd = with_table(&[0, A, 0, A]);
        odd.push(0);
        assert_eq!(Relocations::find(&odd), None);
        let mut long = with_table(&[0, A, 0, A]);
        long[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Relocations::find(&long), None);
        assert_eq!(Relocations::find(b"\x7fELF"), None);
    }

    #[test]
    fn all_places_move_and_none_outside_of_the_kernel() {
        let ram = GuestRam::anonymous(&ram_ranges(32)).unwrap();
        let start = 0x100_0000;
        for at in [start, start + 8, start + 16] {
            ram.store_u64(Gpa(at), 0xffff_ffff_8100_1000).unwrap();
        }
        let table = Relocations::find(&with_table(&[0, A, 0, A + 8, 0, A + 16])).unwrap();
        table.apply(&ram, 0x20_0000).unwrap();
        let read = |at| {
            let mut bytes = [0; 8];
            ram.read(Gpa(at), &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        assert_eq!(read(start), 0xffff_ffff_8120_1000);
        assert_eq!(read(start + 8), 0xffff_ffff_80e0_1000);
        assert_eq!(read(start + 16), 0xffff_ffff_8120_1000);
        assert!(table.are_within(&(Gpa(start)..Gpa(start + 20))));
        assert!(!table.are_within(&(Gpa(start)..Gpa(start + 19))));
        assert!(!table.are_within(&(Gpa(start + 1)..Gpa(start + 20))));
        let low = Relocations { add32: vec![0x1000], ..Relocations::default() };
        assert!(!low.are_within(&(Gpa(start)..Gpa(start + 4096))), "no kernel address");
    }

    #[test]
    fn slides_keep_the_kernel_aligned_and_within_its_range() {
        let header = setup_header {
            pref_address: 0x100_0000,
            init_size: 0x337_8000,
            kernel_alignment: 0x20_0000,
            ..setup_header::default()
        };
        let slides: Vec<u64> = (0..2000).map(|random| slide(&header, random)).collect();
        assert!(slides.iter().all(|slide| slide % 0x20_0000 == 0));
        let highest = slides.iter().max().unwrap();
        assert!(highest + 0x100_0000 + 0x337_8000 <= IMAGE_SIZE);
        assert!(highest + 0x100_0000 + 0x337_8000 + 0x20_0000 > IMAGE_SIZE);
        let large = setup_header { init_size: u32::MAX, ..header };
        assert_eq!(slide(&large, 12345), 0);
    }
}
