//! Commands of the file `trigger`, and what they are listed as.
#![no_main]

use exoprobe_probes::trigger::{TriggerCommand, parse_trigger};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match parse_trigger(text) {
    Err(error) => assert!(error.position <= text.len() && !error.message.is_empty()),
    Ok(TriggerCommand::Add(found) | TriggerCommand::Remove(found)) => {
        let listed = found.to_string();
        let again = parse_trigger(&listed).expect("what is listed can be written");
        let TriggerCommand::Add(again) = again else { panic!("{listed}") };
        assert_eq!(again.to_string(), listed);
    }
});
