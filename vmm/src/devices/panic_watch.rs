//! Notices a kernel panic in the console text: the one sign that every Linux gives without a device
//! or a symbol. A guest can print the words itself; then it only ends its own run.

use std::sync::{Mutex, PoisonError};

const BEGIN: &str = "Kernel panic - not syncing: ";
/// Printed when the guest will not reboot by itself.
const END: &str = "---[ end Kernel panic";
/// Longest console line looked at; the rest of it is passed over.
const LINE_MAX: usize = 512;

#[derive(Default)]
struct State {
    line: Vec<u8>,
    message: Option<String>,
    ended: bool,
}

/// Scans console output line by line.
#[derive(Default)]
pub(crate) struct PanicWatch {
    state: Mutex<State>,
}

impl PanicWatch {
    pub(crate) fn feed(&self, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut state.line);
                Self::line(&mut state, &String::from_utf8_lossy(&line));
            } else if state.line.len() < LINE_MAX {
                state.line.push(*byte);
            }
        }
    }

    fn line(state: &mut State, line: &str) {
        if state.message.is_none()
            && let Some((_, message)) = line.split_once(BEGIN)
        {
            state.message = Some(message.trim_end().to_owned());
        } else if state.message.is_some() && line.contains(END) {
            state.ended = true;
        }
    }

    /// The panic's message, once printed.
    pub(crate) fn message(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).message.clone()
    }

    /// The guest said that it will do nothing more.
    pub(crate) fn ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_end() {
        let watch = PanicWatch::default();
        watch.feed(b"[    1.0] Kernel panic - not syncing: Attempted to kill");
        assert_eq!(watch.message(), None);
        watch.feed(b" init!\r\nCall Trace:\n");
        assert_eq!(watch.message().as_deref(), Some("Attempted to kill init!"));
        assert!(!watch.ended());
        watch.feed(b"---[ end Kernel panic - not syncing: Attempted ]---\n");
        assert!(watch.ended());
    }

    #[test]
    fn an_endless_line_stays_bounded() {
        let watch = PanicWatch::default();
        watch.feed(&vec![b'x'; 1 << 20]);
        assert_eq!(watch.state.lock().unwrap().line.len(), LINE_MAX);
    }
}
