//! Compares a kernel's own table of symbols with the System.map of its build.

use std::collections::BTreeSet;

use exoprobe_introspect::SymbolTable;

/// Symbols that kernels may leave out of their table: the table (6.1 does, 6.12 does not), and the
/// linker script's own (scripts/kallsyms.c).
fn is_left_out(name: &str) -> bool {
    const TABLES: [&str; 8] = [
        "offsets",
        "relative_base",
        "num_syms",
        "names",
        "markers",
        "seqs_of_names",
        "token_table",
        "token_index",
    ];
    let is_table = name.strip_prefix("kallsyms_").is_some_and(|rest| TABLES.contains(&rest));
    is_table
        || name.starts_with("init_per_cpu__")
        || ["phys_startup_64", "text_size"].contains(&name)
}

fn listed(table: &SymbolTable) -> BTreeSet<(u64, String)> {
    let kept = table.iter().filter(|symbol| !is_left_out(symbol.name));
    kept.map(|symbol| (symbol.address.0, symbol.name.to_owned())).collect()
}

/// The symbols from a kernel's memory are all of those of its System.map, at the same places and as
/// long.
///
/// # Panics
/// When they are not.
pub fn assert_same_symbols(found: &SymbolTable, map: &SymbolTable) {
    let (found_all, map_all) = (listed(found), listed(map));
    let only_found: Vec<_> = found_all.difference(&map_all).take(20).collect();
    let only_map: Vec<_> = map_all.difference(&found_all).take(20).collect();
    assert!(only_found.is_empty() && only_map.is_empty(), "{only_found:?} {only_map:?}");
    assert!(found.len() > 5000, "{}", found.len());
    for symbol in map.iter().filter(|symbol| !is_left_out(symbol.name)) {
        let same = found.resolve(symbol.address).map(|found| (found.name, found.size));
        assert_eq!(same, map.resolve(symbol.address).map(|found| (found.name, found.size)));
    }
}
