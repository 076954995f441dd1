//! Files of events: enable, filter, format, id.

use std::collections::BTreeSet;

use exoprobe_probes::definition::{FieldError, WrittenFilter};
use exoprobe_probes::synthetic::SYNTHETIC_GROUP;
use exoprobe_probes::{Engine, ProbeError, ProbeStatus, Selection, SyntheticStatus};

use crate::commands::is_armed;
use crate::error::TracerError;
use crate::fault::field_fault;
use crate::hist::HistReader;
use crate::log::{ErrorLog, FILTER_PART};
use crate::node::EventFile;
use crate::numbers::parse_enable;

/// Text of the file without a filter.
const NONE: &str = "none\n";

/// An event of probes, or a synthetic one.
pub(crate) struct ListedEvent {
    pub(crate) group: String,
    pub(crate) event: String,
    /// It is enabled or has triggers.
    pub(crate) is_armed: bool,
    /// Of an event of probes, the number of one of them.
    pub(crate) probe: Option<u32>,
    id: u32,
}

/// All events, in order of their definition; those of several probes several times.
pub(crate) fn all(engine: &Engine) -> Vec<ListedEvent> {
    let of_probe = |probe: ProbeStatus| ListedEvent {
        is_armed: is_armed(&probe),
        probe: Some(probe.id),
        id: probe.id,
        group: probe.group,
        event: probe.event,
    };
    let of_synthetic = |status: SyntheticStatus| ListedEvent {
        is_armed: status.enabled || status.triggers > 0 || status.is_switched,
        probe: None,
        id: status.id,
        group: SYNTHETIC_GROUP.to_owned(),
        event: status.definition.name,
    };
    let probes = engine.list().into_iter().map(of_probe);
    let mut all: Vec<ListedEvent> =
        probes.chain(engine.synthetics().into_iter().map(of_synthetic)).collect();
    all.sort_by_key(|event| event.id);
    all
}

/// `1`, `0`, or `X` where some events are enabled and some are not. As in the kernel, those count
/// as enabled that have triggers.
pub(crate) fn enabled_text(events: &[ListedEvent]) -> &'static str {
    let on = events.iter().filter(|event| event.is_armed).count();
    match on {
        0 => "0\n",
        _ if on == events.len() => "1\n",
        _ => "X\n",
    }
}

/// `1` or `0` of one event, and `*` where triggers have it armed.
pub(crate) fn enabled_text_of(enabled: bool, triggers: usize) -> String {
    let armed = if triggers > 0 { "*" } else { "" };
    format!("{}{armed}\n", u8::from(enabled))
}

/// Enables or disables events.
pub(crate) fn enable<'a>(
    engine: &Engine,
    events: impl IntoIterator<Item = &'a ListedEvent>,
    text: &str,
) -> Result<(), TracerError> {
    set_enabled(engine, events, parse_enable(text)?)
}

/// Enables or disables events.
pub(crate) fn set_enabled<'a>(
    engine: &Engine,
    events: impl IntoIterator<Item = &'a ListedEvent>,
    on: bool,
) -> Result<(), TracerError> {
    let mut probes = Vec::new();
    for event in events {
        match event.probe {
            Some(probe) => probes.push(probe),
            None => engine.enable_synthetic(&event.event, on)?,
        }
    }
    Ok(engine.set_enabled(Selection::ids(probes), on)?)
}

pub(crate) fn read(
    engine: &Engine,
    probe: &ProbeStatus,
    file: EventFile,
) -> Result<String, TracerError> {
    Ok(match file {
        EventFile::Id => format!("{}\n", probe.id),
        EventFile::Filter => match &probe.filter {
            Some(filter) => format!("{filter}\n"),
            None => NONE.to_owned(),
        },
        EventFile::Trigger => crate::trigger::listing(engine, &probe.group, &probe.event)?,
        EventFile::Hist => HistReader::open(engine, &probe.group, &probe.event)?.collect(),
        EventFile::Format => {
            let fields = engine.fields(&probe.group, &probe.event)?;
            crate::format::text(&probe.event, probe.id, probe.kind, &fields)
        }
    })
}

