//! A probe's definition from arbitrary text and JSON; what is taken prints as text that means the
//! same.
#![no_main]

use exoprobe_probes::{ProbeDefinition, parse_line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    if let Ok(definition) = parse_line(data) {
        let printed = definition.to_string();
        let again = parse_line(&printed).expect("what is printed parses");
        assert_eq!(again.to_string(), printed);
    }
    if let Ok(definition) = serde_json::from_str::<ProbeDefinition>(data) {
        let json = serde_json::to_string(&definition).expect("a definition is JSON");
        let again: ProbeDefinition = serde_json::from_str(&json).expect("and is read back");
        assert_eq!(again, definition);
    }
});
