//! Files of events: enable, filter, format, id.

use exoprobe_probes::definition::{FieldError, Filter};
use exoprobe_probes::{Engine, ProbeError, ProbeStatus, Selection};

use crate::error::TracerError;
use crate::fault::field_fault;
use crate::log::ErrorLog;
use crate::node::EventFile;

/// Text of the file without a filter.
const NONE: &str = "none\n";
/// Whose faults those of filters are, in error_log.
const PART: &str = "event filter parse error";

/// Reads `0`, `1` and what the kernel's kstrtobool takes beside.
///
/// # Errors
/// [`TracerError`], `EINVAL`.
pub fn parse_switch(text: &str) -> Result<bool, TracerError> {
    let text = text.trim_ascii();
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
        "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
        _ => {
            let shown: String = text.chars().take(20).collect();
            let message = format!("`{shown}` is neither on nor off: write 1 or 0");
            Err(TracerError::new("EINVAL", message))
        }
    }
}

/// `1`, `0`, or `X` where some events are enabled and some are not.
pub(crate) fn enabled_text(probes: &[&ProbeStatus]) -> &'static str {
    let on = probes.iter().filter(|probe| probe.enabled).count();
    match on {
        0 => "0\n",
        _ if on == probes.len() => "1\n",
        _ => "X\n",
    }
}

/// `1` or `0` of one event, and `*` where triggers have it armed.
pub(crate) fn enabled_text_of(probe: &ProbeStatus) -> String {
    let armed = if probe.triggers > 0 { "*" } else { "" };
    format!("{}{armed}\n", u8::from(probe.enabled))
}

pub(crate) fn enable(
    engine: &Engine,
    probes: &[&ProbeStatus],
    text: &str,
) -> Result<(), TracerError> {
    let on = parse_switch(text)?;
    let probes = Selection::ids(probes.iter().map(|probe| probe.id));
    Ok(engine.set_enabled(probes, on)?)
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
        EventFile::Hist => crate::hist::text(&engine.histogram_tables(&probe.group, &probe.event)?),
        EventFile::Format => {
            let fields = engine.fields(&probe.group, &probe.event)?;
            crate::format::text(&probe.event, probe.id, probe.kind, &fields)
        }
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
    probe: &ProbeStatus,
    text: &str,
) -> Result<(), TracerError> {
    let text = text.trim();
    if text == "0" {
        return Ok(engine.set_filter(&probe.group, &probe.event, None)?);
    }
    let filter = text.parse::<Filter>().map_err(TracerError::from);
    let set = filter.and_then(|filter| {
        let set = engine.set_filter(&probe.group, &probe.event, Some(filter));
        set.map_err(|error| wrong_field(text, error))
    });
    set.inspect_err(|error| {
        let line = text.lines().next().unwrap_or_default().to_owned();
        let column = error.position.unwrap_or_default().min(line.len());
        log.add(engine.micros(), PART, &error.message, (line, column));
    })
}
