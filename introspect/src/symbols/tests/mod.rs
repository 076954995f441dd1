//! Queries over tables built from small maps and images, and properties over any.

mod elf;
mod map;
mod model;

use exoprobe_guest::Gva;

use super::*;

/// First address of the test kernels' text.
const TEXT: u64 = 0xffff_ffff_8100_0000;

/// A map with text from [`TEXT`] to `TEXT + 0x1000`, and these symbols: offset, type, name.
fn map(symbols: &[(u64, char, &str)]) -> SymbolTable {
    let mut text = format!("{TEXT:x} T _stext\n{:x} T _etext\n", TEXT + 0x1000);
    for (offset, kind, name) in symbols {
        text.push_str(&format!("{:x} {kind} {name}\n", TEXT + offset));
    }
    SymbolTable::from_system_map(&text).unwrap()
}

fn at(table: &SymbolTable, offset: u64) -> String {
    table.resolve(Gva(TEXT + offset)).map(|found| found.to_string()).unwrap_or_default()
}

#[test]
fn names_become_addresses_and_addresses_names() {
    let table = map(&[(0x10, 'T', "vfs_read"), (0x40, 't', "helper"), (0x2000, 'D', "jiffies")]);
    let found = table.lookup("vfs_read").unwrap();
    assert_eq!((found.address, found.size), (Gva(TEXT + 0x10), 0x30));
    assert_eq!((found.kind, found.global), (SymbolKind::Function, true));
    assert_eq!(at(&table, 0x10), "vfs_read+0x0");
    assert_eq!(at(&table, 0x3f), "vfs_read+0x2f");
    assert_eq!(at(&table, 0xfff), "helper+0xfbf", "to the end of the text");
    assert_eq!(table.resolve(Gva(TEXT + 0x1000)), None);
    assert_eq!(table.resolve(Gva(TEXT + 0x2000)), None, "data is no function");
    assert_eq!(table.resolve(Gva(0)), None);
    let bounds = table.function_at(Gva(TEXT + 0x20)).unwrap();
    assert_eq!((bounds.start, bounds.end), (Gva(TEXT + 0x10), Gva(TEXT + 0x40)));
    assert_eq!(table.lookup("jiffies").unwrap().kind, SymbolKind::Data);
    assert!(table.lookup_function("jiffies").is_err());
    assert_eq!((table.len(), table.iter().count(), table.is_empty()), (5, 5, false));
}

#[test]
fn the_best_of_several_names_is_told() {
    let table = map(&[
        (0x0, 'T', "startup_64"),
        (0x100, 'T', "__pfx_x"),
        (0x100, 't', "__do_sys_getpid"),
        (0x100, 'T', "__x64_sys_getpid"),
        (0x100, 'T', "__ia32_sys_getpid"),
        (0x200, 'T', "bb"),
        (0x200, 'T', "aa"),
        (0x300, 'T', "__irqentry_text_end"),
        (0x300, 't', "rather_a_long_local_name"),
    ]);
    assert_eq!(at(&table, 0x5), "startup_64+0x5");
    assert_eq!(at(&table, 0x101), "__x64_sys_getpid+0x1");
    assert_eq!(at(&table, 0x200), "aa+0x0");
    assert_eq!(at(&table, 0x300), "rather_a_long_local_name+0x0");
}

#[test]
fn one_name_at_two_addresses_is_ambiguous_and_twice_at_one_is_not() {
    let table = map(&[
        (0x10, 't', "twice"),
        (0x20, 't', "twice"),
        (0x30, 't', "same"),
        (0x30, 't', "same"),
        (0x40, 't', "mixed"),
        (0x2000, 'd', "mixed"),
    ]);
    let addresses = vec![Gva(TEXT + 0x10), Gva(TEXT + 0x20)];
    let ambiguous = LookupError::Ambiguous { name: "twice".into(), addresses };
    assert_eq!(
        ambiguous.to_string(),
        "2 symbols are named \"twice\", the first at 0xffffffff81000010"
    );
    assert_eq!(table.lookup("twice"), Err(ambiguous));
    assert_eq!(table.lookup("same").unwrap().address, Gva(TEXT + 0x30));
    assert!(matches!(table.lookup("mixed"), Err(LookupError::Ambiguous { .. })));
    assert_eq!(table.lookup_function("mixed").unwrap().address, Gva(TEXT + 0x40));
}