/// The text of a file of a synthetic event.
pub(crate) fn read_synthetic(
    engine: &Engine,
    status: &SyntheticStatus,
    file: EventFile,
) -> Result<String, TracerError> {
    let event = &status.definition.name;
    Ok(match file {
        EventFile::Id => format!("{}\n", status.id),
        EventFile::Filter => {
            status.filter.as_ref().map_or_else(|| NONE.to_owned(), |filter| format!("{filter}\n"))
        }
        EventFile::Trigger => crate::trigger::listing(engine, SYNTHETIC_GROUP, event)?,
        EventFile::Hist => HistReader::open(engine, SYNTHETIC_GROUP, event)?.collect(),
        EventFile::Format => crate::synthetic::format_text(status),
    })
}

/// A fault of a filter that is in one of its fields.
fn wrong_field(text: &str, error: ProbeError) -> TracerError {
    let (id, name) = match &error {
        ProbeError::Filter { error: FieldError::NoSuch(name), .. } => ("FIELD_NOT_FOUND", name),
        ProbeError::Filter { error, .. } => ("ILLEGAL_FIELD_OP", error.field()),
        _ => return error.into(),
    };
    let position = Some(field_fault(text, name));
    TracerError { position, id: Some(id), ..TracerError::from(error) }
}

/// Sets a filter; `0` takes it away.
pub(crate) fn set_filter(
    engine: &Engine,
    log: &mut ErrorLog,
    (group, event): (&str, &str),
    text: &str,
) -> Result<(), TracerError> {
    let text = text.trim();
    if text == "0" {
        return Ok(engine.set_filter(group, event, None)?);
    }
    let filter = text.parse::<WrittenFilter>().map_err(TracerError::from);
    let set = filter.and_then(|filter| {
        let set = engine.set_filter(group, event, Some(filter));
        set.map_err(|error| wrong_field(text, error))
    });
    set.inspect_err(|error| {
        let line = text.lines().next().unwrap_or_default().to_owned();
        let column = error.position.unwrap_or_default().min(line.len());
        log.add(engine.micros(), FILTER_PART, &error.message, (line, column));
    })
}

/// Sets a filter for each event of a group that has its fields; `0` removes the filters of all.
///
/// # Errors
/// [`TracerError`]: EINVAL if no event has its fields.
pub(crate) fn set_group_filter(
    engine: &Engine,
    log: &mut ErrorLog,
    group: &str,
    events: &[ListedEvent],
    text: &str,
) -> Result<(), TracerError> {
    let text = text.trim();
    let events: BTreeSet<&str> = events.iter().map(|listed| &*listed.event).collect();
    let refused = match text {
        "0" => set_where_fields_match(engine, group, events, None)?,
        _ => match text.parse::<WrittenFilter>() {
            Ok(filter) => set_where_fields_match(engine, group, events, Some(&filter))?,
            Err(error) => Some(error.into()),
        },
    };
    let Some(TracerError { message, .. }) = refused else { return Ok(()) };
    let message = format!("no event of the group `{group}` takes this filter: {message}");
    let line = text.lines().next().unwrap_or_default().to_owned();
    log.add(engine.micros(), FILTER_PART, &message, (line, 0));
    let (position, id) = (Some(0), Some("BAD_SUBSYS_FILTER"));
    Err(TracerError { position, id, ..TracerError::new("EINVAL", message) })
}

/// Sets a filter for each event that has its fields. Returns the first refusal if there is no such
/// event. Events that were deleted meanwhile are passed over.
fn set_where_fields_match<'a>(
    engine: &Engine,
    group: &str,
    events: impl IntoIterator<Item = &'a str>,
    filter: Option<&WrittenFilter>,
) -> Result<Option<TracerError>, TracerError> {
    let (mut is_set, mut refused) = (false, None);
    for event in events {
        match engine.set_filter(group, event, filter.cloned()) {
            Ok(()) => is_set = true,
            Err(ProbeError::NoSuchProbe(_)) => {}
            Err(error @ (ProbeError::Filter { .. } | ProbeError::Trigger(_))) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused.filter(|_| !is_set).map(TracerError::from))
}
