//! The kernel's ORC tables: for each instruction, how to find the frame that called it.
//!
//! Format: `arch/x86/include/asm/orc_types.h`, Documentation/arch/x86/orc-unwinder.rst. One table
//! has 32-bit addresses, each as the distance from its own place, the other an entry of 6 bytes for
//! each; an entry holds up to the next address. Sorted when the kernel is built (Linux 5.6 on) or
//! early in its boot.

use exoprobe_guest::Gva;

use crate::banner::Version;
use crate::symbols::SymbolTable;
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 6;
/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 4;
/// Most bytes that the tables may have together; a distribution kernel's have 4 MiB.
pub const MAX_BYTES: u64 = 64 << 20;

const SYMBOLS: [&str; 4] =
    ["__start_orc_unwind_ip", "__stop_orc_unwind_ip", "__start_orc_unwind", "__stop_orc_unwind"];

/// Reasons why there are no ORC tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrcError {
    /// The kernel was built without them.
    #[error("the kernel has no ORC tables: no symbol {0}")]
    Absent(&'static str),
    /// A table ends before it begins.
    #[error("an ORC table ends at {stop}, before its start {start}")]
    Backwards {
        /// First address.
        start: Gva,
        /// First address after the table.
        stop: Gva,
    },
    /// They are larger than [`MAX_BYTES`].
    #[error("ORC tables of {bytes} bytes are beyond the limit of {MAX_BYTES}")]
    TooLarge {
        /// Their size.
        bytes: u64,
    },
    /// They do not have an entry for each address, or have none.
    #[error("ORC tables with {ips} bytes of addresses and {entries} bytes of entries do not agree")]
    Lengths {
        /// Bytes of the table of addresses.
        ips: u64,
        /// Bytes of the table of entries.
        entries: u64,
    },
    /// The addresses do not ascend; they will once the kernel has sorted them.
    #[error("the kernel has not sorted its ORC tables yet (address {0} is below the one before)")]
    Unsorted(usize),
    /// No layout makes sense of all entries.
    #[error("the ORC tables of Linux {0} have a layout that is not known")]
    Layout(Version),
    /// The guest's memory could not be read there.
    #[error("cannot read the ORC tables: {0}")]
    Read(#[from] VirtualReadError),
}

/// How an entry's last byte is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Linux 4.14 to 6.2: two bits of type, one for the end of the stack.
    Typed,
    /// Linux 6.3: two bits of type, one for a signal's frame, one for the end of the stack.
    Signal,
    /// Linux 6.4 on: three bits of type, of which one value marks the end of the stack, one for a
    /// signal's frame.
    Ended,
}

/// The kind of an entry's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrcType {
    /// The frame is not known.
    Undefined,
    /// The outermost frame: it has no caller.
    EndOfStack,
    /// A function's: the return address is below the caller's stack.
    Call,
    /// All registers are on the stack (`struct pt_regs`).
    Regs,
    /// An exception's frame is on the stack: RIP, CS, RFLAGS, RSP, SS.
    RegsPartial,
}

/// The base of an address on the stack (ORC_REG_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "most are the register of their name")]
pub enum Base {
    /// None: RBP has not changed.
    Undefined,
    /// The caller's stack pointer.
    PrevSp,
    Dx,
    Di,
    Bp,
    Sp,
    R10,
    R13,
    /// The word that RBP and the offset lead to.
    BpIndirect,
    /// The word that RSP leads to, and then the offset. Before Linux 5.12: that RSP and the offset
    /// lead to.
    SpIndirect,
    Ax,
    /// One that Linux did not have when this was written.
    Unknown,
}

/// How to find the frame that called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcEntry {
    /// The kind of the frame.
    pub kind: OrcType,
    /// The base of the caller's stack pointer (of [`OrcType::Call`]), or the place of registers.
    pub sp: Base,
    /// From there, in bytes.
    pub sp_offset: i16,
    /// The base of the address of the caller's RBP.
    pub bp: Base,
    /// From there, in bytes.
    pub bp_offset: i16,
    /// The address that it leads to is that of the next instruction to run, and not the one after a
    /// call.
    pub signal: bool,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Typed, Self::Signal, Self::Ended];

    /// That of a version, as kernel.org has it.
    #[must_use]
    pub fn of(version: Version) -> Self {
        match (version.major, version.minor) {
            (6, 3) => Self::Signal,
            (..=5, _) | (6, ..=2) => Self::Typed,
            _ => Self::Ended,
        }
    }

    /// An entry; `None` where it makes no sense.
    #[must_use]
    pub fn entry(self, raw: [u8; ENTRY_BYTES]) -> Option<OrcEntry> {
        let [sp0, sp1, bp0, bp1, registers, flags] = raw;
        let (sp, bp) = (Base::of(registers & 0xf), Base::of(registers >> 4));
        let (ends, signal, unused) = match self {
            Self::Typed => (flags & 4 != 0, None, flags >> 3),
            Self::Signal => (flags & 8 != 0, Some(flags & 4 != 0), flags >> 4),
            Self::Ended => (false, Some(flags & 8 != 0), flags >> 4),
        };
        let kind = match self {
            Self::Ended => match flags & 7 {
                0 => OrcType::Undefined,
                1 => OrcType::EndOfStack,
                2 => OrcType::Call,
                3 => OrcType::Regs,
                4 => OrcType::RegsPartial,
                _ => return None,
            },
            Self::Typed | Self::Signal => match (flags & 3, sp) {
                (3, _) => return None,
                (_, Base::Undefined) if ends => OrcType::EndOfStack,
                (_, Base::Undefined) => OrcType::Undefined,
                (0, _) => OrcType::Call,
                (1, _) => OrcType::Regs,
                _ => OrcType::RegsPartial,
            },
        };
        let signal = signal.unwrap_or(matches!(kind, OrcType::Regs | OrcType::RegsPartial));
        let (sp_offset, bp_offset) =
            (i16::from_le_bytes([sp0, sp1]), i16::from_le_bytes([bp0, bp1]));
        (unused == 0).then_some(OrcEntry { kind, sp, sp_offset, bp, bp_offset, signal })
    }
}

