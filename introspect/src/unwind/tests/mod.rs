//! Made-up kernels: tables, stacks, and what must come of them.

mod frame_pointers;
mod tables;
mod walks;

use exoprobe_guest::{Gva, kvm_regs};

use super::orc::{Base, ENTRY_BYTES, Layout, OrcType};
use super::*;
use crate::banner::Version;
use crate::image::sample::{KERNEL, MODE, SAME, image, mapped};
use crate::{MemoryImage, VirtualMemory};

/// Where the tables are.
const IPS: u64 = KERNEL + 0x2000;
const ENTRIES: u64 = KERNEL + 0x3000;
/// Where text would be.
const TEXT: u64 = KERNEL + 0x10_0000;
/// Stacks: a task's, of interrupts, and of user mode.
const TASK: u64 = KERNEL + 0x4000;
const IRQ: u64 = KERNEL + 0x5000;
const USER: u64 = 0x6000;
const BYTES: usize = 0x7000;

const VERSIONS: [(Version, Layout); 3] = [
    (Version { major: 6, minor: 1, patch: 0 }, Layout::Typed),
    (Version { major: 6, minor: 3, patch: 0 }, Layout::Signal),
    (Version { major: 6, minor: 12, patch: 0 }, Layout::Ended),
];

/// A row of the tables: where it begins, and what holds there.
#[derive(Clone, Copy)]
struct Row(u64, OrcEntry);

fn call(sp: (Base, i16), bp: (Base, i16)) -> OrcEntry {
    let (kind, signal) = (OrcType::Call, false);
    OrcEntry { kind, sp: sp.0, sp_offset: sp.1, bp: bp.0, bp_offset: bp.1, signal }
}

fn of_kind(kind: OrcType) -> OrcEntry {
    let sp = match kind {
        OrcType::Undefined | OrcType::EndOfStack => Base::Undefined,
        _ => Base::Sp,
    };
    let signal = matches!(kind, OrcType::Regs | OrcType::RegsPartial);
    OrcEntry { kind, sp, sp_offset: 0, bp: Base::Undefined, bp_offset: 0, signal }
}

fn number(base: Base) -> u8 {
    let all = [
        Base::Undefined,
        Base::PrevSp,
        Base::Dx,
        Base::Di,
        Base::Bp,
        Base::Sp,
        Base::R10,
        Base::R13,
        Base::BpIndirect,
        Base::SpIndirect,
        Base::Ax,
    ];
    u8::try_from(all.iter().position(|other| *other == base).unwrap()).unwrap()
}

/// An entry as the kernel has it.
fn raw(layout: Layout, entry: &OrcEntry) -> [u8; ENTRY_BYTES] {
    let kind = match entry.kind {
        OrcType::Undefined => 0,
        OrcType::EndOfStack => 1,
        OrcType::Call => 2,
        OrcType::Regs => 3,
        OrcType::RegsPartial => 4,
    };
    let (ends, signal) = (entry.kind == OrcType::EndOfStack, u8::from(entry.signal));
    let two_bits = u8::saturating_sub(kind, 2);
    let flags = match layout {
        Layout::Typed => two_bits | u8::from(ends) << 2,
        Layout::Signal => two_bits | signal << 2 | u8::from(ends) << 3,
        Layout::Ended => kind | signal << 3,
    };
    let [sp0, sp1] = entry.sp_offset.to_le_bytes();
    let [bp0, bp1] = entry.bp_offset.to_le_bytes();
    [sp0, sp1, bp0, bp1, number(entry.sp) | number(entry.bp) << 4, flags]
}

/// Memory in the making.
struct Model {
    bytes: Vec<u8>,
    rows: u64,
}

impl Model {
    fn new() -> Self {
        // User mode is where the kernel is, at its own addresses.
        Self { bytes: mapped(BYTES, &[SAME, KERNEL]), rows: 0 }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at & 0xf_ffff).unwrap();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        (0..).zip(words).for_each(|(n, word)| self.word(at + n * 8, *word));
    }

    /// Adds rows to the tables, at offsets of the text.
    fn rows(mut self, layout: Layout, rows: &[Row]) -> Self {
        for Row(offset, entry) in rows {
            self.raw_row(TEXT + offset, raw(layout, entry));
        }
        self
    }

    fn raw_row(&mut self, at: u64, entry: [u8; ENTRY_BYTES]) {
        let place = IPS + self.rows * 4;
        let distance = i32::try_from(at.wrapping_sub(place).cast_signed()).unwrap();
        self.put(place, &distance.to_le_bytes());
        self.put(ENTRIES + self.rows * ENTRY_BYTES as u64, &entry);
        self.rows += 1;
    }

    /// A `struct pt_regs` with these: RIP, CS, RSP, RBP.
    fn regs(&mut self, at: u64, ip: u64, cs: u64, sp: u64, bp: u64) {
        self.word(at + pt_regs::BP, bp);
        let ss = if cs & 3 == 3 { USER_DS } else { 0x18 };
        self.words(at + pt_regs::IP, &[ip, cs, 0x202, sp, ss]);
    }

    fn image(&self) -> MemoryImage {
        image(self.bytes.clone())
    }

    fn tables(&self, version: Version) -> Result<OrcTables, OrcError> {
        let ips = (Gva(IPS), Gva(IPS + self.rows * 4));
        let entries = (Gva(ENTRIES), Gva(ENTRIES + self.rows * ENTRY_BYTES as u64));
        OrcTables::read_ranges(
            &VirtualMemory::with_mode(&self.image(), MODE),
            ips,
            entries,
            version,
        )
    }

    /// Addresses that a walk returns, as offsets of the text, and where it leaves the kernel.
    fn walk(&self, tables: Option<&OrcTables>, from: Place) -> (Vec<u64>, Option<UserPlace>) {
        let image = self.image();
        let stack = Memory(VirtualMemory::with_mode(&image, MODE));
        let mut walk = Walk::new(tables, &stack, from);
        let frames = walk.by_ref().map(|frame| frame.0.wrapping_sub(TEXT)).collect();
        (frames, walk.user())
    }
}

/// Address of a trampoline, and where its call returns to.
const TRAMPOLINE: u64 = 0xffff_ffff_ff20_1000;
const BEHIND_TRAMPOLINE: u64 = TEXT + 0x155;
/// A slot, and whose instruction it has.
const SLOT: u64 = 0xffff_ffff_ff20_6000;

struct Memory<'a>(VirtualMemory<'a, MemoryImage>);

impl Stack for Memory<'_> {
    fn word(&self, at: Gva) -> Option<u64> {
        self.0.read_u64(at).ok()
    }

    fn returns_to(&self, found: Gva) -> Gva {
        if found.0 == TRAMPOLINE { Gva(BEHIND_TRAMPOLINE) } else { found }
    }

    fn stands_for(&self, ip: Gva) -> Gva {
        if ip.0 == SLOT { Gva(TEXT + 0x100) } else { ip }
    }
}

fn place(offset: u64, sp: u64, bp: u64) -> Place {
    let regs = kvm_regs { rsp: sp, rbp: bp, ..kvm_regs::default() };
    Place::at(Gva(TEXT + offset), &regs)
}
