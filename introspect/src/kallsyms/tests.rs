use proptest::prelude::*;

use super::sample::{Addresses, BASE, LAYOUTS, MODE, TABLES, image, symbols, tables};
use super::*;
use crate::MemoryImage;
use crate::symbols::ListingError;

fn read_from(image: &MemoryImage) -> Result<SymbolTable, KallsymsError> {
    read(&VirtualMemory::with_mode(image, MODE), BASE)
}

#[test]
fn symbols_come_out_of_every_layout_as_they_went_in() {
    for (kernel, layout) in LAYOUTS {
        let mut all = symbols();
        if layout.addresses == Addresses::Upwards {
            all.retain(|(address, ..)| *address >= BASE.0);
        }
        let image = image(&tables(layout, &all), TABLES + 0x11e0);
        let table = read_from(&image).unwrap_or_else(|error| panic!("{kernel}: {error}"));
        let mut expected: Vec<(u64, &str)> =
            all.iter().map(|(address, _, name)| (*address, &**name)).collect();
        expected.sort_unstable();
        let found: Vec<(u64, &str)> = table.iter().map(|s| (s.address.0, s.name)).collect();
        assert_eq!(found, expected, "{kernel}");
        assert_eq!(table.slide(), 0);
        let function = table.lookup_function("do_read_1").unwrap();
        assert_eq!((function.address.0, function.global), (BASE.0 + 0x1010, false));
        assert!(table.lookup("many_of_this_name").is_err(), "{kernel}: it has many addresses");
        assert!(table.lookup_function("variable1").is_err(), "{kernel}: it is no function");
    }
}

#[test]
fn what_is_missing_is_told() {
    let (_, layout) = LAYOUTS[2];
    let whole = tables(layout, &symbols());
    assert_eq!(read_from(&image(&[], TABLES)).unwrap_err(), KallsymsError::NoTokens);
    // The names cut out; the addresses.
    let digits = whole.windows(4).position(|found| found == b"0\x001\0").unwrap();
    let mut without = whole.clone();
    without[digits - 4000..digits - 2000].fill(0);
    assert_eq!(read_from(&image(&without, TABLES)).unwrap_err(), KallsymsError::NoNames);
    let mut without = whole.clone();
    without[40..48].fill(0xa5);
    assert_eq!(read_from(&image(&without, TABLES)).unwrap_err(), KallsymsError::NoAddresses);
    let no_text: Vec<_> = symbols().into_iter().filter(|(_, _, name)| name != "_etext").collect();
    let refused = read_from(&image(&tables(layout, &no_text), TABLES)).unwrap_err();
    assert!(matches!(refused, KallsymsError::Listing(ListingError::NoTextBounds { .. })));
    let memory = image(&whole, TABLES);
    let elsewhere = read(&VirtualMemory::with_mode(&memory, MODE), Gva(0x1000));
    assert!(matches!(elsewhere, Err(KallsymsError::Image(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_changed_there_is_an_answer(
        which in 0..LAYOUTS.len(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = tables(LAYOUTS[which].1, &symbols());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read_from(&image(&bytes, TABLES));
    }
}
