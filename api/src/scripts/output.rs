//! The output of a script: its last MiB, which readers follow at their own pace.

use std::sync::{Mutex, MutexGuard, PoisonError};

use exoprobe_script::Output;
use exoprobe_vmm::OutputLog;
use tokio::sync::watch;

use super::commands::ShellCommands;

/// Most warnings of one script that are kept.
const WARNINGS_MAX: usize = 64;

/// The state of a script's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes written so far.
    pub(crate) end: u64,
    /// Nothing more is written.
    pub(crate) is_complete: bool,
}

/// The output of a script.
#[derive(Default)]
pub(crate) struct ScriptOutput {
    log: OutputLog,
    extent: watch::Sender<Extent>,
    warnings: Mutex<Warnings>,
    commands: Mutex<ShellCommands>,
}

/// Warnings about a script: the first of them, and how many more there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Warnings {
    pub(crate) kept: Vec<String>,
    pub(crate) more: u64,
}

impl ScriptOutput {
    /// The bytes that are kept from `offset` on, and the offset of the first of them.
    pub(crate) fn read(&self, offset: u64) -> (u64, Vec<u8>) {
        let chunk = self.log.read(offset);
        (chunk.start, chunk.bytes)
    }

    /// The state of the output, as it changes.
    pub(crate) fn extent(&self) -> watch::Receiver<Extent> {
        self.extent.subscribe()
    }

    /// Notes that nothing more is written.
    pub(crate) fn complete(&self) {
        self.extent.send_modify(|extent| extent.is_complete = true);
    }

    /// The warnings so far.
    pub(crate) fn warnings(&self) -> Warnings {
        self.lock().clone()
    }

    /// Notes a command of system() for the reader, after the output so far.
    pub(super) fn command(&self, text: &str) {
        let at = self.extent.borrow().end;
        self.lock_commands().add(at, text);
    }

    /// The commands of system() that are kept, without those before `number`.
    pub(crate) fn commands(&self, number: u64) -> ShellCommands {
        self.lock_commands().from(number)
    }

    fn lock_commands(&self) -> MutexGuard<'_, ShellCommands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn append(&self, bytes: &[u8]) {
        self.log.append(bytes);
        self.extent.send_modify(|extent| extent.end += bytes.len() as u64);
    }

    pub(crate) fn warn(&self, text: &str) {
        let mut warnings = self.lock();
        let is_known = warnings.kept.iter().any(|kept| kept == text);
        if is_known || warnings.kept.len() >= WARNINGS_MAX {
            warnings.more += 1;
        } else {
            warnings.kept.push(text.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Warnings> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output for &ScriptOutput {
    fn write(&mut self, bytes: &[u8]) {
        self.append(bytes);
    }

    fn warn(&mut self, text: &str) {
        ScriptOutput::warn(self, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_end_and_warnings_are_bounded() {
        let output = ScriptOutput::default();
        let extent = output.extent();
        output.append(b"one ");
        output.append(b"two");
        output.complete();
        assert_eq!(*extent.borrow(), Extent { end: 7, is_complete: true });
        assert_eq!(output.read(4), (4, b"two".to_vec()));
        output.warn("again");
        output.warn("again");
        (0..100).for_each(|number| output.warn(&number.to_string()));
        let Warnings { kept, more } = output.warnings();
        assert_eq!((kept.len(), more), (WARNINGS_MAX, 1 + 101 - 64));
    }
}
