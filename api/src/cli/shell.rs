//! Commands of a script's `system()`: run here, each at its place in the script's output.

use std::collections::VecDeque;
use std::process::{Command, Stdio};

use crate::client::{Client, ClientError, ScriptCommand};
use crate::log::say;

/// The commands of a script whose output is read.
pub(super) struct Shell<'a> {
    client: &'a Client,
    id: u32,
    /// The number of the first that the service has not been asked for.
    next: u64,
    waiting: VecDeque<ScriptCommand>,
    /// Bytes of output so far.
    offset: u64,
}

impl<'a> Shell<'a> {
    pub(super) fn new(client: &'a Client, id: u32) -> Self {
        Self { client, id, next: 0, waiting: VecDeque::new(), offset: 0 }
    }

    /// Asks the service for commands. Those before output that has been read are among them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub(super) async fn look(&mut self) -> Result<(), ClientError> {
        let found = self.client.script_commands(self.id, self.next).await?;
        let lost = found.first.saturating_sub(self.next);
        if lost > 0 {
            say!("warning: {lost} commands of system() are lost: there were too many to be kept");
        }
        self.next = found.first + found.commands.len() as u64;
        self.waiting.extend(found.commands);
        Ok(())
    }

    /// Notes that all output has been read: each command is due.
    pub(super) fn end(&mut self) {
        self.offset = u64::MAX;
    }

    /// Takes the next command that is due within `len` bytes of output, and the number of bytes
    /// before it; `None` passes over all of them.
    pub(super) fn take(&mut self, len: usize) -> Option<(usize, String)> {
        let before =
            |at: u64| usize::try_from(at.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let before = self.waiting.front().map(|command| before(command.at));
        let Some(before) = before.filter(|before| *before <= len) else {
            self.offset = self.offset.saturating_add(len as u64);
            return None;
        };
        self.offset = self.offset.saturating_add(before as u64);
        self.waiting.pop_front().map(|command| (before, command.text))
    }
}

/// Runs a command of the shell to its end. Returns its output, none if it cannot be run.
pub(super) async fn run(command: String) -> Vec<u8> {
    let ran = tokio::task::spawn_blocking(move || {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).stdin(Stdio::null()).stderr(Stdio::inherit()).output()
    });
    let printed = match ran.await {
        Ok(ran) => ran.map(|ran| ran.stdout).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    printed.unwrap_or_else(|error| {
        say!("warning: system(): {error}");
        Vec::new()
    })
}
