//! Filters from arbitrary text; what is taken prints as text that means the same.

use exoprobe_probes::definition::Filter;

pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    match data.parse::<Filter>() {
        Ok(filter) => {
            let again: Filter = filter.to_string().parse().expect("what is printed parses");
            assert_eq!(again.to_string(), filter.to_string());
        }
        Err(error) => assert!(error.position <= data.len()),
    }
}
