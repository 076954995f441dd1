use super::*;
use crate::layout::{KERNEL_IMAGE_BASE, MORE_END};
use crate::memory::ram_ranges;
use crate::paging::{PTE_LARGE, translate};
use crate::testing::has_vm_flag;

const RW: u64 = PTE_PRESENT | PTE_WRITE;
/// Kernel code that page-table isolation leaves in the user half, and its page table entry.
const ENTRY_CODE: Gva = Gva(0xffff_ffff_8000_0000);
const ENTRY_PAGE: u64 = PTE_PRESENT | PTE_LARGE;
/// Page directories of the kernel image and of the last GiB, which has the fixmap.
const IMAGE: u64 = 0x4000;
const FIXMAP: u64 = 0x5000;

fn slot_of(gva: Gva) -> u64 {
    ((gva.0 >> 21) & 511) * 8
}

/// RAM with kernel-like tables: 0x2000 PML4, 0x6000 PDPT, both directories.
fn guest() -> (GuestRam, PagingMode) {
    let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
    ram.store_u64(Gpa(0x2ff8), 0x6000 | RW).unwrap();
    ram.store_u64(Gpa(0x6ff0), IMAGE | RW).unwrap();
    ram.store_u64(Gpa(0x6ff8), FIXMAP | RW).unwrap();
    ram.store_u64(Gpa(IMAGE + slot_of(ENTRY_CODE)), ENTRY_PAGE).unwrap();
    (ram, PagingMode { cr3: 0x2000, levels: 4 })
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no /proc/self/smaps")]
fn the_region_is_left_out_of_core_dumps() {
    let hidden = HiddenMemory::new(&guest().0, 1).unwrap();
    let (at, len) = (hidden.host_mapping().0.addr(), to_usize(hidden.host_mapping().1));
    assert!(has_vm_flag(at, "dd") && has_vm_flag(at + len - 1, "dd"));
}

#[test]
fn words_are_cleared_and_their_neighbours_are_not() {
    let hidden = HiddenMemory::new(&guest().0, 1).unwrap();
    hidden.write(0x1ff0, &[0xff; 0x2020]);
    hidden.clear_u64s(0x1ff8, 0x2008);
    let words: Vec<u64> = (0x1ff0..0x4010).step_by(8).map(|at| hidden.load_u64(at)).collect();
    let zeroes = vec![0; 0x2008 / 8];
    assert_eq!(words, [&[u64::MAX][..], &zeroes, &[u64::MAX, u64::MAX]].concat());
}

#[test]
fn code_is_executable_only_and_data_writable_only() {
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    assert_eq!(hidden.code_window(), None);
    let base = hidden.map(&ram, mode).unwrap();
    assert_eq!(base, HIDDEN_GVA);
    let windows = [
        hidden.stub_window(),
        hidden.trampoline_window(),
        hidden.code_window(),
        hidden.detour_window(),
    ];
    let mut next = base.wrapping_add(PAGE_SIZE);
    for window in windows.map(Option::unwrap) {
        assert_eq!(window.gva, next, "back to back");
        let last = window.gva.wrapping_add(window.len - 1);
        for at in [window.gva, last] {
            let found = translate(&ram, mode, at).unwrap();
            assert!(found.executable && !found.writable && !found.user);
            let offset = window.offset + at.0 - window.gva.0;
            assert_eq!(found.gpa, Gpa(hidden.gpa().0 + offset));
        }
        next = last.wrapping_add(1);
    }
    for page in [DATA_PAGES.start, DATA_PAGES.end - 1] {
        let data = base.wrapping_add(page * PAGE_SIZE);
        let found = translate(&ram, mode, data).unwrap();
        assert!(!found.executable && found.writable && !found.user);
    }
    assert!(translate(&ram, mode, base).is_err(), "page 0 is not mapped");
    for table in [TABLE, USER_TABLE] {
        let maps = |page| (hidden.page_entry(page) ^ table.0) & PTE_ADDR_MASK == 0;
        assert!((0..512).all(|page| !maps(page)), "tables are not mapped by hidden memory");
    }
}

/// A kernel that walks its own tables (CONFIG_DEBUG_WX) reads each through its direct map, which
/// has RAM and the whole first MiB: a table elsewhere ends it.
#[test]
fn all_page_tables_are_in_the_first_mib() {
    let (ram, mode) = guest();
    let isolated = PagingMode { cr3: 0x3000, levels: 4 };
    isolate(&ram);
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    hidden.map(&ram, mode).unwrap();
    hidden.map_rings(&ram, mode).unwrap();
    hidden.map_stubs_for_user(&ram, mode, ENTRY_CODE).unwrap();
    for (root, tables) in [(mode, 1), (isolated, 1)] {
        let at = directory_entry(&ram, root, HIDDEN_GVA).unwrap();
        let words = (0..4).map(|entry| ram.read_u64(Gpa(at.0 + entry * 8)).unwrap());
        let found: Vec<_> = words.filter(|word| *word != 0 && word & PTE_LARGE == 0).collect();
        assert_eq!(found.len(), tables);
        for word in found {
            let table = word & PTE_ADDR_MASK;
            assert!((0xa_0000..0xc_0000).contains(&table), "{table:#x}: RAM that no guest uses");
        }
    }
}

/// Gives `ram` the user half of its tables: 0x7000 PDPT, 0x8000 directory of the image, 0x9000 of
/// the fixmap.
fn isolate(ram: &GuestRam) {
    ram.store_u64(Gpa(0x3ff8), 0x7000 | RW).unwrap();
    ram.store_u64(Gpa(0x7ff0), 0x8000 | RW).unwrap();
    ram.store_u64(Gpa(0x7ff8), 0x9000 | RW).unwrap();
    ram.store_u64(Gpa(0x8000 + slot_of(ENTRY_CODE)), ENTRY_PAGE).unwrap();
}

#[test]
fn every_trampoline_is_an_int3_from_the_start() {
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    hidden.map(&ram, mode).unwrap();
    let window = hidden.trampoline_window().unwrap();
    assert_eq!(window.len, 16_384);
    let mut bytes = vec![0; 16_384];
    hidden.read(window.offset, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0xcc));
}

