//! Files of events: enable, filter, format, id.

use exoprobe_probes::{Engine, ProbeStatus, Selection};

use crate::error::TracerError;
use crate::hist::HistReader;
use crate::node::EventFile;
use crate::numbers::parse_enable;

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

/// Enables or disables probes.
pub(crate) fn enable(engine: &Engine, probes: Selection, text: &str) -> Result<(), TracerError> {
    Ok(engine.set_enabled(probes, parse_enable(text)?)?)
}

pub(crate) fn read(
    engine: &Engine,
    probe: &ProbeStatus,
    file: EventFile,
) -> Result<String, TracerError> {
    Ok(match file {
        EventFile::Id => format!("{}\n", probe.id),
        EventFile::Filter => crate::filter::text(engine, probe),
        EventFile::Trigger => crate::trigger::listing(engine, &probe.group, &probe.event)?,
        EventFile::Hist => HistReader::open(engine, &probe.group, &probe.event)?.collect(),
        EventFile::Format => {
            let fields = engine.fields(&probe.group, &probe.event)?;
            crate::format::text(&probe.event, probe.id, probe.kind, &fields)
        }
    })
}
