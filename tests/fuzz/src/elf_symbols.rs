//! A symbol table from an arbitrary ELF file, then every kind of query on it.

use exoprobe_introspect::SymbolTable;

pub(crate) fn run(data: &[u8]) {
    let Ok(table) = SymbolTable::from_elf(data) else { return };
    for symbol in table.iter() {
        let Some(found) = table.resolve(symbol.address) else { continue };
        assert!(found.offset < found.size);
    }
    for range in table.text_ranges() {
        assert!(range.start < range.end);
        let _ = table.function_at(range.start);
    }
    let _ = table.lookup("do_sys_opne");
    assert_eq!(table.search("*").count(), table.len());
}
