//! ORC tables and stacks of arbitrary content, in memory that is mapped one to one and again as a
//! kernel is: a version, how many entries, registers, then the memory.

use exoprobe_guest::{Gva, kvm_regs};
use exoprobe_introspect::image::sample::{KERNEL, MODE, SAME, TABLES, with_content};
use exoprobe_introspect::unwind::{FRAMES_MAX, Place, Stack, Walk, user_frames};
use exoprobe_introspect::{MemoryImage, OrcTables, Version, VirtualMemory};

struct Memory<'a>(VirtualMemory<'a, MemoryImage>);

impl Stack for Memory<'_> {
    fn word(&self, at: Gva) -> Option<u64> {
        self.0.read_u64(at).ok()
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some(([which, count, ip, sp, bp], content)) = data.split_first_chunk() else { return };
    let (major, minor) = [(4, 19), (6, 1), (6, 3), (6, 12)][usize::from(*which) % 4];
    let image = with_content(content, &[SAME, KERNEL]);
    let memory = VirtualMemory::with_mode(&image, MODE);
    let base = Gva(KERNEL + TABLES as u64);
    let entries = base.wrapping_add(u64::from(*count) * 4);
    let stop = entries.wrapping_add(u64::from(*count) * 6);
    let version = Version { major, minor, patch: 0 };
    let tables = OrcTables::read_ranges(&memory, (base, entries), (entries, stop), version).ok();
    if let Some(tables) = &tables {
        assert_eq!(tables.len(), usize::from(*count));
    }
    // Near the tables, where a stack may be, too.
    let at = |offset: &u8| base.0 + u64::from(*offset) * 8;
    let regs =
        kvm_regs { rsp: at(sp), rbp: at(bp), r10: at(ip), r13: at(bp), ..kvm_regs::default() };
    let stack = Memory(memory);
    for tables in [tables.as_ref(), None] {
        for from in [Place::at(Gva(at(ip)), &regs), Place::at(Gva(at(ip)), &regs).without_frame(8)]
        {
            let mut walk = Walk::new(tables, &stack, from);
            assert!(walk.by_ref().count() <= FRAMES_MAX);
            if let Some(user) = walk.user() {
                assert!(user_frames(&stack, user).count() <= FRAMES_MAX);
            }
        }
    }
}
