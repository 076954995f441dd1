//! Filters from arbitrary text; what is taken prints as text that means the same.
#![no_main]

use exoprobe_probes::definition::Filter;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| match data.parse::<Filter>() {
    Ok(filter) => {
        let again: Filter = filter.to_string().parse().expect("what is printed parses");
        assert_eq!(again.to_string(), filter.to_string());
    }
    Err(error) => assert!(error.position <= data.len()),
});
