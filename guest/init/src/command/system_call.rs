//! System calls that are made one by one, each with one known result.

use super::{Reason, Words};

/// A system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemCall<'a> {
    /// `stat` of a path.
    Stat(&'a [u8]),
    /// `mkdir` of a folder that is there.
    Mkdir(&'a [u8]),
    /// `execve` of a path that is not there.
    Exec(&'a [u8]),
    /// `setuid` to the user that init already is, 0.
    Setuid,
    /// `kill` of init, with no signal.
    Kill,
    /// `sync`.
    Sync,
}

impl<'a> SystemCall<'a> {
    /// The command word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stat(_) => "stat",
            Self::Mkdir(_) => "mkdir",
            Self::Exec(_) => "exec",
            Self::Setuid => "setuid",
            Self::Kill => "kill",
            Self::Sync => "sync",
        }
    }

    pub(super) fn parse(command: &[u8], words: &mut Words<'a>) -> Result<Option<Self>, Reason<'a>> {
        Ok(Some(match command {
            b"stat" => Self::Stat(words.word("path")?),
            b"mkdir" => Self::Mkdir(words.word("path")?),
            b"exec" => Self::Exec(words.word("path")?),
            b"setuid" => Self::Setuid,
            b"kill" => Self::Kill,
            b"sync" => Self::Sync,
            _ => return Ok(None),
        }))
    }
}
