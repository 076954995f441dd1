//! kprobe_events: its listing, and what is written to it.

use std::collections::BTreeMap;

use exoprobe_probes::definition::{
    Command, Deletion, Flag, definition_lines, normalised, parse_command, parse_line,
    without_comment,
};
use exoprobe_probes::{
    Batch, BatchError, Engine, ProbeDefinition, ProbeError, ProbeKind, ProbeStatus, Selection,
    StatusFlag,
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
    lines(probes).map(|(_, line)| line).collect()
}

/// The lines of the listing, with the probes' numbers.
pub(crate) fn lines(probes: &[ProbeStatus]) -> impl Iterator<Item = (u32, String)> {
    probes.iter().map(|probe| (probe.id, format!("{}\n", probe.definition)))
}

/// The text of kprobe_profile: hits and misses.
pub(crate) fn profile(probes: &[ProbeStatus]) -> String {
    let line = |probe: &ProbeStatus| {
        format!("  {:<44} {:>15} {:>15}\n", probe.event, probe.hits, probe.nmissed)
    };
    probes.iter().map(line).collect()
}

/// Fails if a line of definitions is too long.
pub(crate) fn check_length(line: &str) -> Result<(), TracerError> {
    if line.len() > LINE_MAX {
        let message = format!("a line has at most {LINE_MAX} bytes");
        return Err(TracerError::new("EINVAL", message));
    }
    Ok(())
}

/// Fails if an event is enabled or has triggers: then none is removed.
pub(crate) fn check_clear(engine: &Engine) -> Result<(), TracerError> {
    refuse_enabled(engine.list().iter())
}

/// Removes all events, as opening the file with O_TRUNC does.
pub(crate) fn clear(engine: &Engine) -> Result<(), TracerError> {
    check_clear(engine)?;
    engine.unregister(Selection::all()).map_err(ProbeError::from)?;
    Ok(())
}

fn refuse_enabled<'a>(
    mut probes: impl Iterator<Item = &'a ProbeStatus>,
) -> Result<(), TracerError> {
    match probes.find(|probe| !probe.flags.contains(&StatusFlag::Disabled)) {
        None => Ok(()),
        Some(ProbeStatus { group, event, .. }) => {
            let message = format!(
                "{group}/{event} is enabled, in an instance too, or has triggers: write 0 to events/{group}/{event}/enable, \
                 and remove what its file `trigger` lists, first (nothing was deleted)"
            );
            Err(TracerError::new("EBUSY", message))
        }
    }
}

/// A definition on its way to the engine, and the line that it is of.
struct Defined<'a> {
    number: usize,
    line: &'a str,
    definition: ProbeDefinition,
}

