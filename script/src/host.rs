//! The world of a running script: output, symbols, clocks, memory.

/// Takes a script's output.
pub trait Output {
    /// Text, or lines of JSON; as they come, not always whole lines.
    fn write(&mut self, bytes: &[u8]);

    /// A warning that is no part of the output: one line without its end.
    fn warn(&mut self, text: &str);
}

/// Reads the guest's memory during a hit. Needed by bodies with
/// [`needs_exit`](crate::Body::needs_exit), and by `interval` bodies that read at fixed addresses.
pub trait Memory {
    /// Fills all of `into` from a virtual address. Returns false if a part cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// A symbol and the distance of an address to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolOffset {
    /// Its name.
    pub name: String,
    /// Bytes after its start.
    pub offset: u64,
    /// Its module; `None` for the kernel's own.
    pub module: Option<String>,
}

/// Answers what a script asks while it runs. Each method has a default that knows nothing.
pub trait Host {
    /// The kernel's symbol at an address.
    fn symbol(&self, _address: u64) -> Option<SymbolOffset> {
        None
    }

    /// The symbol at an address of a process.
    fn user_symbol(&self, _pid: u32, _address: u64) -> Option<SymbolOffset> {
        None
    }

    /// The name of a user.
    fn username(&self, _uid: u32) -> Option<String> {
        None
    }

    /// Nanoseconds from 1970 (UTC) to a moment of the guest's time ([`Hit::time`](crate::Hit)).
    fn wall_clock(&self, time: u64) -> i64 {
        i64::try_from(time).unwrap_or(i64::MAX)
    }

    /// Seconds of the local time zone east of UTC.
    fn utc_offset(&self) -> i32 {
        0
    }

    /// A random number.
    fn random(&self) -> u32 {
        0
    }

    /// The content of a file, for `cat()`.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be read.
    fn file(&self, _path: &str) -> Result<Vec<u8>, String> {
        Err("files are not served".to_owned())
    }

    /// Runs a command of the shell for `system()`. Returns its output; `None` if the reader of the
    /// script's output runs it, at this place of the output.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be run.
    fn command(&self, _command: &str) -> Result<Option<Vec<u8>>, String> {
        Err("commands are not served".to_owned())
    }

    /// The guest's memory at this hit.
    fn memory(&self) -> Option<&dyn Memory> {
        None
    }
}

/// Knows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {}

/// Keeps all output.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// The output.
    pub bytes: Vec<u8>,
    /// The warnings.
    pub warnings: Vec<String>,
}

impl Output for Collected {
    fn write(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn warn(&mut self, text: &str) {
        self.warnings.push(text.to_owned());
    }
}
