//! Commands of `system()`: the service runs none. The reader of a script's output, who started the
//! script, runs each at its place in the output.

use std::collections::VecDeque;

/// Most bytes of commands that are kept.
const BYTES_MAX: usize = 256 << 10;
/// Bytes that a command counts for beside its text.
const OVERHEAD: usize = 64;

/// A command of `system()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShellCommand {
    /// Bytes of output before it.
    pub(crate) at: u64,
    /// For the shell.
    pub(crate) text: String,
}

/// The last commands of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShellCommands {
    /// The number of the first that is kept.
    pub(crate) first: u64,
    /// In their order.
    pub(crate) kept: VecDeque<ShellCommand>,
    bytes: usize,
}

impl ShellCommands {
    pub(super) fn add(&mut self, at: u64, text: &str) {
        self.bytes += text.len() + OVERHEAD;
        self.kept.push_back(ShellCommand { at, text: text.to_owned() });
        while self.bytes > BYTES_MAX
            && let Some(gone) = self.kept.pop_front()
        {
            self.bytes -= gone.text.len() + OVERHEAD;
            self.first += 1;
        }
    }

    /// Those from a number on.
    pub(super) fn from(&self, number: u64) -> Self {
        let skipped = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let kept = self.kept.iter().skip(skipped).cloned().collect();
        Self { first: self.first.max(number), kept, bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_commands_are_kept_and_counted() {
        let mut commands = ShellCommands::default();
        (0..3).for_each(|number| commands.add(number, "echo"));
        let ShellCommands { first, kept, .. } = commands.from(1);
        assert_eq!((first, kept.len(), kept[0].at), (1, 2, 1));
        assert_eq!((commands.from(9).first, commands.from(9).kept.len()), (9, 0));
        commands.add(3, &"x".repeat(BYTES_MAX - 3 * OVERHEAD));
        assert_eq!((commands.first, commands.kept.len()), (2, 2));
        commands.add(4, &"x".repeat(BYTES_MAX));
        assert_eq!((commands.first, commands.kept.len(), commands.bytes), (5, 0, 0));
        assert_eq!(commands.from(1).first, 5, "the reader sees that some are gone");
    }
}
