//! Notices in the text of the consoles that the kernel panicked, or halted for good. The text is
//! the only sign that every Linux gives without a device or a symbol. A guest can print the words
//! itself; then it only ends its own run.

use std::sync::{Mutex, PoisonError};

use crate::status::StopReason;

const BEGIN: &str = "Kernel panic - not syncing: ";
/// Printed when the guest will not reboot by itself.
const END: &str = "---[ end Kernel panic";
/// Printed when the guest powers off and has no ACPI to do it with.
const HALTED: &str = "reboot: System halted";
/// Longest console line examined; the rest of a longer line is skipped.
const LINE_MAX: usize = 512;

/// A stream of console text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// The first serial port.
    Serial,
    /// The virtio console.
    Virtio,
}

#[derive(Default)]
struct WatchState {
    /// Of each stream, the beginning of a line.
    lines: [Vec<u8>; 2],
    message: Option<String>,
    end: Option<StopReason>,
}

/// Scans console output line by line: a kernel may print to several consoles.
#[derive(Default)]
pub(crate) struct ConsoleWatch {
    state: Mutex<WatchState>,
}

impl ConsoleWatch {
    pub(crate) fn feed(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in bytes {
            let begun = &mut state.lines[stream as usize];
            if *byte == b'\n' {
                let line = std::mem::take(begun);
                Self::line(&mut state, String::from_utf8_lossy(&line).trim_end());
            } else if begun.len() < LINE_MAX {
                begun.push(*byte);
            }
        }
    }

    fn line(state: &mut WatchState, line: &str) {
        if state.message.is_none()
            && let Some((_, message)) = line.split_once(BEGIN)
        {
            state.message = Some(message.trim_end().to_owned());
        } else if let Some(message) = state.message.clone()
            && line.contains(END)
        {
            state.end = Some(StopReason::Panic { message });
        } else if line.ends_with(HALTED) {
            state.end = Some(StopReason::Halted);
        }
    }

    /// Drops all state, for the text of another boot.
    pub(crate) fn reset(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = WatchState::default();
    }

    /// The panic's message, once printed.
    pub(crate) fn message(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).message.clone()
    }

    /// The reason for which the guest stops for good, once it was printed.
    pub(crate) fn end(&self) -> Option<StopReason> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).end.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_end() {
        let watch = ConsoleWatch::default();
        watch.feed(Stream::Serial, b"[    1.0] Kernel panic - not syncing: Attempted to kill");
        assert_eq!(watch.message(), None);
        watch.feed(Stream::Serial, b" init!\r\nCall Trace:\n");
        assert_eq!(watch.message().as_deref(), Some("Attempted to kill init!"));
        assert_eq!(watch.end(), None);
        watch.feed(Stream::Serial, b"---[ end Kernel panic - not syncing: Attempted ]---\n");
        let message = "Attempted to kill init!".to_owned();
        assert_eq!(watch.end(), Some(StopReason::Panic { message }));
        watch.feed(Stream::Serial, b"Kernel panic - not");
        watch.reset();
        watch.feed(Stream::Serial, b" syncing: again\n");
        assert_eq!((watch.message(), watch.end()), (None, None));
    }

    #[test]
    fn text_of_two_consoles_is_kept_apart() {
        let watch = ConsoleWatch::default();
        watch.feed(Stream::Serial, b"Kernel panic - not sync");
        watch.feed(Stream::Virtio, b"Kernel panic - not syncing: a\n---[ end Kernel");
        assert_eq!((watch.message().as_deref(), watch.end()), (Some("a"), None));
        watch.feed(Stream::Serial, b"ing: a\n");
        assert_eq!(watch.end(), None);
        watch.feed(Stream::Virtio, b" panic - not syncing: a ]---\n");
        assert_eq!(watch.end(), Some(StopReason::Panic { message: "a".to_owned() }));
    }

    #[test]
    fn a_halt_for_good() {
        let watch = ConsoleWatch::default();
        watch.feed(Stream::Serial, b"[    2.0] reboot: System halted\r\n");
        assert_eq!(watch.end(), Some(StopReason::Halted));
    }

    #[test]
    fn an_endless_line_stays_bounded() {
        let watch = ConsoleWatch::default();
        watch.feed(Stream::Serial, &vec![b'x'; 1 << 20]);
        assert_eq!(watch.state.lock().unwrap().lines[0].len(), LINE_MAX);
    }
}