/// Entries of the last GiB's directory.
fn directory(ram: &GuestRam) -> Vec<u64> {
    (0..512).map(|entry| ram.read_u64(Gpa(FIXMAP + entry * 8)).unwrap()).collect()
}

#[test]
#[cfg_attr(miri, ignore = "page tables alone, in 25 s")]
fn it_is_above_all_that_any_kernel_uses_of_the_last_gib() {
    /// Entry of the last page of the fixmap, FIXADDR_TOP: 507 in every kernel from 4.19 on.
    const TOP: u64 = (0xffff_ffff_ff7f_f000 >> 21) & 511;
    // The kernel's own entries, down from that: the two of head_64.S, those of early_ioremap_init()
    // with and without vsyscalls, FIX_TBOOT_BASE, and the highest and the most of
    // CONFIG_DEBUG_KMAP_LOCAL_FORCE_MAP.
    for used in [2, 1, 3, 4, 35, 266] {
        let (ram, mode) = guest();
        let own = TOP + 1 - used..=TOP;
        let write = |entries: std::ops::RangeInclusive<u64>| {
            for entry in entries {
                ram.store_u64(Gpa(FIXMAP + entry * 8), 0x8000 | RW).unwrap();
            }
        };
        // Mapped before the kernel has more than the first two, and looked at when it has all.
        write(TOP - 1..=TOP);
        let hidden = HiddenMemory::new(&ram, 1).unwrap();
        assert_eq!(hidden.map(&ram, mode), Ok(HIDDEN_GVA));
        let rings = hidden.map_rings(&ram, mode).unwrap();
        let mine: Vec<u64> =
            (0..).zip(directory(&ram)).filter(|(_, e)| *e != 0).map(|(i, _)| i).collect();
        assert_eq!(mine, [506, 507, 508, 509, 510], "and none where errors' numbers lead");
        write(own);
        assert_eq!(hidden.map(&ram, mode), Ok(HIDDEN_GVA), "{used} entries of the kernel");
        assert_eq!(hidden.map_rings(&ram, mode), Ok(rings), "{used} entries of the kernel");
    }
}

#[test]
fn rel32_reaches_the_first_byte_of_kernel_text() {
    let last = RINGS.gva.wrapping_add(RINGS.len);
    assert!(last.0 - KERNEL_IMAGE_BASE.0 < 1 << 31);
    assert_eq!(last, Gva(0xffff_ffff_ffe0_0000), "where errors' numbers begin");
}

