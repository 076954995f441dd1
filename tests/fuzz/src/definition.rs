//! Commands of kprobe_events from arbitrary text, and definitions from JSON; what is taken prints
//! as text that means the same, and what is refused has its place in the text, also as error_log
//! shows it.

use exoprobe_probes::ProbeDefinition;
use exoprobe_probes::definition::{Command, normalised, parse_command, parse_line};

pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    match parse_command(data) {
        Ok(Command::Define(definition)) => {
            let printed = definition.to_string();
            let again = parse_line(&printed).expect("what is printed parses");
            assert_eq!(again.to_string(), printed);
        }
        Ok(Command::Delete(_)) => {}
        Err(error) => {
            assert!(error.position <= data.len());
            let (shown, column) = normalised(data, error.position);
            assert!(column <= shown.len());
        }
    }
    if let Ok(definition) = serde_json::from_str::<ProbeDefinition>(data) {
        let json = serde_json::to_string(&definition).expect("a definition is JSON");
        let again: ProbeDefinition = serde_json::from_str(&json).expect("and is read back");
        assert_eq!(again, definition);
    }
}
