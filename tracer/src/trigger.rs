//! Triggers of events: the files `trigger` and `hist`.

use exoprobe_probes::ProbeError;
use exoprobe_probes::trigger::{parse_trigger, split_trigger};

use crate::error::TracerError;
use crate::fault::field_fault;
use crate::filter::{self, Refusal};
use crate::log::ErrorLog;
use crate::scope::Scope;

/// Text of the file `trigger` without triggers.
const NONE: &str = "# Available triggers:\n# traceon traceoff snapshot stacktrace enable_event disable_event enable_hist disable_hist hist\n";

/// The text of the file `trigger`.
pub(crate) fn listing(scope: Scope<'_>, event: (&str, &str)) -> Result<String, ProbeError> {
    let triggers = scope.triggers(event)?;
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
    scope: Scope<'_>,
    log: &mut ErrorLog,
    event: (&str, &str),
    text: &str,
) -> Result<(), TracerError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(());
    }
    match set(scope, event, text)? {
        Ok(()) => Ok(()),
        Err(Fault::Command(error)) => {
            log_fault(scope, log, event, text, &error);
            Err(error)
        }
        Err(Fault::Condition((start, condition), refusal)) => {
            refusal.log(scope.engine, log, condition);
            Err(refusal.at(start))
        }
    }
}

/// The part of a command that is at fault.
enum Fault<'a> {
    Command(TracerError),
    /// The condition, with its column.
    Condition((usize, &'a str), Refusal),
}

/// As [`write`]; of several faults, that of the condition comes last.
fn set<'a>(
    scope: Scope<'_>,
    event: (&str, &str),
    text: &'a str,
) -> Result<Result<(), Fault<'a>>, ProbeError> {
    let split = split_trigger(text).filter(|_| !text.starts_with('!'));
    if let Some((command, condition)) = split
        && let Err(refusal) = filter::parse(scope.engine, event, condition.1)?
    {
        let checked = parse_trigger(command).map_err(ProbeError::Syntax);
        let checked = checked.and_then(|command| scope.check_trigger(event, command));
        return Ok(Err(match checked {
            Ok(()) => Fault::Condition(condition, refusal),
            Err(error) => Fault::Command(fault(text, error)),
        }));
    }
    let parsed = parse_trigger(text).map_err(ProbeError::Syntax);
    let set = parsed.and_then(|command| scope.set_trigger(event, command));
    Ok(set.map_err(|error| match split {
        Some((_, condition)) if Refusal::is_of(&error) => {
            Fault::Condition(condition, Refusal::of(condition.1, &error))
        }
        _ => Fault::Command(fault(text, error)),
    }))
}

/// Logs a fault as the kernel does: of a histogram as that event's, of another trigger nothing.
fn log_fault(
    scope: Scope<'_>,
    log: &mut ErrorLog,
    (group, event): (&str, &str),
    text: &str,
    error: &TracerError,
) {
    let line = text.lines().next().unwrap_or_default();
    if line.trim_start_matches('!').starts_with("hist") {
        let position = error.position.unwrap_or_default().min(line.len());
        let part = format!("hist:{group}:{event}");
        log.add(scope.engine.micros(), &part, &error.message, (line.to_owned(), position));
    }
}

/// Which part of a command is at fault.
fn fault(text: &str, error: ProbeError) -> TracerError {
    match error {
        ProbeError::Syntax(error) => error.into(),
        ProbeError::Trigger(trigger) => {
            let (id, name) = trigger.fault();
            let position = Some(name.map_or(0, |name| field_fault(text, name)));
            TracerError { position, id: Some(id), ..TracerError::from(ProbeError::from(trigger)) }
        }
        error => error.into(),
    }
}