#[test]
fn an_unknown_name_gets_near_ones() {
    let table = map(&[
        (0x10, 'T', "vfs_read"),
        (0x20, 'T', "vfs_write"),
        (0x30, 'T', "__x64_sys_getpid"),
        (0x40, 'T', "schedule"),
        (0x2000, 'D', "vfs_raed_stats"),
    ]);
    let near = |name: &str| match table.lookup_function(name) {
        Err(LookupError::Unknown { near, .. }) => near,
        other => panic!("{other:?}"),
    };
    assert_eq!(near("vfs_raed"), ["vfs_read"], "functions only");
    assert_eq!(near("VFS_READ"), ["vfs_read"], "vfs_write is four edits away");
    assert_eq!(near("sys_getpid"), ["__x64_sys_getpid"]);
    assert_eq!(near("entirely_else"), [""; 0]);
    assert_eq!(near(""), [""; 0]);
    assert_eq!(near(&"v".repeat(1 << 20)), [""; 0]);
    let message = table.lookup("vfs_wriet").unwrap_err().to_string();
    assert_eq!(message, "no symbol named \"vfs_wriet\" (did you mean vfs_write?)");
    assert_eq!(table.lookup("qqqqq").unwrap_err().to_string(), "no symbol named \"qqqqq\"");
}

#[test]
fn patterns_find_names_in_order() {
    let table = map(&[(0x10, 'T', "vfs_write"), (0x20, 'T', "vfs_read"), (0x30, 'T', "ksys_read")]);
    let names = |pattern: &str| -> Vec<String> {
        table.search(pattern).map(|symbol| symbol.name.to_owned()).collect()
    };
    assert_eq!(names("vfs_*"), ["vfs_read", "vfs_write"]);
    assert_eq!(names("*read"), ["ksys_read", "vfs_read"]);
    assert_eq!(names("vfs_rea?"), ["vfs_read"]);
    assert_eq!(names("vfs_read"), ["vfs_read"]);
    assert_eq!(names("vfs"), [""; 0]);
    assert_eq!(names("*").len(), table.len());
}

#[test]
fn a_slide_moves_the_kernel_but_no_per_cpu_symbol() {
    let slide = 0x1240_0000;
    let text = format!(
        "0000000000001000 A current_task\n{TEXT:x} T _stext\n{:x} T f\n{:x} T _etext\n",
        TEXT + 0x10,
        TEXT + 0x100
    );
    let linked = SymbolTable::from_system_map(&text).unwrap();
    let moved = linked.with_slide(1).with_slide(slide);
    assert_eq!((linked.slide(), moved.slide()), (0, slide));
    let address = Gva(TEXT + 0x10).wrapping_add(0x1240_0000);
    assert_eq!(moved.lookup("f").unwrap().address, address);
    assert_eq!(moved.lookup("current_task").unwrap().address, Gva(0x1000));
    assert_eq!(moved.resolve(address.wrapping_add(3)).unwrap().to_string(), "f+0x3");
    assert_eq!(moved.resolve(Gva(TEXT + 0x10)), None);
    assert!(moved.text_contains(address) && !moved.text_contains(Gva(TEXT + 0x10)));
    let range = moved.text_ranges().next().unwrap();
    assert_eq!(range.start, Gva(TEXT).wrapping_add(0x1240_0000));
    assert_eq!(format!("{moved:?}"), "SymbolTable { len: 4, slide: 0x12400000, .. }");
}
