//! Commands of the file `trigger`, and what they are listed as.

use exoprobe_probes::trigger::{TriggerCommand, parse_trigger};

pub(crate) fn run(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match parse_trigger(text) {
        Err(error) => assert!(error.position <= text.len() && !error.message.is_empty()),
        Ok(TriggerCommand::Add(found) | TriggerCommand::Remove(found)) => {
            let listed = found.to_string();
            let again = parse_trigger(&listed).expect("what is listed can be written");
            let TriggerCommand::Add(again) = again else { panic!("{listed}") };
            assert_eq!(again.to_string(), listed);
        }
    }
}