/// Commands that are being written, in whose order all is done: definitions are registered
/// many at a time, and so are events deleted.
pub(crate) struct Writer<'a> {
    engine: &'a Engine,
    log: &'a mut ErrorLog,
    defined: Vec<Defined<'a>>,
    /// Deletions, with the numbers of their lines. There are none while there are definitions.
    deletions: Vec<(usize, Deletion)>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(engine: &'a Engine, log: &'a mut ErrorLog) -> Self {
        Self { engine, log, defined: Vec::new(), deletions: Vec::new() }
    }

    /// Runs all commands of a text, in order; at the first fault it stops, and what came before
    /// stays.
    pub(crate) fn write(mut self, text: &'a str) -> Result<(), TracerError> {
        for (number, line) in definition_lines(text) {
            let done = self.line(number, line);
            done.map_err(|error| TracerError { line: error.line.or(Some(number)), ..error })?;
        }
        self.do_all()
    }

    fn line(&mut self, number: usize, line: &'a str) -> Result<(), TracerError> {
        if let Err(error) = check_length(line) {
            self.do_all()?;
            return Err(error);
        }
        // What was read before comes first, also where it is wrong.
        match parse_command(line) {
            Ok(Command::Define(mut definition)) => {
                self.delete()?;
                definition.flags = vec![Flag::Disabled];
                self.defined.push(Defined { number, line, definition: *definition });
                Ok(())
            }
            Ok(Command::Delete(deletion)) => {
                self.register()?;
                self.deletions.push((number, deletion));
                Ok(())
            }
            Err(error) => {
                self.do_all()?;
                if error.is_logged() {
                    self.log(&error.message, line, error.position);
                }
                Err(error.into())
            }
        }
    }

    /// Does what has been read so far.
    fn do_all(&mut self) -> Result<(), TracerError> {
        self.delete()?;
        self.register()
    }

    /// Deletes what has been read so far, as far as the first that cannot be.
    fn delete(&mut self) -> Result<(), TracerError> {
        let deletions = std::mem::take(&mut self.deletions);
        if deletions.is_empty() {
            return Ok(());
        }
        let probes = self.engine.list();
        let (mut left, mut gone) = (Events::of(&probes), Vec::new());
        let found = deletions.iter().try_for_each(|(number, deletion)| {
            let meant = left.take(deletion);
            let meant = meant.map_err(|error| TracerError { line: Some(*number), ..error })?;
            gone.extend(meant.iter().map(|probe| probe.id));
            Ok(())
        });
        match self.engine.unregister(Selection::ids(gone)).map_err(ProbeError::from) {
            // The guest has rewritten the text: the probe is gone all the same.
            Ok(_) | Err(ProbeError::Clobbered { .. }) => found,
            Err(error) => Err(error.into()),
        }
    }

    /// Registers what has been read so far.
    fn register(&mut self) -> Result<(), TracerError> {
        let defined = std::mem::take(&mut self.defined);
        if defined.is_empty() {
            return Ok(());
        }
        let refused = match self.admit(&defined) {
            Ok(admitted) => return self.report(&defined, &admitted),
            Err(refused) => refused,
        };
        let (before, rest) = defined.split_at(refused.index);
        let Some(at) = rest.first() else { return Err(refused.error.into()) };
        if !before.is_empty() {
            let admitted = self.admit(before).map_err(|batch| batch.error)?;
            self.report(before, &admitted)?;
        }
        Err(self.refuse(at, &refused.error))
    }

    /// Registers definitions, without those probes of patterns that are refused. Numbers of
    /// refusals are those of their definitions.
    fn admit(&self, defined: &[Defined<'_>]) -> Result<Admitted, BatchError> {
        let definitions = defined.iter().map(|one| one.definition.clone()).collect();
        let expansion = self.engine.expand(definitions, usize::MAX)?;
        let sources: Vec<usize> = expansion.definitions.iter().map(|one| one.source).collect();
        let of_line = |error: BatchError| BatchError { index: sources[error.index], ..error };
        let admission = self.engine.admit(Batch::from(expansion).joining()).map_err(of_line)?;
        let refused = admission.refused.into_iter().map(of_line).collect();
        Ok(Admitted { refused, sources })
    }

    /// Logs how many functions each pattern has left out.
    ///
    /// # Errors
    /// The first refusal of a pattern all of whose functions were refused.
    fn report(&mut self, defined: &[Defined<'_>], admitted: &Admitted) -> Result<(), TracerError> {
        for (index, one) in defined.iter().enumerate() {
            let refused = admitted.refused.iter().filter(|refused| refused.index == index);
            let Some(first) = refused.clone().next() else { continue };
            let found = admitted.sources.iter().filter(|source| **source == index).count();
            let left_out = refused.count();
            if left_out == found {
                return Err(self.refuse(one, &first.error));
            }
            let message = format!(
                "{left_out} of {found} functions were left out, the first of them: {}",
                first.error
            );
            let (_, position) = fault(&first.error, one.line, &one.definition);
            self.log(&message, one.line, position);
        }
        Ok(())
    }

    fn refuse(&mut self, at: &Defined<'_>, error: &ProbeError) -> TracerError {
        let (id, position) = fault(error, at.line, &at.definition);
        let message = error.to_string();
        self.log(&message, at.line, position);
        // The kernel's own file has it so, other than register_kprobe().
        let is_of_file = ["BAD_PROBE_ADDR", "NON_UNIQ_SYMBOL"].contains(&id);
        let errno = if is_of_file { "EINVAL" } else { error.code() };
        TracerError {
            line: Some(at.number),
            position: Some(position),
            id: Some(id),
            ..TracerError::new(errno, message)
        }
    }

    fn log(&mut self, message: &str, line: &str, position: usize) {
        let shown = normalised(without_comment(line), position);
        self.log.add(self.engine.micros(), PART, message, shown);
    }
}

/// The result of registering definitions.
struct Admitted {
    refused: Vec<BatchError>,
    /// The definition of each probe that was to be registered.
    sources: Vec<usize>,
}

/// The events that there are, by group and name.
struct Events<'a>(BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a ProbeStatus>>>);

impl<'a> Events<'a> {
    fn of(probes: &'a [ProbeStatus]) -> Self {
        let mut all: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for probe in probes {
            let group = all.entry(&*probe.group).or_default();
            group.entry(&*probe.event).or_default().push(probe);
        }
        Self(all)
    }

    /// Takes out what `-:[GROUP/][EVENT] [PLACE [ARGUMENT...]]` means, of all groups without one.
    fn take(&mut self, deletion: &Deletion) -> Result<Vec<&'a ProbeStatus>, TracerError> {
        let [kprobe, kretprobe] = ["p", "r"].map(|letter| canonical(letter, &deletion.words));
        let is_meant = |probe: &mut &ProbeStatus| {
            let mut listed = probe.definition.split_whitespace().skip(1);
            let words = match probe.kind {
                ProbeKind::Kprobe => &kprobe,
                ProbeKind::Kretprobe => &kretprobe,
            };
            words.iter().all(|word| listed.next() == Some(word))
        };
        let mut meant = Vec::new();
        let group = deletion.group.as_deref();
        let groups = self.0.iter_mut().filter(|(name, _)| group.is_none_or(|it| it == **name));
        for (_, events) in groups {
            let probes: Vec<&mut Vec<_>> = match deletion.event.as_deref() {
                Some(event) => events.get_mut(event).into_iter().collect(),
                None => events.values_mut().collect(),
            };
            meant.extend(probes.into_iter().flat_map(|probes| probes.extract_if(.., is_meant)));
        }
        if meant.is_empty() {
            let group = group.map(|group| format!("{group}/")).unwrap_or_default();
            let name = deletion.event.as_deref().unwrap_or_default();
            let message =
                format!("there is no event `{group}{name}` so defined: see kprobe_events");
            return Err(TracerError::new("ENOENT", message));
        }
        refuse_enabled(meant.iter().copied())?;
        Ok(meant)
    }
}

/// Place and arguments in the words of the listing.
fn canonical(letter: &str, words: &[String]) -> Vec<String> {
    if words.is_empty() {
        return Vec::new();
    }
    let line = format!("{letter}:x {}", words.join(" "));
    match parse_line(&line) {
        Ok(parsed) => parsed.to_string().split_whitespace().skip(1).map(str::to_owned).collect(),
        Err(_) => words.to_vec(),
    }
}
