//! `System.map` text, well-formed and not.

use super::*;
use proptest::prelude::*;

fn refused(text: &str) -> SystemMapError {
    SymbolTable::from_system_map(text).unwrap_err()
}

#[test]
fn types_decide_what_is_a_function() {
    let table = map(&[
        (0x10, 'T', "global"),
        (0x20, 't', "local"),
        (0x30, 'W', "weak"),
        (0x40, 'w', "weak_local"),
        (0x50, 'D', "data"),
        (0x60, 'V', "weak_object"),
    ]);
    let functions: Vec<&str> = table
        .iter()
        .filter(|symbol| symbol.kind == SymbolKind::Function)
        .map(|symbol| symbol.name)
        .collect();
    assert_eq!(functions, ["_stext", "global", "local", "weak", "weak_local"]);
    let low = "0000000000000010 T low\nffffffff81000000 T _text\nffffffff81000100 T _etext\n";
    let table = SymbolTable::from_system_map(low).unwrap();
    assert_eq!(table.lookup("low").unwrap().kind, SymbolKind::Data, "a per-CPU offset");
    assert_eq!(table.lookup("low").unwrap().size, 0, "its extent is not known");
}

#[test]
fn text_is_between_its_markers() {
    let table = SymbolTable::from_system_map(
        "ffffffff81000000 T _text\r\nffffffff81000200 T _stext\r\n\r\nffffffff81001000 T _etext\r\n\
         ffffffff81001000 T __static_call_text_end\r\nffffffff81003000 t exit_function\r\n\
         ffffffff82000000 T _sinittext\r\nffffffff82000000 T init\r\nffffffff82000800 T _einittext",
    )
    .unwrap();
    let core = Gva(TEXT);
    let init = Gva(0xffff_ffff_8200_0000);
    let ranges: Vec<TextRange> = table.text_ranges().collect();
    let expected = [
        TextRange { start: core, end: core.wrapping_add(0x1000), kind: TextKind::Core },
        TextRange { start: init, end: init.wrapping_add(0x800), kind: TextKind::Init },
    ];
    assert_eq!(ranges, expected);
    assert_eq!(table.text_kind(core), Some(TextKind::Core));
    assert_eq!(table.text_kind(init.wrapping_add(0x7ff)), Some(TextKind::Init));
    assert_eq!(table.text_kind(init.wrapping_add(0x800)), None);
    assert!(!table.text_contains(core.wrapping_add(0x1000)));
    assert_eq!(table.resolve(init.wrapping_add(1)).unwrap().name, "init");
    assert_eq!(table.resolve(core.wrapping_add(0x1001)), None, "an end marker covers nothing");
    assert_eq!(table.resolve(core.wrapping_add(0x3001)).unwrap().name, "exit_function");
}

#[test]
fn a_bad_line_is_told_by_its_number() {
    for (line, problem) in [
        ("ffffffff81000000 T", LineProblem::Fields),
        ("ffffffff81000000 T name more", LineProblem::Fields),
        ("ffffffff81000000g T name", LineProblem::Address),
        ("+fffffff81000000 T name", LineProblem::Address),
        ("0ffffffffffffffff0 T name", LineProblem::Address),
        ("ffffffff81000000 TT name", LineProblem::Type),
        ("ffffffff81000000 7 name", LineProblem::Type),
    ] {
        let text = format!("ffffffff81000000 T _text\n\n{line}\n");
        assert_eq!(refused(&text), SystemMapError::Line { line: 3, problem }, "{line}");
    }
    let message = refused("junk").to_string();
    assert_eq!(message, "line 1: expected `address type name`");
}

#[test]
fn a_map_cut_short_is_refused() {
    let no_end = refused("ffffffff81000000 T _text\nffffffff81000000 T f\n");
    assert_eq!(no_end, SystemMapError::Listing(ListingError::NoTextBounds { name: "_etext" }));
    let no_start = refused("ffffffff81000000 T _etext\n");
    assert_eq!(no_start, SystemMapError::Listing(ListingError::NoTextBounds { name: "_stext" }));
    let inverted = refused("ffffffff81000000 T _text\nffffffff81000000 T _etext\n");
    assert!(matches!(inverted, SystemMapError::Listing(ListingError::BadTextBounds { .. })));
    let debian =
        "ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package\n";
    assert_eq!(refused(debian), SystemMapError::Placeholder);
    let zeros = refused("0000000000000000 T _text\n0000000000000001 T _etext\n");
    assert_eq!(
        zeros,
        SystemMapError::Listing(ListingError::Table(TableError::NoFunctions)),
        "an unprivileged kallsyms"
    );
}

#[test]
fn names_of_the_tool_chain_or_unfit_for_a_terminal_are_dropped() {
    let long = "x".repeat(MAX_NAME_LEN + 1);
    let names = [
        (1, 't', "$x"),
        (2, 't', ".L1"),
        (3, 't', "a\u{1b}[0m"),
        (4, 't', long.as_str()),
        (5, 't', "a:b"),
    ];
    assert_eq!(map(&names).len(), 2);
}

proptest! {
    #[test]
    fn no_text_panics(text in "([0-9a-f]{1,17} [tTdDA?] [a-z_.]{1,8}\n|\\PC{0,20}\n){0,20}") {
        let _ = SymbolTable::from_system_map(&text);
        let _ = SymbolTable::from_bytes(text.as_bytes());
    }
}
