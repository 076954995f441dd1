//! Our tracer's answers to sessions, over a guest.

use std::sync::Arc;

use exoprobe_probes::synthetic::SYNTHETIC_GROUP;
use exoprobe_probes::trigger::parse_trigger;
use exoprobe_probes::{Engine, Selection};
use exoprobe_tests::TestGuest;
use exoprobe_tracer::{Tracer, TracerError};

use super::faults;
use super::session::{ABSENT, Answers, Operation, Session, Write};

/// The answers to a session.
///
/// # Panics
/// When the probes of the session before do not go.
pub(super) fn answers(guest: &TestGuest, session: &Session) -> Answers {
    clear_synthetics(&guest.engine);
    guest.engine.unregister(Selection::all()).unwrap_or_else(|e| panic!("{e}"));
    guest.engine.delete_synthetics().unwrap_or_else(|e| panic!("{e}"));
    guest.engine.events().clear_trace();
    let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
    let (mut writes, mut ids) = (Vec::new(), Vec::new());
    for write in &session.writes {
        writes.push(match written(&tracer, write) {
            Ok(()) => "ok",
            Err(error) if write.is_of_file() && is_absent(&tracer, &write.file) => {
                assert_eq!(error.errno, "ENOENT", "{error}");
                ABSENT
            }
            Err(error) => {
                ids.extend(error.id);
                error.errno
            }
        });
    }
    let read = |file: &String| match (tracer.list(file), tracer.read(file)) {
        (Ok(Some(entries)), _) => {
            let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
            names.sort();
            names.join("\n")
        }
        (_, Ok(text)) => faults::of_ours(&text, &ids),
        (_, Err(_)) => ABSENT.to_owned(),
    };
    let reads = session.reads.iter().map(read).collect();
    Answers { writes: writes.into_iter().map(str::to_owned).collect(), reads }
}

/// Disables synthetic events, and removes their triggers.
fn clear_synthetics(engine: &Engine) {
    for event in engine.synthetics() {
        let name = event.definition.name;
        engine.enable_synthetic(&name, false).unwrap_or_else(|e| panic!("{e}"));
        for line in engine.triggers(SYNTHETIC_GROUP, &name).unwrap_or_else(|e| panic!("{e}")) {
            let line = line.split(" [").next().unwrap_or_default();
            let removal = parse_trigger(&format!("!{line}")).unwrap_or_else(|e| panic!("{e}"));
            let removed = engine.set_trigger(SYNTHETIC_GROUP, &name, removal);
            removed.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

fn is_absent(tracer: &Tracer, file: &str) -> bool {
    tracer.read(file).is_err_and(|error| error.errno == "ENOENT")
}

fn written(tracer: &Tracer, write: &Write) -> Result<(), TracerError> {
    match write.operation {
        Operation::MakeFolder => return tracer.make_folder(&write.file),
        Operation::RemoveFolder => return tracer.remove_folder(&write.file),
        Operation::Replace => tracer.truncate(&write.file)?,
        Operation::Append => {}
    }
    // A shell does not write nothing.
    if write.text.is_empty() { Ok(()) } else { tracer.write(&write.file, &write.text) }
}
