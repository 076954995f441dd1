//! Triggers of events: the files `trigger` and `hist`.

use exoprobe_probes::definition::FieldError;
use exoprobe_probes::trigger::parse_trigger;
use exoprobe_probes::{Engine, ProbeError};

use crate::error::TracerError;
use crate::fault::field_fault;
use crate::log::{ErrorLog, FILTER_PART};

/// Text of the file `trigger` without triggers.
const NONE: &str = "# Available triggers:\n# traceon traceoff snapshot stacktrace enable_event disable_event enable_hist disable_hist hist\n";

/// The text of the file `trigger`.
pub(crate) fn listing(engine: &Engine, group: &str, event: &str) -> Result<String, ProbeError> {
    let triggers = engine.triggers(group, event)?;
    Ok(match triggers.is_empty() {
        true => NONE.to_owned(),
        false => triggers.iter().map(|line| format!("{line}\n")).collect(),
    })
}

/// Sets or removes a trigger of an event, by a command.
///
/// # Errors
/// [`TracerError`]: what is wrong with the command, or what the engine says; all is as before then.
pub(crate) fn write(
    engine: &Engine,
    log: &mut ErrorLog,
    (group, event): (&str, &str),
    text: &str,
) -> Result<(), TracerError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(());
    }
    let set = parse_trigger(text).map_err(TracerError::from).and_then(|command| {
        engine.set_trigger(group, event, command).map_err(|error| fault(text, error))
    });
    set.inspect_err(|error| log_fault(engine, log, (group, event), text, error))
}

/// Logs a fault as the kernel does: of a histogram as that event's, of another trigger nothing but
/// its filter.
fn log_fault(
    engine: &Engine,
    log: &mut ErrorLog,
    (group, event): (&str, &str),
    text: &str,
    error: &TracerError,
) {
    let line = text.lines().next().unwrap_or_default();
    let position = error.position.unwrap_or_default().min(line.len());
    let filter = line.find(" if ").map(|at| at + " if ".len());
    match filter.filter(|start| position >= *start) {
        Some(start) => {
            let command = line.get(start..).unwrap_or_default().to_owned();
            log.add(engine.micros(), FILTER_PART, &error.message, (command, position - start));
        }
        None if line.trim_start_matches('!').starts_with("hist") => {
            let part = format!("hist:{group}:{event}");
            log.add(engine.micros(), &part, &error.message, (line.to_owned(), position));
        }
        None => {}
    }
}

/// Which part of a command the engine does not take.
fn fault(text: &str, error: ProbeError) -> TracerError {
    let (id, name) = match &error {
        ProbeError::Filter { error: FieldError::NoSuch(name), .. } => {
            ("FIELD_NOT_FOUND", Some(name.as_str()))
        }
        ProbeError::Filter { error, .. } => ("ILLEGAL_FIELD_OP", Some(error.field().as_str())),
        ProbeError::Trigger(error) => error.fault(),
        _ => return error.into(),
    };
    let position = Some(name.map_or(0, |name| field_fault(text, name)));
    TracerError { position, id: Some(id), ..TracerError::from(error) }
}