#[test]
fn a_taken_entry_is_left_alone_and_a_changed_one_is_reported() {
    let (ram, mode) = guest();
    let at = Gpa(FIXMAP + slot_of(HIDDEN_GVA));
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    ram.store_u64(at, ENTRY_PAGE).unwrap();
    let before = directory(&ram);
    let taken = HiddenError::Taken { gva: HIDDEN_GVA, now: ENTRY_PAGE };
    assert_eq!(hidden.map(&ram, mode), Err(taken));
    assert_eq!((directory(&ram), hidden.base()), (before, None));
    ram.store_u64(at, 0).unwrap();
    assert_eq!(hidden.map(&ram, mode), Ok(HIDDEN_GVA));
    assert_eq!(ram.read_u64(at), Some(HiddenMemory::entry()));
    // That of an earlier run, in a guest from a snapshot; the CPU may have set its bit.
    ram.store_u64(at, HiddenMemory::entry() | PTE_DIRTY).unwrap();
    hidden.restore_base(None);
    assert_eq!(hidden.map(&ram, mode), Ok(HIDDEN_GVA));
    ram.store_u64(at, 0).unwrap();
    assert_eq!(hidden.map(&ram, mode), Err(HiddenError::Overwritten { gva: HIDDEN_GVA, now: 0 }));
}

#[test]
fn tables_without_the_directory_are_an_error() {
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    let nowhere = PagingMode { cr3: 0x8000, levels: 4 };
    assert!(matches!(hidden.map(&ram, nowhere), Err(HiddenError::Paging(_))));
    ram.store_u64(Gpa(0x6ff8), 0).unwrap();
    assert!(matches!(hidden.map(&ram, mode), Err(HiddenError::Paging(_))));
    assert_eq!(hidden.base(), None);
}

#[test]
#[cfg_attr(miri, ignore = "page tables alone, in 14 s")]
fn rings_are_mapped_whole_or_not_at_all() {
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    hidden.map(&ram, mode).unwrap();
    let entries = || directory(&ram)[509..].to_vec();
    let entry = |index: u64| Gpa(FIXMAP + index * 8);
    assert_eq!(hidden.rings_window(), None);
    ram.store_u64(entry(510), ENTRY_PAGE).unwrap();
    let taken = HiddenError::Taken { gva: Gva(0xffff_ffff_ffc0_0000), now: ENTRY_PAGE };
    assert_eq!(hidden.map_rings(&ram, mode), Err(taken));
    assert_eq!((entries(), hidden.rings_window()), (vec![0, ENTRY_PAGE, 0], None));
    ram.store_u64(entry(510), 0).unwrap();
    let window = hidden.map_rings(&ram, mode).unwrap();
    assert_eq!(hidden.rings_window(), Some(window));
    assert_eq!(entries()[2], 0, "where errors' numbers lead");
    for offset in (0..window.len).step_by(to_usize(PAGE_SIZE)).chain([window.len - 8]) {
        let found = translate(&ram, mode, window.gva.wrapping_add(offset)).unwrap();
        assert!(found.writable && !found.executable && !found.user);
        assert_eq!(found.gpa, Gpa(hidden.gpa().0 + window.offset + offset));
    }
    // Again, also in a guest from a snapshot; and not where the guest made something else of it.
    hidden.restore_base(None);
    assert_eq!(hidden.rings_window(), None);
    assert_eq!(hidden.map_rings(&ram, mode), Ok(window));
    ram.store_u64(entry(509), entries()[1]).unwrap();
    assert!(matches!(hidden.map_rings(&ram, mode), Err(HiddenError::Taken { .. })));
}

