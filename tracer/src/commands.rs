//! kprobe_events: its listing, and what is written to it.

use exoprobe_probes::definition::DEFAULT_GROUP;
use exoprobe_probes::definition::{
    Command, Deletion, Flag, definition_lines, normalised, parse_command, parse_line,
    without_comment,
};
use exoprobe_probes::{
    Engine, NewProbe, ProbeDefinition, ProbeError, ProbeKind, ProbeStatus, Registration, StatusFlag,
};

use crate::error::TracerError;
use crate::fault::fault;
use crate::log::ErrorLog;

/// Longest line, in bytes (the kernel's buffer is a page).
const LINE_MAX: usize = 4095;
/// Whose faults these are, in error_log.
const PART: &str = "trace_kprobe";

/// The text of kprobe_events.
pub(crate) fn listing(probes: &[ProbeStatus]) -> String {
    probes.iter().map(|probe| format!("{}\n", probe.definition)).collect()
}

/// The text of kprobe_profile: hits and misses.
pub(crate) fn profile(probes: &[ProbeStatus]) -> String {
    let line = |probe: &ProbeStatus| {
        format!("  {:<44} {:>15} {:>15}\n", probe.event, probe.hits, probe.nmissed)
    };
    probes.iter().map(line).collect()
}

/// Removes all events, as opening the file with O_TRUNC does.
pub(crate) fn clear(engine: &Engine) -> Result<(), TracerError> {
    let probes = engine.list();
    refuse_enabled(probes.iter())?;
    Ok(engine.unregister_all()?)
}

fn refuse_enabled<'a>(
    mut probes: impl Iterator<Item = &'a ProbeStatus>,
) -> Result<(), TracerError> {
    match probes.find(|probe| is_enabled(probe)) {
        None => Ok(()),
        Some(ProbeStatus { group, event, .. }) => {
            let message = format!(
                "{group}/{event} is enabled: write 0 to events/{group}/{event}/enable first (nothing was deleted)"
            );
            Err(TracerError::new("EBUSY", message))
        }
    }
}

/// Whether a probe's event is enabled.
pub(crate) fn is_enabled(probe: &ProbeStatus) -> bool {
    !probe.flags.contains(&StatusFlag::Disabled)
}

/// A definition on its way to the engine, and the line that it is of.
struct Defined<'a> {
    number: usize,
    line: &'a str,
    definition: ProbeDefinition,
}

/// Commands that are being written: definitions are registered many at a time.
pub(crate) struct Writer<'a> {
    engine: &'a Engine,
    log: &'a mut ErrorLog,
    defined: Vec<Defined<'a>>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(engine: &'a Engine, log: &'a mut ErrorLog) -> Self {
        Self { engine, log, defined: Vec::new() }
    }

    /// Runs all commands of a text, in order; at the first fault it stops, and what came before stays.
    pub(crate) fn write(mut self, text: &'a str) -> Result<(), TracerError> {
        for (number, line) in definition_lines(text) {
            let done = self.line(number, line);
            done.map_err(|error| TracerError { line: error.line.or(Some(number)), ..error })?;
        }
        self.register()
    }

    fn line(&mut self, number: usize, line: &'a str) -> Result<(), TracerError> {
        if line.len() > LINE_MAX {
            self.register()?;
            let message = format!("a line has at most {LINE_MAX} bytes");
            return Err(TracerError::new("EINVAL", message));
        }
        // What was read before comes first, also where it is wrong.
        match parse_command(line) {
            Ok(Command::Define(mut definition)) => {
                definition.flags = vec![Flag::Disabled];
                self.defined.push(Defined { number, line, definition: *definition });
                Ok(())
            }
            Ok(Command::Delete(deletion)) => {
                self.register()?;
                delete(self.engine, &deletion)
            }
            Err(error) => {
                self.register()?;
                if error.is_logged() {
                    self.log(&error.message, line, error.position);
                }
                Err(error.into())
            }
        }
    }

    /// Registers what has been read so far.
    fn register(&mut self) -> Result<(), TracerError> {
        let defined = std::mem::take(&mut self.defined);
        let probes = |defined: &[Defined<'_>]| -> Vec<NewProbe> {
            defined.iter().map(|one| one.definition.clone().into()).collect()
        };
        if defined.is_empty() {
            return Ok(());
        }
        let Err(refused) = self.engine.define_probes(probes(&defined)) else { return Ok(()) };
        let (before, rest) = defined.split_at(refused.index);
        let Some(at) = rest.first() else { return Err(refused.error.into()) };
        if !before.is_empty() {
            self.engine.define_probes(probes(before)).map_err(|batch| batch.error)?;
        }
        let (id, position) = fault(&refused.error, at.line, &at.definition);
        let message = refused.error.to_string();
        self.log(&message, at.line, position);
        Err(TracerError {
            line: Some(at.number),
            position: Some(position),
            id: Some(id),
            ..TracerError::new(refused.error.code(), message)
        })
    }

    fn log(&mut self, message: &str, line: &str, position: usize) {
        let shown = normalised(without_comment(line), position);
        self.log.add(self.engine.micros(), PART, message, shown);
    }
}

/// `-:GROUP/EVENT [PLACE [ARGUMENT...]]`.
fn delete(engine: &Engine, deletion: &Deletion) -> Result<(), TracerError> {
    let group = deletion.group.as_deref().unwrap_or(DEFAULT_GROUP);
    let probes = engine.list();
    let [kprobe, kretprobe] = ["p", "r"].map(|letter| canonical(letter, &deletion.words));
    let is_meant = |probe: &&ProbeStatus| {
        let is_named = deletion.event.as_ref().is_none_or(|event| probe.event == *event);
        let mut listed = probe.definition.split_whitespace().skip(1);
        let words = match probe.kind {
            ProbeKind::Kprobe => &kprobe,
            ProbeKind::Kretprobe => &kretprobe,
        };
        probe.group == group && is_named && words.iter().all(|word| listed.next() == Some(word))
    };
    let meant: Vec<&ProbeStatus> = probes.iter().filter(is_meant).collect();
    if meant.is_empty() {
        let name = deletion.event.as_deref().unwrap_or_default();
        let message = format!("there is no event `{group}/{name}` so defined: see kprobe_events");
        return Err(TracerError::new("ENOENT", message));
    }
    refuse_enabled(meant.iter().copied())?;
    let registration = |probe: &&ProbeStatus| Registration { id: probe.id, addr: probe.addr };
    match engine.unregister_probes(&mut meant.iter().map(registration).collect::<Vec<_>>()) {
        // The guest has rewritten the text: the probe is gone all the same.
        Ok(()) | Err(ProbeError::Clobbered { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Place and arguments in the words of the listing.
fn canonical(letter: &str, words: &[String]) -> Vec<String> {
    let line = format!("{letter}:x {}", words.join(" "));
    match parse_line(&line) {
        Ok(parsed) => parsed.to_string().split_whitespace().skip(1).map(str::to_owned).collect(),
        Err(_) => words.to_vec(),
    }
}
