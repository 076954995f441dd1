//! A symbol table from arbitrary text, looked up by every name it has.

use exoprobe_introspect::{LookupError, SymbolTable};

pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    let Ok(table) = SymbolTable::from_system_map(data) else { return };
    let table = table.with_slide(0x1_0000);
    for symbol in table.iter().take(1000) {
        match table.lookup(symbol.name) {
            Ok(found) => assert_eq!(found.address, symbol.address),
            Err(LookupError::Ambiguous { addresses, .. }) => {
                assert!(addresses.contains(&symbol.address));
            }
            Err(LookupError::Unknown { .. } | LookupError::NoModule { .. }) => {
                panic!("{} is listed but unknown", symbol.name)
            }
        }
    }
}
