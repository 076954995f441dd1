//! A command that continues after its caller has its exit status: a child process with the same
//! arguments.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{dup2_stderr, dup2_stdout, setsid};

use super::error::CliError;

/// Set in the child. Its standard output is a pipe to the caller then.
const CHILD: &str = "EXOPROBE_BACKGROUND_CHILD";
/// Line that the child writes when it is ready.
const READY: u8 = b'+';
const NOWHERE: &str = "/dev/null";

/// A process that continues by itself.
pub(super) struct Background {
    /// Where standard error goes then.
    log: (PathBuf, File),
}

impl Background {
    /// Starts the child, and waits until it is ready; `None` in the caller then. The child gets
    /// itself: it leaves the caller's session, so that neither Ctrl-C nor the terminal's end is for
    /// it.
    ///
    /// # Errors
    /// [`CliError::Reported`] in the caller when the child ended instead; in the child, a log that
    /// cannot be written.
    pub(super) fn begin(log: Option<&Path>) -> Result<Option<Self>, CliError> {
        if std::env::var_os(CHILD).as_deref() != Some(OsStr::new("1")) {
            return start().map(|()| None);
        }
        // Fails only where it has a session of its own already.
        let _ = setsid();
        let path = log.unwrap_or(Path::new(NOWHERE)).to_owned();
        match OpenOptions::new().append(true).create(true).open(&path) {
            Ok(file) => Ok(Some(Self { log: (path, file) })),
            Err(source) => Err(CliError::Write { path, source }),
        }
    }

    /// Makes the caller return; later errors are in the log.
    ///
    /// # Errors
    /// [`CliError::Output`] when the caller is gone.
    pub(super) fn ready(self) -> Result<(), CliError> {
        let (path, log) = self.log;
        let nowhere = OpenOptions::new().write(true).open(NOWHERE);
        let nowhere = nowhere.map_err(|source| CliError::Write { path, source })?;
        io::stdout().write_all(&[READY])?;
        io::stdout().flush()?;
        dup2_stderr(&log).map_err(io::Error::from)?;
        Ok(dup2_stdout(&nowhere).map_err(io::Error::from)?)
    }
}

fn start() -> Result<(), CliError> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(std::env::args_os().skip(1)).env(CHILD, "1");
    let mut child = child.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = Vec::new();
    if let Some(output) = &mut child.stdout {
        output.take(1).read_to_end(&mut said)?;
    }
    if said == [READY] {
        return Ok(());
    }
    // Its end closed the pipe; it has said why.
    let status = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Err(CliError::Reported(status.unwrap_or(CliError::FAILED)))
}
