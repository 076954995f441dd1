//! Files of events: enable, filter, format, id.

use exoprobe_probes::synthetic::SYNTHETIC_GROUP;
use exoprobe_probes::{ProbeStatus, Selection, SyntheticStatus};

use crate::error::TracerError;
use crate::hist::HistReader;
use crate::listed::ListedEvent;
use crate::node::EventFile;
use crate::numbers::parse_enable;
use crate::scope::Scope;

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
    scope: Scope<'_>,
    events: impl IntoIterator<Item = &'a ListedEvent>,
    text: &str,
) -> Result<(), TracerError> {
    set_enabled(scope, events, parse_enable(text)?)
}

/// Enables or disables events: in an instance all of them, or none.
pub(crate) fn set_enabled<'a>(
    scope: Scope<'_>,
    events: impl IntoIterator<Item = &'a ListedEvent>,
    on: bool,
) -> Result<(), TracerError> {
    let engine = scope.engine;
    if let Some(own) = scope.own {
        let name = |event: &ListedEvent| (event.group.as_str().into(), event.event.as_str().into());
        let names: Vec<_> = events.into_iter().map(name).collect();
        return Ok(engine.set_enabled_in(own, &names, on)?);
    }
    let (probes, synthetics): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| event.probe.is_some());
    let probes = Selection::ids(probes.iter().filter_map(|event| event.probe));
    // As in the kernel, each as far as possible; the first error is reported.
    let done = engine.set_enabled(probes, on);
    let each = synthetics.into_iter().map(|event| engine.enable_synthetic(&event.event, on));
    Ok(each.fold(done, |done, next| done.and(next))?)
}

pub(crate) fn read(
    scope: Scope<'_>,
    probe: &ProbeStatus,
    file: EventFile,
) -> Result<String, TracerError> {
    let name = (&*probe.group, &*probe.event);
    Ok(match file {
        EventFile::Id => format!("{}\n", probe.id),
        EventFile::Filter => crate::filter::text(&scope.filter(name, probe.filter.as_ref())?),
        EventFile::Trigger => crate::trigger::listing(scope, name)?,
        EventFile::Hist => HistReader::open(scope, name)?.collect(),
        EventFile::Format => {
            let fields = scope.engine.fields(name.0, name.1)?;
            crate::format::text(&probe.event, probe.id, probe.kind, &fields)
        }
    })
}

/// The text of a file of a synthetic event.
pub(crate) fn read_synthetic(
    scope: Scope<'_>,
    status: &SyntheticStatus,
    file: EventFile,
) -> Result<String, TracerError> {
    let name = (SYNTHETIC_GROUP, &*status.definition.name);
    Ok(match file {
        EventFile::Id => format!("{}\n", status.id),
        EventFile::Filter => crate::filter::text(&scope.filter(name, status.filter.as_ref())?),
        EventFile::Trigger => crate::trigger::listing(scope, name)?,
        EventFile::Hist => HistReader::open(scope, name)?.collect(),
        EventFile::Format => crate::synthetic::format_text(status),
    })
}