impl Base {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Undefined,
            1 => Self::PrevSp,
            2 => Self::Dx,
            3 => Self::Di,
            4 => Self::Bp,
            5 => Self::Sp,
            6 => Self::R10,
            7 => Self::R13,
            8 => Self::BpIndirect,
            9 => Self::SpIndirect,
            10 => Self::Ax,
            _ => Self::Unknown,
        }
    }
}

/// The tables of one kernel; modules have their own.
pub struct OrcTables {
    /// Where the guest has the addresses.
    start: Gva,
    ips: Vec<u8>,
    entries: Vec<u8>,
    layout: Layout,
    version: Version,
}

impl OrcTables {
    /// Copies the tables from the guest. `symbols` must have the guest's slide.
    ///
    /// # Errors
    /// [`OrcError`]; [`OrcError::Unsorted`] may pass.
    pub fn read<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        symbols: &SymbolTable,
        version: Version,
    ) -> Result<Self, OrcError> {
        let place = |name| symbols.address_of(name).ok_or(OrcError::Absent(name));
        let [first, last, start, stop] = SYMBOLS;
        let ips = (place(first)?, place(last)?);
        Self::read_ranges(memory, ips, (place(start)?, place(stop)?), version)
    }

    /// Copies tables that are at these addresses, each from its first address to the first after
    /// its end.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_ranges<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        ips: (Gva, Gva),
        entries: (Gva, Gva),
        version: Version,
    ) -> Result<Self, OrcError> {
        let (ip_bytes, entry_bytes) = (len(ips)?, len(entries)?);
        let bytes = ip_bytes.saturating_add(entry_bytes);
        if bytes > MAX_BYTES {
            return Err(OrcError::TooLarge { bytes });
        }
        let (count, whole) =
            (ip_bytes / ADDRESS_BYTES as u64, ip_bytes % ADDRESS_BYTES as u64 == 0);
        if count == 0 || !whole || count * ENTRY_BYTES as u64 != entry_bytes {
            return Err(OrcError::Lengths { ips: ip_bytes, entries: entry_bytes });
        }
        let copy = |start: Gva, len: u64| {
            let mut bytes = vec![0; usize::try_from(len).expect("at most 64 MiB")];
            memory.read(start, &mut bytes).map(|()| bytes)
        };
        let start = ips.0;
        let (ips, entries) = (copy(start, ip_bytes)?, copy(entries.0, entry_bytes)?);
        let layout = layout(version, &entries).ok_or(OrcError::Layout(version))?;
        let tables = Self { start, ips, entries, layout, version };
        let addresses = || (0..tables.len()).filter_map(|index| tables.address(index));
        let falls = addresses().zip(addresses().skip(1)).position(|(before, next)| next < before);
        match falls {
            Some(index) => Err(OrcError::Unsorted(index + 1)),
            None => Ok(tables),
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// Returns true if there is no entry, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How entries are laid out.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether [`Base::SpIndirect`] adds the offset before it reads the word ("x86/unwind/orc:
    /// Change REG_SP_INDIRECT", Linux 5.12).
    #[must_use]
    pub fn adds_before(&self) -> bool {
        (self.version.major, self.version.minor) < (5, 12)
    }

    /// The entry that holds at `ip`; `None` outside of the kernel's own text. The last entry only
    /// says where the one before ends.
    #[must_use]
    pub fn find(&self, ip: Gva) -> Option<OrcEntry> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            // Of several at one address the last counts: the others end sections.
            if self.address(middle)? <= ip { low = middle + 1 } else { high = middle }
        }
        let index = low.checked_sub(1).filter(|_| low < self.len())?;
        self.layout.entry(*self.entries.as_chunks().0.get(index)?)
    }

    fn address(&self, index: usize) -> Option<Gva> {
        let offset = i64::from(i32::from_le_bytes(*self.ips.as_chunks().0.get(index)?));
        let place = self.start.wrapping_add((index * ADDRESS_BYTES) as u64);
        Some(place.wrapping_add(offset.cast_unsigned()))
    }
}

fn len((start, stop): (Gva, Gva)) -> Result<u64, OrcError> {
    stop.0.checked_sub(start.0).ok_or(OrcError::Backwards { start, stop })
}

/// The version's layout, or, where distributions have backported a later one, the one that makes
/// sense.
fn layout(version: Version, entries: &[u8]) -> Option<Layout> {
    let makes_sense =
        |layout: &Layout| entries.as_chunks().0.iter().all(|raw| layout.entry(*raw).is_some());
    [Layout::of(version)].into_iter().chain(Layout::ALL).find(makes_sense)
}
