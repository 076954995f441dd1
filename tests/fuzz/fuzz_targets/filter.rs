//! Filters from arbitrary text; what is taken prints as text that means the same.
#![no_main]

use exoprobe_probes::definition::Filter;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| match data.parse::<Filter>() {
    Ok(filter) => {
        match filter.to_string().parse::<Filter>() {
            Ok(again) => assert_eq!(again.to_string(), filter.to_string()),
            // Printed with all its parentheses it may have too many in one another.
            Err(error) => assert_eq!(error.id, "TOO_MANY_OPEN"),
        }
    }
    Err(error) => assert!(error.position <= data.len()),
});
