//! Files about the events that are kept: their memory, their clock, texts among them, and those of
//! one vCPU.

use std::collections::BTreeMap;

use exoprobe_introspect::printable;
use exoprobe_probes::{CpuStatistics, EventStore};

use crate::error::TracerError;
use crate::numbers::parse_count;
use crate::options::{Options, TraceOption};
use crate::scope::Scope;

/// The one clock, as `trace_clock` lists it: time since the guest's power-on.
pub(crate) const CLOCKS: &str = "[local]\n";
const CLOCK: &str = "local";

/// Most bytes of one text of `trace_marker`: longer ones are several.
const MARK_MAX: usize = 1024;

/// Accepts the name of the clock. As in the kernel, the trace begins anew.
///
/// # Errors
/// [`TracerError`], `EINVAL`.
pub(crate) fn choose_clock(scope: Scope<'_>, text: &str) -> Result<(), TracerError> {
    let name = text.trim_ascii();
    if name != CLOCK {
        let shown: String = name.chars().take(20).collect();
        let message = format!("there is no clock `{shown}` here: see trace_clock");
        return Err(TracerError::new("EINVAL", message));
    }
    scope.engine.drain();
    scope.store().clear_trace();
    Ok(())
}

/// KiB of memory for events, of one of so many vCPUs: all vCPUs share one store.
pub(crate) fn size_text(store: &EventStore, vcpus: usize) -> String {
    format!("{}\n", (store.memory() >> 10) / vcpus.max(1))
}

/// Sets the memory for events to so many KiB for each vCPU.
///
/// # Errors
/// [`TracerError`]: `EINVAL`; `ENOMEM` for more than the service has for events or, of a trace
/// instance, for probes.
pub(crate) fn set_size(scope: Scope<'_>, vcpus: usize, text: &str) -> Result<(), TracerError> {
    let kib = parse_count(text)?;
    if kib == 0 {
        return Err(TracerError::new("EINVAL", "0 KiB hold no event"));
    }
    let bytes = usize::try_from(kib).ok();
    let bytes = bytes.and_then(|kib| kib.checked_mul(vcpus.max(1))?.checked_mul(1 << 10));
    scope.set_memory(bytes.unwrap_or(usize::MAX), vcpus)
}

/// Puts each line of a text among the events.
///
/// # Errors
/// [`TracerError`]: `EINVAL` where the option `markers` is off, `EBADF` where no events are kept.
pub(crate) fn mark(scope: Scope<'_>, options: Options, text: &str) -> Result<(), TracerError> {
    if !options.has(TraceOption::Markers) {
        return Err(TracerError::new("EINVAL", "the option `markers` is off"));
    }
    for line in text.split_terminator('\n') {
        for piece in pieces(line) {
            if !scope.mark(piece) {
                return Err(TracerError::new("EBADF", "no events are kept: see tracing_on"));
            }
        }
    }
    Ok(())
}

/// A line in pieces of [`MARK_MAX`] bytes; one of an empty line.
fn pieces(mut line: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    while line.len() > MARK_MAX {
        let mut end = MARK_MAX;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, rest) = line.split_at(end);
        pieces.push(piece);
        line = rest;
    }
    pieces.push(line);
    pieces
}

/// The text of `saved_cmdlines`: numbers of tasks, and their names.
pub(crate) fn tasks_text(tasks: &BTreeMap<u32, String>) -> String {
    tasks.iter().map(|(pid, name)| format!("{pid} {}\n", printable(name))).collect()
}

/// The text of the file `stats` of a vCPU.
pub(crate) fn stats_text(found: CpuStatistics, now_micros: u64) -> String {
    let time = |micros: u64| format!("{:>5}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let CpuStatistics { entries, overrun, bytes, oldest_micros, read, unmade } = found;
    let (oldest, now) = (time(oldest_micros), time(now_micros));
    format!(
        "entries: {entries}\noverrun: {overrun}\ncommit overrun: 0\nbytes: {bytes}\n\
        oldest event ts: {oldest}\nnow ts: {now}\ndropped events: {unmade}\nread events: {read}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_several() {
        assert_eq!(pieces(""), [""]);
        assert_eq!(pieces(&"x".repeat(MARK_MAX)), ["x".repeat(MARK_MAX)]);
        let text = format!("{}é{}", "x".repeat(MARK_MAX - 1), "y".repeat(2 * MARK_MAX));
        let found = pieces(&text);
        assert_eq!(found.concat(), text);
        let lengths: Vec<usize> = found.iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [MARK_MAX - 1, MARK_MAX, MARK_MAX, 2]);
    }

    #[test]
    fn statistics_are_lines() {
        let (oldest_micros, unmade) = (4_000_005, 8);
        let found =
            CpuStatistics { entries: 1, overrun: 2, bytes: 3, oldest_micros, read: 6, unmade };
        let expected = "entries: 1\noverrun: 2\ncommit overrun: 0\nbytes: 3\n\
            oldest event ts:     4.000005\nnow ts:     7.000000\ndropped events: 8\nread events: 6\n";
        assert_eq!(stats_text(found, 7_000_000), expected);
    }
}
