//! The indexed table against a search through all symbols.

use super::super::build::{Builder, RawSymbol};
use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Plain {
    name: String,
    address: u64,
    size: u64,
    function: bool,
    global: bool,
}

fn symbol() -> impl Strategy<Value = Plain> {
    // Few names and addresses, so that functions collide, nest and overlap.
    let size = prop_oneof![1..40_u64, Just(u64::MAX)];
    ("(__pfx_)?[ab]{1,3}", 0..60_u64, size, any::<bool>(), any::<bool>()).prop_map(
        |(name, offset, size, function, global)| Plain {
            name,
            address: TEXT + offset,
            size,
            function,
            global,
        },
    )
}

fn build(symbols: &[Plain]) -> Option<SymbolTable> {
    let mut builder = Builder::new(0, 0);
    for symbol in symbols {
        let Plain { name, address, size, function, global } = symbol;
        let (address, size, function, global) = (*address, *size, *function, *global);
        let raw = RawSymbol { name, address, size, function, global, typed: true };
        builder.push(&raw).unwrap();
    }
    let tables = builder.finish().ok()?;
    Some(SymbolTable::of(tables))
}

/// The contract of `resolve`, word for word.
fn resolve(symbols: &[Plain], address: u64) -> Option<(String, u64)> {
    symbols
        .iter()
        .filter(|s| s.function && s.address <= address)
        .filter(|s| address < s.address.saturating_add(s.size))
        .max_by_key(|s| {
            let padding = s.name.starts_with("__pfx_");
            let worst_first = (padding, !s.global, s.name.len(), s.name.clone());
            (s.address, std::cmp::Reverse(worst_first))
        })
        .map(|s| (s.name.clone(), address - s.address))
}

proptest! {
    #[test]
    fn resolve_agrees_with_the_model_at_every_slide(
        symbols in prop::collection::vec(symbol(), 0..24),
        slide in prop_oneof![Just(0), -0x1000_0000..0x4000_0000_i64, any::<i64>()],
    ) {
        let Some(table) = build(&symbols) else { return Ok(()) };
        let table = table.with_slide(slide);
        for offset in 0..120 {
            let address = TEXT - 5 + offset;
            let gva = Gva(address.wrapping_add_signed(slide));
            let found = table.resolve(gva).map(|found| (found.name.to_owned(), found.offset));
            prop_assert_eq!(&found, &resolve(&symbols, address), "at {}", address);
            if let Some(bounds) = table.function_at(gva) {
                let size = bounds.end.0.wrapping_sub(bounds.start.0);
                prop_assert!(gva.0.wrapping_sub(bounds.start.0) < size);
                prop_assert_eq!(Some(bounds.name), table.resolve(gva).map(|found| found.name));
            }
        }
    }

    #[test]
    fn lookup_agrees_with_the_model(
        symbols in prop::collection::vec(symbol(), 1..24),
        name in "[ab]{1,3}",
    ) {
        let Some(table) = build(&symbols) else { return Ok(()) };
        let same = symbols.iter().filter(|s| s.name == name);
        let mut expected: Vec<Gva> = same.map(|s| Gva(s.address)).collect();
        expected.sort_unstable();
        expected.dedup();
        match table.lookup(&name) {
            Ok(found) => prop_assert_eq!(expected, [found.address]),
            Err(LookupError::Ambiguous { addresses, .. }) => prop_assert_eq!(addresses, expected),
            Err(error @ LookupError::NoModule { .. }) => panic!("{error}"),
            Err(LookupError::Unknown { near, .. }) => {
                prop_assert!(expected.is_empty() && near.len() <= 3);
            }
        }
        let sorted = table.iter().is_sorted_by_key(|symbol| (symbol.address, symbol.name));
        prop_assert!(sorted);
        prop_assert_eq!(table.search("*").count(), symbols.len());
    }
}
