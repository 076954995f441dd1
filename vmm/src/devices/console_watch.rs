//! Notices in the console text that the kernel panicked, or halted for good. The text is the only
//! sign that every Linux gives without a device or a symbol. A guest can print the words itself;
//! then it only ends its own run.

use std::sync::{Mutex, PoisonError};

use crate::status::StopReason;

const BEGIN: &str = "Kernel panic - not syncing: ";
/// Printed when the guest will not reboot by itself.
const END: &str = "---[ end Kernel panic";
/// Printed when the guest powers off and has no ACPI to do it with.
const HALTED: &str = "reboot: System halted";
/// Longest console line examined; the rest of a longer line is skipped.
const LINE_MAX: usize = 512;

#[derive(Default)]
struct WatchState {
    line: Vec<u8>,
    message: Option<String>,
    end: Option<StopReason>,
}

/// Scans console output line by line.
#[derive(Default)]
pub(crate) struct ConsoleWatch {
    state: Mutex<WatchState>,
}

impl ConsoleWatch {
    pub(crate) fn feed(&self, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut state.line);
                Self::line(&mut state, String::from_utf8_lossy(&line).trim_end());
            } else if state.line.len() < LINE_MAX {
                state.line.push(*byte);
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
        watch.feed(b"[    1.0] Kernel panic - not syncing: Attempted to kill");
        assert_eq!(watch.message(), None);
        watch.feed(b" init!\r\nCall Trace:\n");
        assert_eq!(watch.message().as_deref(), Some("Attempted to kill init!"));
        assert_eq!(watch.end(), None);
        watch.feed(b"---[ end Kernel panic - not syncing: Attempted ]---\n");
        let message = "Attempted to kill init!".to_owned();
        assert_eq!(watch.end(), Some(StopReason::Panic { message }));
        watch.feed(b"Kernel panic - not");
        watch.reset();
        watch.feed(b" syncing: again\n");
        assert_eq!((watch.message(), watch.end()), (None, None));
    }

    #[test]
    fn a_halt_for_good() {
        let watch = ConsoleWatch::default();
        watch.feed(b"[    2.0] reboot: System halted\r\n");
        assert_eq!(watch.end(), Some(StopReason::Halted));
    }

    #[test]
    fn an_endless_line_stays_bounded() {
        let watch = ConsoleWatch::default();
        watch.feed(&vec![b'x'; 1 << 20]);
        assert_eq!(watch.state.lock().unwrap().line.len(), LINE_MAX);
    }
}
