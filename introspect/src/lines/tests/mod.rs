mod image;

use proptest::prelude::*;

use super::*;
use crate::symbols::ElfError;
use image::{OUTER, ROWS, TEXT, dwarf, elf, packed};

const FILES: [&str; 2] = ["kernel/sys.c", "include/util.h"];

fn lines(bytes: Vec<u8>) -> SourceLines {
    SourceLines::from_elf(bytes).unwrap()
}

fn place(file: &str, line: u32, column: Option<u32>) -> SourcePlace {
    SourcePlace { file: file.to_owned(), line, column }
}

fn call(function: &str, line: u32) -> InlinedCall {
    let caller = Some(place(FILES[0], line, None));
    InlinedCall { function: Some(function.to_owned()), caller }
}

/// What the small kernel's DWARF says of an offset in its text.
fn expected(offset: u64) -> Option<SourceLocation> {
    let row = ROWS.iter().rev().find(|(start, ..)| *start <= offset)?;
    let inlined = match offset {
        0x18..0x20 => vec![call("inner", 30), call("middle", 12)],
        0x10..0x30 => vec![call("middle", 12)],
        _ => vec![],
    };
    (offset < 2 * OUTER).then(|| SourceLocation {
        place: place(FILES[row.1], u32::try_from(row.2).unwrap(), Some(5)),
        function: Some(if offset < OUTER { "outer" } else { "plain" }.to_owned()),
        inlined,
    })
}

fn assert_right(lines: &SourceLines, slide: i64) {
    let at = |offset: u64| Gva(TEXT + offset).wrapping_add(slide.cast_unsigned());
    for offset in 0..2 * OUTER + 8 {
        assert_eq!(lines.lookup(at(offset), slide).unwrap(), expected(offset), "{offset:#x}");
    }
    let places = lines.places((0..2 * OUTER + 8).map(at), slide).unwrap();
    let right: Vec<_> = (0..2 * OUTER + 8).map(|o| expected(o).map(|l| l.place)).collect();
    assert_eq!(places, right);
}

#[test]
fn lines_and_inlined_calls_are_told_with_each_version_of_dwarf() {
    for version in [3, 4, 5] {
        assert_right(&lines(elf(&dwarf(version), 0)), 0);
    }
}

#[test]
fn a_kernel_that_was_moved_is_asked_for_at_its_addresses() {
    let lines = lines(elf(&dwarf(4), 0));
    for slide in [0x1c00_0000, -0x20_0000] {
        assert_right(&lines, slide);
    }
    for outside in [0, TEXT - 1, TEXT + 2 * OUTER, u64::MAX] {
        assert_eq!(lines.lookup(Gva(outside), 0).unwrap(), None);
    }
}

#[test]
fn the_code_of_a_line_begins_where_its_row_does() {
    for (version, slide) in [(3, 0_i64), (4, 0x1c00_0000), (5, -0x20_0000)] {
        let lines = lines(elf(&dwarf(version), 0));
        for (offset, file, line) in ROWS {
            let at = Gva(TEXT + offset).wrapping_add(slide.cast_unsigned());
            let line = u32::try_from(line).unwrap();
            let short = FILES[file].rsplit('/').next().unwrap();
            for name in [FILES[file], short] {
                assert_eq!(lines.code(name, line, slide).unwrap(), [at], "{name}:{line}");
            }
        }
    }
}

#[test]
fn a_line_without_code_is_refused_with_the_next_that_has_some() {
    let lines = lines(elf(&dwarf(5), 0));
    let refused = |name: &str, line| lines.code(name, line, 0).unwrap_err().to_string();
    assert_eq!(
        refused("sys.c", 11),
        "line 11 of kernel/sys.c has no code of its own; the next that has is 13"
    );
    let none = "no source file `sys.c` of the kernel has code at line 51 or after it";
    assert_eq!(refused("sys.c", 51), none);
    for name in ["ys.c", "", "/sys.c", "kernel/", "other/kernel/sys.c"] {
        assert!(matches!(lines.code(name, 10, 0), Err(LineError::NoFile { .. })), "{name}");
    }
}

#[test]
fn packed_sections_are_unpacked() {
    let pack = |wrong: u64| {
        let pack = |(name, bytes): (String, Vec<u8>)| {
            let packed = packed(&bytes, bytes.len() as u64 + wrong);
            (name, packed)
        };
        dwarf(5).into_iter().map(pack).collect::<Vec<_>>()
    };
    const COMPRESSED: u64 = 1 << 11;
    assert_right(&lines(elf(&pack(0), COMPRESSED)), 0);
    let lied = lines(elf(&pack(1), COMPRESSED)).lookup(Gva(TEXT), 0).unwrap_err();
    assert!(lied.to_string().contains("bad .debug_"), "{lied}");
    let huge = SourceLines::from_elf(elf(&pack(elf::MAX_BYTES), COMPRESSED)).unwrap_err();
    assert!(matches!(huge.problem, LinesProblem::TooLarge { .. }), "{huge}");
}

