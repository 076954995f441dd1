//! Linux's exception table: the kernel instructions that may fault on purpose.
//!
//! Format: `arch/x86/include/asm/extable.h`, `struct exception_table_entry`: three 32-bit words.
//! The first two are signed distances from the word itself to the instruction and to its fixup. The
//! third says how it is handled, as a type (from Linux 5.16 on) or as the distance to a handler.

use exoprobe_guest::Gva;

use crate::symbols::{LookupError, SymbolTable};
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

/// Bytes in one entry.
pub const ENTRY_BYTES: u64 = 12;
/// Most bytes a table may take; a distribution kernel's has some 50 KiB.
pub const MAX_BYTES: u64 = 1 << 20;

const START: &str = "__start___ex_table";
const STOP: &str = "__stop___ex_table";

/// Reasons why the exception table cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtableError {
    /// A symbol that bounds the table is unknown or ambiguous.
    #[error("cannot find the exception table: {0}")]
    Symbol(#[from] LookupError),
    /// The table ends before it begins.
    #[error("the exception table ends at {stop}, before its start {start}")]
    Backwards {
        /// First address.
        start: Gva,
        /// First address after the table.
        stop: Gva,
    },
    /// The table is larger than [`MAX_BYTES`].
    #[error("an exception table of {bytes} bytes is beyond the limit of {max}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The table does not consist of whole entries.
    #[error("an exception table of {bytes} bytes is no multiple of {ENTRY_BYTES}")]
    PartialEntry {
        /// Its size.
        bytes: u64,
    },
    /// The guest's memory could not be read there.
    #[error("cannot read the exception table: {0}")]
    Read(#[from] VirtualReadError),
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fixup {
    /// The instruction that may fault.
    pub instruction: Gva,
    /// Where the kernel continues if it does.
    pub fixup: Gva,
    /// The entry's third word, raw; its meaning depends on the kernel's version.
    pub data: u32,
}

/// The exception table of the kernel itself (modules have their own).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExceptionTable {
    /// Ascending by instruction.
    entries: Vec<Fixup>,
}

/// EX_TYPE_ZEROPAD: the type of `load_unaligned_zeropad`.
const ZEROPAD: u32 = 20;
/// Bits of [`Fixup::data`] that are the type.
const TYPE_MASK: u32 = 0xff;

impl Fixup {
    /// Returns true if the kernel decodes the instruction's bytes to fix up its fault (Linux 5.16
    /// on; before, the word has another meaning, and this may be true of a few others).
    #[must_use]
    pub fn decodes_text(&self) -> bool {
        self.data & TYPE_MASK == ZEROPAD
    }
}

impl ExceptionTable {
    /// Reads the table from the guest, between the symbols `__start___ex_table` and
    /// `__stop___ex_table`. `symbols` must have the guest's slide. The kernel must be in place:
    /// before its decompressor has run, there is something else at these addresses.
    ///
    /// # Errors
    /// [`ExtableError`].
    pub fn read<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        symbols: &SymbolTable,
    ) -> Result<Self, ExtableError> {
        let start = symbols.lookup(START)?.address;
        Self::read_range(memory, start, symbols.lookup(STOP)?.address)
    }

    /// Reads the table from the guest's addresses `start` to `stop`.
    ///
    /// # Errors
    /// [`ExtableError`].
    pub fn read_range<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        start: Gva,
        stop: Gva,
    ) -> Result<Self, ExtableError> {
        let bytes = stop.0.checked_sub(start.0).ok_or(ExtableError::Backwards { start, stop })?;
        let max = MAX_BYTES;
        let len = usize::try_from(bytes)
            .ok()
            .filter(|_| bytes <= max)
            .ok_or(ExtableError::TooLarge { bytes, max })?;
        if !bytes.is_multiple_of(ENTRY_BYTES) {
            return Err(ExtableError::PartialEntry { bytes });
        }
        let mut raw = vec![0; len];
        memory.read(start, &mut raw)?;
        let (chunks, _) = raw.as_chunks();
        let places = (0..).map(|index| start.wrapping_add(index * ENTRY_BYTES));
        let mut entries: Vec<Fixup> = places.zip(chunks).map(|(at, raw)| entry(at, raw)).collect();
        // Sorted when built or when booted: perhaps not yet.
        entries.sort_unstable();
        Ok(Self { entries })
    }

    /// The entry of the instruction that begins at `instruction`, if the kernel expects that to
    /// fault.
    #[must_use]
    pub fn find(&self, instruction: Gva) -> Option<&Fixup> {
        let found = self.entries.binary_search_by_key(&instruction, |entry| entry.instruction);
        found.ok().map(|index| &self.entries[index])
    }

    /// All entries, ascending by instruction.
    pub fn fixups(&self) -> impl ExactSizeIterator<Item = Fixup> {
        self.entries.iter().copied()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn entry(at: Gva, raw: &[u8; 12]) -> Fixup {
    let word = |offset: usize| [raw[offset], raw[offset + 1], raw[offset + 2], raw[offset + 3]];
    let target = |offset: usize| {
        let distance = i64::from(i32::from_le_bytes(word(offset)));
        Gva(at.0.wrapping_add(offset as u64).wrapping_add_signed(distance))
    };
    Fixup { instruction: target(0), fixup: target(4), data: u32::from_le_bytes(word(8)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::MemoryImage;
    use crate::image::sample::{SAME, TABLES, with_content};
    use proptest::prelude::*;

    /// Virtual address at which all images below begin.
    const BASE: Gva = Gva(SAME + TABLES as u64);

    /// `content` after page tables, mapped to itself.
    fn image(content: &[u8]) -> MemoryImage {
        with_content(content, &[SAME])
    }

    fn read(content: &[u8], start: Gva, stop: Gva) -> Result<ExceptionTable, ExtableError> {
        let image = image(content);
        ExceptionTable::read_range(&VirtualMemory::new(&image).unwrap(), start, stop)
    }

    fn raw(words: &[i32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn distances_count_from_their_own_words_and_entries_are_sorted() {
        let content = raw(&[0x100, 0x200, 3, -0x100, -0x104, -1]);
        let table = read(&content, BASE, Gva(0x2018)).unwrap();
        let first = Fixup { instruction: Gva(0x1f0c), fixup: Gva(0x1f0c), data: u32::MAX };
        let second = Fixup { instruction: Gva(0x2100), fixup: Gva(0x2204), data: 3 };
        assert_eq!(table.fixups().collect::<Vec<_>>(), [first, second]);
        assert!(table.find(Gva(0x2100)).is_some() && table.find(Gva(0x1f0c)).is_some());
        assert!(table.find(Gva(0x2101)).is_none(), "an instruction's first byte only");
        assert_eq!((table.len(), table.is_empty()), (2, false));
    }

    #[test]
    fn impossible_bounds_are_refused_before_anything_is_read() {
        let start = Gva(0xffff_ffff_8200_0000);
        let stop = Gva(start.0 - 12);
        assert_eq!(read(&[], start, stop), Err(ExtableError::Backwards { start, stop }));
        let huge = read(&[], Gva(0), Gva(u64::MAX));
        assert_eq!(huge, Err(ExtableError::TooLarge { bytes: u64::MAX, max: MAX_BYTES }));
        let odd = read(&[], start, start.wrapping_add(13));
        assert_eq!(odd, Err(ExtableError::PartialEntry { bytes: 13 }));
        let absent = read(&[], start, start.wrapping_add(12));
        assert!(matches!(absent, Err(ExtableError::Read(VirtualReadError::Unmapped { .. }))));
        assert!(read(&[], start, start).unwrap().is_empty());
    }

    #[test]
    fn found_by_its_symbols_wherever_the_kernel_was_moved() {
        let link = 0xffff_ffff_8100_0000_u64;
        let map = format!(
            "{link:x} T _stext\n{link:x} T f\n{:x} T _etext\n{:x} R {START}\n{:x} R {STOP}\n",
            link + 0x100,
            link + 0x200,
            link + 0x20c,
        );
        let symbols = SymbolTable::from_system_map(&map).unwrap();
        let image = image(&raw(&[0x10, 0x20, 1]));
        let memory = VirtualMemory::new(&image).unwrap();
        let slide = BASE.0.wrapping_sub(link + 0x200).cast_signed();
        let table = ExceptionTable::read(&memory, &symbols.with_slide(slide)).unwrap();
        assert!(table.find(Gva(BASE.0 + 0x10)).is_some());
        let partial = map.replace(STOP, "other");
        let partial = SymbolTable::from_system_map(&partial).unwrap();
        let refused = ExceptionTable::read(&memory, &partial);
        assert!(matches!(refused, Err(ExtableError::Symbol(LookupError::Unknown { .. }))));
    }

    proptest! {
        #[test]
        fn no_content_or_bounds_panic(
            content in prop::collection::vec(any::<u8>(), 0..600),
            start in prop_oneof![any::<u64>(), 0x1f00..0x2300_u64],
            len in prop_oneof![any::<u64>(), (0..60_u64).prop_map(|n| n * 12)],
        ) {
            let stop = Gva(start.wrapping_add(len));
            if let Ok(table) = read(&content, Gva(start), stop) {
                prop_assert_eq!(table.len() as u64 * ENTRY_BYTES, len);
                prop_assert!(table.fixups().all(|fixup| table.find(fixup.instruction).is_some()));
            }
        }
    }
}
