use proptest::prelude::*;

use super::*;
use crate::SymbolTable;

const NEW: Version = VERSIONS[2].0;

#[test]
fn entries_read_as_each_layout_has_them() {
    let spilled = call((Base::Bp, 16), (Base::PrevSp, -16));
    let entries = [
        spilled,
        call((Base::Sp, 0x7ff0), (Base::Undefined, 0)),
        call((Base::SpIndirect, 8), (Base::Bp, -8)),
        of_kind(OrcType::Regs),
        of_kind(OrcType::RegsPartial),
        of_kind(OrcType::EndOfStack),
        of_kind(OrcType::Undefined),
    ];
    for layout in Layout::ALL {
        for entry in entries {
            assert_eq!(layout.entry(raw(layout, &entry)), Some(entry), "{layout:?}");
        }
    }
    // As Debian's 6.1.192 and kernel.org's 6.12 have a frame's first instruction: push rbp is done.
    let typed = Layout::Typed.entry([16, 0, 0xf0, 0xff, 0x15, 0]).unwrap();
    assert_eq!(typed, call((Base::Sp, 16), (Base::PrevSp, -16)));
    assert_eq!(Layout::Ended.entry([16, 0, 0xf0, 0xff, 0x15, 2]), Some(typed));
    let in_signal = Layout::Signal.entry([0, 0, 0, 0, 0x05, 4]).unwrap();
    assert_eq!((in_signal.kind, in_signal.signal), (OrcType::Call, true));
    for (layout, flags) in [(Layout::Typed, 3), (Layout::Typed, 8), (Layout::Signal, 16)] {
        assert_eq!(layout.entry([0, 0, 0, 0, 5, flags]), None, "{layout:?} {flags}");
    }
    assert_eq!([5, 16].map(|flags| Layout::Ended.entry([0, 0, 0, 0, 5, flags])), [None; 2]);
}

#[test]
fn a_version_tells_its_layout_and_entries_correct_it() {
    for (version, layout) in VERSIONS {
        assert_eq!(Layout::of(version), layout);
    }
    let version = |major, minor| Version { major, minor, patch: 0 };
    assert_eq!(Layout::of(version(4, 19)), Layout::Typed);
    assert_eq!(Layout::of(version(6, 4)), Layout::Ended);
    assert_eq!(Layout::of(version(7, 0)), Layout::Ended);
    // A distribution's 5.14 with the tables of 6.4.
    let rows = [Row(0, of_kind(OrcType::Regs)), Row(16, of_kind(OrcType::Undefined))];
    let tables = Model::new().rows(Layout::Ended, &rows).tables(version(5, 14)).unwrap();
    assert_eq!((tables.layout(), tables.len()), (Layout::Ended, 2));
    let mut model = Model::new();
    model.raw_row(TEXT, [0, 0, 0, 0, 5, 0xff]);
    assert_eq!(model.tables(NEW).err(), Some(OrcError::Layout(NEW)));
}

#[test]
fn an_entry_holds_up_to_the_next_and_the_last_only_ends() {
    let first = call((Base::Sp, 8), (Base::Undefined, 0));
    let second = call((Base::Sp, 16), (Base::Undefined, 0));
    let end = of_kind(OrcType::Undefined);
    let rows = [Row(0, first), Row(0x20, end), Row(0x20, second), Row(0x30, end)];
    let tables = Model::new().rows(Layout::Ended, &rows).tables(NEW).unwrap();
    let find = |offset: u64| tables.find(Gva(TEXT.wrapping_add(offset)));
    assert_eq!([0, 1, 0x1f].map(find), [Some(first); 3]);
    assert_eq!([0x20, 0x2f].map(find), [Some(second); 2], "sections end where others begin");
    assert_eq!([u64::MAX, 0x30, 0x31, 1 << 40].map(find), [None; 4]);
    assert!(!tables.is_empty());
}

fn read(ips: (u64, u64), entries: (u64, u64)) -> OrcError {
    let image = Model::new().image();
    let range = |(start, stop): (u64, u64)| (Gva(start), Gva(stop));
    let memory = VirtualMemory::with_mode(&image, MODE);
    OrcTables::read_ranges(&memory, range(ips), range(entries), NEW).err().unwrap()
}