#[test]
#[cfg_attr(miri, ignore = "page tables alone, in 94 s")]
fn the_user_half_of_isolated_tables_gets_the_stubs_alone() {
    let (ram, mode) = guest();
    let user = PagingMode { cr3: 0x3000, levels: 4 };
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    let base = hidden.map(&ram, mode).unwrap();
    let map = || hidden.map_stubs_for_user(&ram, mode, ENTRY_CODE);
    let words =
        || -> Vec<u64> { (0..0x1_0000).step_by(8).map_while(|at| ram.read_u64(Gpa(at))).collect() };
    let before = words();
    assert_eq!(map(), Ok(()));
    assert_eq!(words(), before, "the page above the root is no root");
    isolate(&ram);
    ram.store_u64(Gpa(0x7ff8), 0).unwrap();
    assert!(matches!(map(), Err(HiddenError::UserTables(_))));
    ram.store_u64(Gpa(0x7ff8), 0x9000 | RW).unwrap();
    assert_eq!((map(), map()), (Ok(()), Ok(())));
    let stubs = hidden.stub_window().unwrap();
    let found = translate(&ram, user, stubs.gva).unwrap();
    assert!(found.executable && !found.writable && !found.user);
    assert_eq!(found.gpa, Gpa(hidden.gpa().0 + stubs.offset));
    for page in (0..HIDDEN_SIZE / PAGE_SIZE).filter(|page| *page != STUB_PAGE) {
        let at = base.wrapping_add(page * PAGE_SIZE);
        assert!(translate(&ram, user, at).is_err(), "user mode's tables reach nothing else");
    }
    ram.store_u64(Gpa(0x9000 + slot_of(base)), ENTRY_PAGE).unwrap();
    assert!(matches!(map(), Err(HiddenError::Overwritten { .. })));
    // Two roots side by side that share the directory.
    ram.store_u64(Gpa(0x7ff8), FIXMAP | RW).unwrap();
    let before = words();
    assert_eq!(map(), Ok(()));
    assert_eq!(words(), before);
}

#[test]
fn a_region_that_was_reset_is_as_new() {
    let (ram, mode) = guest();
    let content = |hidden: &HiddenMemory| {
        let mut bytes = vec![0; to_usize(HIDDEN_SIZE)];
        hidden.read(0, &mut bytes);
        bytes
    };
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    let new = content(&hidden);
    hidden.map(&ram, mode).unwrap();
    let len = hidden.host_mapping().1;
    for offset in (0..len).step_by(to_usize(PAGE_SIZE)) {
        hidden.write(offset, &[0x5a; 64]);
    }
    hidden.reset();
    assert!(content(&hidden) == new);
    assert_eq!((hidden.base(), hidden.code_window()), (None, None));
}

/// Entries of the directory of the kernel's image.
fn image_directory(ram: &GuestRam, mode: PagingMode) -> (Gpa, Vec<u64>) {
    let at = directory_entry(ram, mode, KERNEL_IMAGE_BASE).unwrap();
    (at, (0..512).map(|entry| ram.read_u64(Gpa(at.0 + entry * 8)).unwrap()).collect())
}

#[test]
#[cfg_attr(miri, ignore = "page tables alone, in minutes")]
fn the_extension_takes_the_highest_unused_entries_of_the_image() {
    /// The entry after the last of 512 MiB.
    const END: usize = 256;
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    hidden.map(&ram, mode).unwrap();
    assert_eq!((hidden.more_code_window(), hidden.more_data_window()), (None, None));
    let (at, before) = image_directory(&ram, mode);
    // A kernel that KASLR has put around the end.
    let kernel = [END - 20, END + 3];
    kernel.iter().for_each(|n| ram.store_u64(Gpa(at.0 + *n as u64 * 8), ENTRY_PAGE).unwrap());
    hidden.map_more(&ram, mode).unwrap();
    let (code, data) = (hidden.more_code_window().unwrap(), hidden.more_data_window().unwrap());
    assert_eq!(data.gva, code.gva.wrapping_add(code.len), "back to back");
    assert_eq!(data.gva.wrapping_add(data.len), MORE_END);
    for (window, is_code) in [(code, true), (data, false)] {
        for offset in [0, window.len - 1] {
            let found = translate(&ram, mode, window.gva.wrapping_add(offset)).unwrap();
            assert_eq!((found.executable, found.writable, found.user), (is_code, !is_code, false));
            assert_eq!(found.gpa, Gpa(hidden.gpa().0 + window.offset + offset));
        }
    }
    assert!(HIDDEN_GVA.wrapping_add(HIDDEN_SIZE).0 - code.gva.0 < 1 << 31, "rel32 reaches it");
    let mine: Vec<usize> =
        (0..512).filter(|n| image_directory(&ram, mode).1[*n] != before[*n]).collect();
    let expected: Vec<usize> = (END - 12..END).chain(kernel).collect();
    assert!(mine.iter().all(|n| expected.contains(n)) && mine.len() == expected.len(), "{mine:?}");
    // Again, also by another engine, over a guest from a snapshot.
    hidden.map_more(&ram, mode).unwrap();
    hidden.restore_base(Some(HIDDEN_GVA));
    assert_eq!(hidden.more_code_window(), None);
    hidden.map_more(&ram, mode).unwrap();
    assert_eq!(hidden.more_code_window(), Some(code));
    ram.store_u64(Gpa(at.0 + (END as u64 - 1) * 8), 0).unwrap();
    let overwritten = HiddenError::Overwritten { gva: data.gva, now: 0 };
    assert_eq!(hidden.map_more(&ram, mode), Err(overwritten));
}