#[test]
fn files_without_debug_information_say_what_to_give() {
    let refused = |bytes: Vec<u8>| SourceLines::from_elf(bytes).unwrap_err();
    let none = refused(elf(&[], 0));
    assert!(matches!(none.problem, LinesProblem::NoDebugInfo));
    assert!(none.to_string().contains("CONFIG_DEBUG_INFO"), "{none}");
    for missing in [".debug_info", ".debug_line", ".debug_abbrev"] {
        let mut sections = dwarf(5);
        sections.retain(|(name, _)| name != missing);
        assert!(matches!(refused(elf(&sections, 0)).problem, LinesProblem::NoDebugInfo));
    }
    assert!(matches!(refused(b"text".to_vec()).problem, LinesProblem::Elf(ElfError::NotElf)));
    let mut object = elf(&dwarf(5), 0);
    object[16] = 1;
    assert!(matches!(refused(object).problem, LinesProblem::Elf(ElfError::Relocatable)));
}

fn map(functions: &[(&str, u64)]) -> SymbolTable {
    let mut text = format!("{TEXT:016x} T _stext\n");
    for (name, at) in functions {
        text.push_str(&format!("{at:016x} T {name}\n"));
    }
    text.push_str("ffffffff82000000 T _etext\n");
    SymbolTable::from_system_map(&text).unwrap()
}

#[test]
fn the_kernels_symbols_tell_how_far_it_was_moved_and_whether_the_file_is_its_own() {
    let lines = lines(elf(&dwarf(4), 0));
    let moved = 0x60_0000;
    let own = map(&[("outer", TEXT + moved), ("plain", TEXT + OUTER + moved)]);
    assert_eq!(lines.slide(&own).unwrap(), 0x60_0000);
    assert_eq!(lines.slide(&own.with_slide(-0x60_0000)).unwrap(), 0);
    let one_is_left_out = map(&[("plain", TEXT + OUTER)]);
    assert_eq!(lines.slide(&one_is_left_out).unwrap(), 0);
    let rebuilt = map(&[("outer", TEXT), ("plain", TEXT + OUTER + 0x10)]);
    let refused = lines.slide(&rebuilt).unwrap_err();
    assert!(refused.to_string().contains("another kernel than the one that runs (plain "));
    assert!(lines.slide(&map(&[("else", TEXT)])).is_err());
    let stripped = SourceLines { landmarks: Landmarks::default(), ..lines };
    assert!(stripped.slide(&own).is_err());
}