#[test]
fn tables_that_cannot_be_are_refused_before_they_are_read() {
    let (start, stop) = (Gva(IPS), Gva(IPS - 4));
    assert_eq!(read((IPS, IPS - 4), (ENTRIES, ENTRIES)), OrcError::Backwards { start, stop });
    // As large as guest memory, or as all addresses.
    let bytes = 10 << 30;
    let large = read((IPS, IPS.wrapping_add(4 << 30)), (0, 6 << 30));
    assert!(matches!(large, OrcError::Backwards { .. }), "it passes the end: {large}");
    assert_eq!(read((0, 4 << 30), (0, 6 << 30)), OrcError::TooLarge { bytes });
    assert_eq!(read((0, u64::MAX), (0, u64::MAX)), OrcError::TooLarge { bytes: u64::MAX });
    for (ips, entries) in [(0, 0), (4, 12), (8, 6), (6, 9), (3, 0)] {
        let found = read((IPS, IPS + ips), (ENTRIES, ENTRIES + entries));
        assert_eq!(found, OrcError::Lengths { ips, entries });
    }
    let absent = read((IPS, IPS + (8 << 20)), (ENTRIES, ENTRIES + (12 << 20)));
    assert!(matches!(absent, OrcError::Read(_)), "{absent}");
}

#[test]
fn tables_are_not_taken_before_the_kernel_has_sorted_them() {
    let entry = of_kind(OrcType::EndOfStack);
    let rows = [Row(0x20, entry), Row(0x30, entry), Row(0x10, entry)];
    let unsorted = Model::new().rows(Layout::Ended, &rows).tables(NEW);
    assert_eq!(unsorted.err(), Some(OrcError::Unsorted(2)));
}

#[test]
fn symbols_tell_where_tables_are() {
    let entry = of_kind(OrcType::EndOfStack);
    let model = Model::new().rows(Layout::Ended, &[Row(0, entry), Row(8, entry)]);
    let image = model.image();
    let memory = VirtualMemory::with_mode(&image, MODE);
    let map = format!(
        "{TEXT:x} T _stext\n{:x} T _etext\n{IPS:x} R __start_orc_unwind_ip\n{:x} R __stop_orc_unwind_ip\n\
         {ENTRIES:x} R __start_orc_unwind\n{:x} R __stop_orc_unwind\n",
        TEXT + 0x1000,
        IPS + 8,
        ENTRIES + 12
    );
    let read =
        |map: &str| OrcTables::read(&memory, &SymbolTable::from_system_map(map).unwrap(), NEW);
    assert_eq!(read(&map).unwrap().len(), 2);
    let without = map.replace("__stop_orc_unwind_ip", "other");
    assert_eq!(read(&without).err(), Some(OrcError::Absent("__stop_orc_unwind_ip")));
}

proptest! {
    #[test]
    fn no_tables_and_no_stacks_panic_or_go_on_for_ever(
        content in prop::collection::vec(any::<u8>(), BYTES - 0x2000),
        flags in prop::collection::vec(0_u8..16, 200),
        count in 0..200_u64, which in 0..3_usize, sorted: bool,
        offset in 0..0x1000_u64, sp in 0..BYTES as u64, bp in 0..BYTES as u64,
    ) {
        let mut model = Model::new();
        model.put(KERNEL + 0x2000, &content);
        let (version, layout) = VERSIONS[which];
        if sorted {
            for (n, flags) in (0..count).zip(flags) {
                let mut raw = [0; ENTRY_BYTES];
                let at = usize::try_from(n).unwrap() * ENTRY_BYTES;
                raw.copy_from_slice(&content[at..at + ENTRY_BYTES]);
                raw[5] = flags;
                if layout.entry(raw).is_some() {
                    model.raw_row(TEXT + n * 16, raw);
                }
            }
        } else {
            model.rows = count;
        }
        let tables = model.tables(version);
        let from = place(offset, (KERNEL + sp) & !7, (KERNEL + bp) & !7);
        for tables in [tables.as_ref().ok(), None] {
            let (frames, user) = model.walk(tables, from);
            prop_assert!(frames.len() <= FRAMES_MAX);
            if let Some(user) = user {
                let image = model.image();
                let stack = Memory(VirtualMemory::with_mode(&image, MODE));
                prop_assert!(user_frames(&stack, user).count() <= FRAMES_MAX);
            }
        }
    }
}