#[test]
#[cfg_attr(miri, ignore = "page tables alone, in minutes")]
fn the_extension_goes_around_a_kernel_or_is_not_there() {
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    let (at, _) = image_directory(&ram, mode);
    ram.store_u64(Gpa(at.0 + 250 * 8), ENTRY_PAGE).unwrap();
    hidden.map_more(&ram, mode).unwrap();
    let end = KERNEL_IMAGE_BASE.wrapping_add(250 * PAGE_SIZE_2M);
    let data = hidden.more_data_window().unwrap();
    assert_eq!(data.gva.wrapping_add(data.len), end);
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    let take = |n: u64| ram.store_u64(Gpa(at.0 + n * 8), ENTRY_PAGE).unwrap();
    (0..256).step_by(12).for_each(take);
    let before = image_directory(&ram, mode);
    assert_eq!(hidden.map_more(&ram, mode), Err(HiddenError::NoRoom { entries: 12 }));
    assert_eq!((image_directory(&ram, mode), hidden.more_code_window()), (before, None));
}

#[test]
#[cfg_attr(miri, ignore = "page tables alone, in minutes")]
fn several_vcpus_have_larger_rings_where_the_image_s_directory_has_room() {
    let (ram, mode) = guest();
    let hidden = HiddenMemory::new(&ram, 3).unwrap();
    hidden.map(&ram, mode).unwrap();
    let (at, before) = image_directory(&ram, mode);
    let window = hidden.map_rings(&ram, mode).unwrap();
    assert_eq!((window.len, window.gva.wrapping_add(window.len)), (14 << 20, MORE_END));
    assert_eq!(window.offset + window.len, hidden.host_mapping().1);
    for offset in [0, window.len - 1] {
        let found = translate(&ram, mode, window.gva.wrapping_add(offset)).unwrap();
        assert_eq!((found.executable, found.writable, found.user), (false, true, false));
        assert_eq!(found.gpa, Gpa(hidden.gpa().0 + window.offset + offset));
    }
    assert_eq!(&directory(&ram)[509..], [0; 3], "the shared ones are not mapped");
    // Beside the other extension, again, and by another engine over a guest from a snapshot.
    hidden.map_more(&ram, mode).unwrap();
    let code = hidden.more_code_window().unwrap();
    assert_eq!(hidden.more_data_window().unwrap().gva.wrapping_add(2 << 20), window.gva);
    hidden.restore_base(Some(HIDDEN_GVA));
    assert_eq!(hidden.rings_window(), None);
    assert_eq!(hidden.map_rings(&ram, mode), Ok(window));
    hidden.map_more(&ram, mode).unwrap();
    assert_eq!((hidden.rings_window(), hidden.more_code_window()), (Some(window), Some(code)));
    // Not where the guest made something else of it.
    ram.store_u64(Gpa(at.0 + 255 * 8), 0).unwrap();
    assert!(matches!(hidden.map_rings(&ram, mode), Err(HiddenError::Overwritten { .. })));
    // Where there is no room they are the shared ones, also later.
    (0..512).for_each(|n| ram.store_u64(Gpa(at.0 + n * 8), before[to_usize(n)]).unwrap());
    hidden.restore_base(Some(HIDDEN_GVA));
    (0..256).step_by(6).for_each(|n| ram.store_u64(Gpa(at.0 + n * 8), ENTRY_PAGE).unwrap());
    assert_eq!(hidden.map_rings(&ram, mode), Ok(RINGS));
    (0..256).for_each(|n| ram.store_u64(Gpa(at.0 + n * 8), 0).unwrap());
    assert_eq!(hidden.map_rings(&ram, mode), Ok(RINGS), "detours have its addresses");
    assert_eq!(hidden.rings_window(), Some(RINGS));
}

#[test]
fn rings_of_several_vcpus_have_16_mib_at_most() {
    let mib = |vcpus| HiddenMemory::new(&guest().0, vcpus).unwrap().host_mapping().1 >> 20;
    assert_eq!([1, 2, 4, 5, 255].map(mib), [30, 40, 48, 48, 48]);
    assert_eq!(REGION_MOST >> 20, 48);
}
