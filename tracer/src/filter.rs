//! Filters of events, and conditions of triggers: those that are refused are reported as the
//! kernel's tracer does.

use std::collections::BTreeSet;

use exoprobe_probes::definition::{
    FILTER_MAX, FilterError, FilterFault, RefusedFilter, WrittenFilter,
};
use exoprobe_probes::trigger::TriggerError;
use exoprobe_probes::{Engine, ProbeError};

use crate::error::TracerError;
use crate::fault::field_fault;
use crate::listed::ListedEvent;
use crate::log::{ErrorLog, characters};
use crate::scope::{Scope, ShownFilter};

/// The part that faults of filters are of, also in triggers.
const PART: &str = "event filter parse error";
/// Text of the file without a filter.
const NONE: &str = "none\n";

/// The reason why a filter is not set.
pub(crate) struct Refusal {
    error: FilterError,
    message: String,
}

impl From<FilterError> for Refusal {
    fn from(error: FilterError) -> Self {
        Self { message: error.to_string(), error }
    }
}

impl Refusal {
    /// The engine's reason not to take this filter.
    pub(crate) fn of(text: &str, error: &ProbeError) -> Self {
        let name = match error {
            ProbeError::Filter { error, .. } => Some(error.field().as_str()),
            ProbeError::Trigger(trigger) => trigger.fault().1,
            _ => None,
        };
        let position = name.map_or(0, |name| field_fault(text, name));
        let caret = position + name.map_or(0, str::len);
        let fault = FilterFault::WrongOperator;
        Self { error: FilterError { fault, position, caret }, message: error.to_string() }
    }

    /// Returns true if the engine refuses something for its filter.
    pub(crate) fn is_of(error: &ProbeError) -> bool {
        matches!(error, ProbeError::Filter { .. } | ProbeError::Trigger(TriggerError::UserText(_)))
    }

    /// Logs it; `text` is the filter.
    pub(crate) fn log(&self, engine: &Engine, log: &mut ErrorLog, text: &str) {
        let place = (on_one_line(text), self.error.caret);
        log.add(engine.micros(), PART, &self.message, place);
    }

    /// The error of a write in which the filter begins at `start`.
    pub(crate) fn at(self, start: usize) -> TracerError {
        let Self { error: FilterError { fault, position, .. }, message } = self;
        let (position, id) = (Some(start + position), Some(fault.id()));
        TracerError { position, id, ..TracerError::new(fault.errno(), message) }
    }
}

/// Parses a filter of an event.
///
/// # Errors
/// [`ProbeError::NoSuchProbe`].
pub(crate) fn parse(
    engine: &Engine,
    (group, event): (&str, &str),
    text: &str,
) -> Result<Result<WrittenFilter, Refusal>, ProbeError> {
    let fields = engine.field_kinds(group, event)?;
    Ok(WrittenFilter::parse(text, &fields).map_err(Refusal::from))
}

/// The text of the file `filter`: also that of a filter that was refused, with its fault.
pub(crate) fn text((filter, refused): &ShownFilter) -> String {
    match (filter, refused) {
        (Some(filter), _) => format!("{filter}\n"),
        (None, Some(refused)) => refused_text(refused),
        (None, None) => NONE.to_owned(),
    }
}

fn refused_text(RefusedFilter { text, error }: &RefusedFilter) -> String {
    match error.fault.text() {
        Some(fault) => {
            let caret = characters(text, error.caret);
            format!("{text}\n{:caret$}^\nparse_error: {fault}\n\n", "")
        }
        None => format!("{text}\nError: (0)\n\n"),
    }
}

/// Sets a filter; `0` removes it. One that is refused removes it, too: the file shows its text from
/// then on.
pub(crate) fn set(
    scope: Scope<'_>,
    log: &mut ErrorLog,
    event: (&str, &str),
    text: &str,
) -> Result<(), TracerError> {
    check_length(text)?;
    match set_or_refuse(scope, event, text, None)? {
        None => Ok(()),
        Some(refusal) => {
            refusal.log(scope.engine, log, text.trim_ascii_end());
            Err(refusal.at(0))
        }
    }
}

/// Sets a filter for each event of a group; `0` removes the filters of all. An event that refuses
/// the new filter has none then.
pub(crate) fn set_of_group(
    scope: Scope<'_>,
    log: &mut ErrorLog,
    group: &str,
    events: &[ListedEvent],
    text: &str,
) -> Result<(), TracerError> {
    check_length(text)?;
    let events: BTreeSet<&str> = events.iter().map(|listed| &*listed.event).collect();
    for event in events {
        let of_group = Some(FilterFault::OfGroup);
        match set_or_refuse(scope, (group, event), text, of_group) {
            Ok(None) => {}
            Ok(Some(refusal)) => refusal.log(scope.engine, log, text.trim_ascii_end()),
            // It was deleted meanwhile.
            Err(ProbeError::NoSuchProbe(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The text with blanks in place of line ends and other control characters, but for tabs.
fn on_one_line(text: &str) -> String {
    let shown = |c: char| if c.is_ascii_control() && c != '\t' { ' ' } else { c };
    text.chars().map(shown).collect()
}

fn check_length(text: &str) -> Result<(), TracerError> {
    match text.len() < FILTER_MAX {
        true => Ok(()),
        false => {
            let message = format!("a filter has less than {FILTER_MAX} bytes");
            Err(TracerError::new("EINVAL", message))
        }
    }
}

/// Sets a filter of an event, or removes it and returns why; `shown` is the fault that the event
/// shows in place of its own.
fn set_or_refuse(
    scope: Scope<'_>,
    event: (&str, &str),
    text: &str,
    shown: Option<FilterFault>,
) -> Result<Option<Refusal>, ProbeError> {
    if text.trim() == "0" {
        scope.set_filter(event, None)?;
        return Ok(None);
    }
    let text = text.trim_ascii_end();
    let mut refusal = match parse(scope.engine, event, text)? {
        Err(refusal) => refusal,
        Ok(filter) => match scope.set_filter(event, Some(filter)) {
            Ok(()) => return Ok(None),
            Err(error) if Refusal::is_of(&error) => Refusal::of(text, &error),
            Err(error) => return Err(error),
        },
    };
    if let Some(fault) = shown {
        let error = FilterError { fault, position: 0, caret: 0 };
        refusal = Refusal { message: format!("{error}: {}", refusal.message), error };
    }
    let refused = RefusedFilter { text: on_one_line(text).into(), error: refusal.error };
    scope.refuse_filter(event, refused)?;
    Ok(Some(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_filter_is_shown_as_the_kernel_does() {
        let shown = |text: &str, fault, caret| {
            let error = FilterError { fault, position: 0, caret };
            refused_text(&RefusedFilter { text: text.into(), error })
        };
        assert_eq!(
            shown("a == x", FilterFault::NoOperand, 6),
            "a == x\n      ^\nparse_error: Invalid value (did you forget quotes)?\n\n"
        );
        assert_eq!(
            shown("CPU == CPUS", FilterFault::NoBrace, 13),
            "CPU == CPUS\n           ^\nparse_error: Missing '{'\n\n"
        );
        assert_eq!(
            shown("(", FilterFault::OpenParenthesis, 0),
            "(\n^\nparse_error: Too many '('\n\n"
        );
        assert_eq!(shown("()", FilterFault::Empty, 0), "()\nError: (0)\n\n");
    }
}