#[test]
fn files_are_opened_and_read_when_they_are_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vmlinux");
    std::fs::write(&path, elf(&dwarf(5), 0)).unwrap();
    let opened = SourceLines::open(&path).unwrap();
    assert!(opened.debug_info.lock().unwrap().is_none(), "nothing is read yet");
    assert_right(&opened, 0);
    let symbols = SymbolTable::load(&path).unwrap().with_slide(0x20_0000);
    assert_eq!(opened.slide(&symbols).unwrap(), 0x20_0000);
    assert_eq!(
        SourceLines::with_symbols(&path, &symbols).unwrap().slide(&symbols).unwrap(),
        0x20_0000
    );

    // It was truncated since: an error, and the same one each time.
    let opened = SourceLines::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0x200).unwrap();
    for _ in 0..2 {
        let error = opened.lookup(Gva(TEXT), 0).unwrap_err().to_string();
        assert!(error.contains("vmlinux") && error.contains("truncated or damaged"), "{error}");
    }
    for (wrong, says) in [("missing", "No such file"), ("", "not a regular file")] {
        let error = SourceLines::open(&directory.path().join(wrong)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// The fuzz target starts from these.
#[test]
fn seeds_are_the_small_kernels() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/seeds/source_lines");
    for version in [4, 5] {
        let seed = std::fs::read(format!("{folder}/dwarf{version}.elf")).unwrap();
        assert!(seed == elf(&dwarf(version), 0), "dwarf{version}.elf is another");
        assert_right(&lines(seed), 0);
    }
}

/// Asks everything; what is answered does not matter.
fn exercise(bytes: Vec<u8>) {
    let Ok(lines) = SourceLines::from_elf(bytes) else { return };
    for offset in (0..2 * OUTER + 8).step_by(4) {
        let _ = lines.lookup(Gva(TEXT + offset), 0);
    }
    let _ = lines.places((0..2 * OUTER).map(|offset| Gva(TEXT + offset)), 0);
    for (file, line) in FILES.into_iter().flat_map(|file| [7, 10, 31].map(|line| (file, line))) {
        let _ = lines.code(file, line, 0);
    }
}

#[test]
fn truncated_files_are_errors() {
    for version in [4, 5] {
        let whole = elf(&dwarf(version), 0);
        for len in 0..whole.len() {
            assert!(SourceLines::from_elf(whole[..len].to_vec()).is_err(), "headers are last");
        }
        // Each section by itself, so that headers are there.
        let sections = dwarf(version);
        for at in 0..sections.len() {
            for len in 0..sections[at].1.len() {
                let mut sections = sections.clone();
                sections[at].1.truncate(len);
                exercise(elf(&sections, 0));
            }
        }
    }
}

/// A file whose only unit, from `TEXT` on, has these abbreviations behind its own, 1, and these entries.
fn handmade(abbreviations: &[u8], entries: &[u8], ranges: &[u8]) -> SourceLines {
    // DW_TAG_compile_unit with children: DW_AT_low_pc DW_FORM_addr, DW_AT_high_pc DW_FORM_data8.
    let unit = [&[1, 0x11, 1, 0x11, 1, 0x12, 7, 0, 0][..], abbreviations, &[0]].concat();
    let head = [&4u16.to_le_bytes()[..], &[0; 4], &[8, 1]].concat();
    let mut info = [head, TEXT.to_le_bytes().to_vec(), 16u64.to_le_bytes().to_vec()].concat();
    info.extend(entries);
    let len = u32::try_from(info.len()).unwrap();
    let line = dwarf(4).into_iter().find(|(name, _)| name == ".debug_line").unwrap().1;
    let sections = [
        (".debug_abbrev", unit),
        (".debug_info", [len.to_le_bytes().to_vec(), info].concat()),
        (".debug_line", line),
        (".debug_ranges", ranges.to_vec()),
    ];
    lines(elf(&sections.map(|(name, bytes)| (name.to_owned(), bytes)), 0))
}

/// DW_TAG_subprogram with children, its extent as the unit's, and DW_TAG_inlined_subroutine with nothing but children.
const NESTED: &[u8] = &[2, 0x2e, 1, 0x11, 1, 0x12, 7, 0, 0, 3, 0x1d, 1, 0, 0];

#[test]
fn nested_calls_do_not_exhaust_the_stack() {
    let deep = |depth: usize| {
        let mut entries = [&[2][..], &TEXT.to_le_bytes(), &16u64.to_le_bytes()].concat();
        entries.extend(vec![3; depth]);
        entries.extend(vec![0; depth + 2]);
        handmade(NESTED, &entries, &[]).lookup(Gva(TEXT), 0)
    };
    assert_eq!(deep(100).unwrap(), None, "no line, but no error");
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let refused = thread.spawn(move || deep(1_000_000)).unwrap().join().unwrap().unwrap_err();
    assert!(matches!(refused.problem, LinesProblem::Damaged(gimli::Error::TooManyIterations)));
}

#[test]
fn what_reads_nearly_without_end_is_ended() {
    // Functions that share one list of ranges: DW_TAG_subprogram, DW_AT_ranges DW_FORM_sec_offset.
    let entries = [[2, 0, 0, 0, 0]; 50_000].concat();
    let range = [TEXT.to_le_bytes(), (TEXT + 1).to_le_bytes()].concat();
    let shared = handmade(&[2, 0x2e, 0, 0x55, 0x17, 0, 0], &entries, &range.repeat(50_000));
    for _ in 0..2 {
        let refused = shared.lookup(Gva(TEXT), 0).unwrap_err();
        assert!(matches!(refused.problem, LinesProblem::Damaged(gimli::Error::TooManyIterations)));
    }
    // Attributes that take no bytes: DW_AT_external DW_FORM_flag_present.
    let flags = [&[2, 0x2e, 0][..], &[0x3f, 0x19].repeat(100_000), &[0, 0]].concat();
    let refused = handmade(&flags, &[2; 100_000], &[]).lookup(Gva(TEXT), 0).unwrap_err();
    assert!(refused.to_string().contains("bad .debug_abbrev"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn corrupted_files_are_read_or_refused(
        version in 3u16..=5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = elf(&dwarf(version), 0);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(bytes);
    }
}
