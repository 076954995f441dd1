//! The commands of ttyS1, parsed.

use core::net::SocketAddrV4;

use crate::module::Module;

mod reason;
mod system_call;

pub use reason::{ParseError, Reason};
pub use system_call::SystemCall;

/// Most children `par` runs at once.
pub const MAX_CHILDREN: usize = 64;

/// Most KiB of a request of `diskio`.
pub const MAX_KIB: u64 = 64;

/// Most bytes of a message of `unix`.
pub const MAX_MESSAGE: usize = 4096;

/// The requests of `diskio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Writes, each flushed to the medium before the next one.
    Sync,
}

/// Work that ends by itself and has a count; `spawn` and `par` run it in children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work<'a> {
    /// That many `getpid` system calls.
    Getpid(u64),
    /// That many times `openat` and `close` of the path.
    Open(&'a [u8], u64),
    /// That many children that exit at once and are waited for.
    Fork(u64),
    /// That many `write`s of one byte to `/dev/null`.
    Write(u64),
    /// That many times `mmap` of one page, a store to it, `munmap`.
    Mmap(u64),
    /// A busy loop in user mode, in milliseconds.
    Spin(u64),
    /// A loop in user mode that reads the time-stamp counter, in milliseconds.
    Gap(u64),
    /// `nanosleep`, in milliseconds.
    Sleep(u64),
    /// That many children that run into an int3 of their own and die of SIGTRAP.
    Trap(u64),
    /// That many rounds of system calls with pointers to nothing, all of which must give EFAULT.
    Badptr(u64),
    /// That many times: patterns in all vector registers, kept over a `sched_yield` and a signal.
    Vectors(u64),
    /// That many blocks of a disk, read past the page cache, that have their own number in each
    /// word.
    Diskread(&'a [u8], u64),
    /// That many blocks of a disk, written past the page cache with their own number in each word,
    /// then flushed to the medium.
    Diskwrite(&'a [u8], u64),
    /// That many requests of so many KiB, in order from the disk's beginning, past the page cache.
    Diskio {
        /// Their kind.
        io: Io,
        /// The disk.
        path: &'a [u8],
        /// KiB of each, 1 to [`MAX_KIB`].
        kib: usize,
        /// Their number.
        count: u64,
    },
    /// That many words of 8 bytes of a file, read one by one, that differ from the one before.
    Words(&'a [u8], u64),
    /// That many datagrams to this address, each of which must come back before the next one.
    Udp(SocketAddrV4, u64),
    /// That many blocks to a port of the host's, each of which must come back before the next one.
    VsockSend(u32, u64),
    /// The bytes of one connection of the host's to a port, sent back.
    VsockEcho(u32),
    /// That many calls of one system call.
    Calls(SystemCall<'a>, u64),
    /// That many TCP connections within the guest, with so many KiB each way.
    Tcp {
        /// KiB each way.
        kib: u64,
        /// Their number.
        count: u64,
    },
    /// The SYNs that a TCP connection sends again within so many milliseconds, as the listener has
    /// no room for it.
    TcpFull(u64),
    /// That many messages of so many bytes through a pair of UNIX sockets.
    Unix {
        /// Bytes of each, at most [`MAX_MESSAGE`].
        len: usize,
        /// Their number.
        count: u64,
    },
    /// That many children that take memory until the kernel kills them.
    Oom(u64),
}

impl Work<'_> {
    /// The command word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Getpid(_) => "getpid",
            Self::Open(..) => "open",
            Self::Fork(_) => "fork",
            Self::Write(_) => "write",
            Self::Mmap(_) => "mmap",
            Self::Spin(_) => "spin",
            Self::Gap(_) => "gap",
            Self::Sleep(_) => "sleep",
            Self::Trap(_) => "trap",
            Self::Badptr(_) => "badptr",
            Self::Vectors(_) => "vectors",
            Self::Diskread(..) => "diskread",
            Self::Diskwrite(..) => "diskwrite",
            Self::Diskio { .. } => "diskio",
            Self::Words(..) => "words",
            Self::Udp(..) => "udp",
            Self::VsockSend(..) => "vsock-send",
            Self::VsockEcho(_) => "vsock-echo",
            Self::Calls(call, _) => call.name(),
            Self::Tcp { .. } => "tcp",
            Self::TcpFull(_) => "tcp-full",
            Self::Unix { .. } => "unix",
            Self::Oom(_) => "oom",
        }
    }
}

/// The end of a function that a BPF program is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Before its first instruction.
    Fentry,
    /// After its return.
    Fexit,
}

impl End {
    /// Both, in their order.
    pub const ALL: [Self; 2] = [Self::Fentry, Self::Fexit];

    /// The command word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Fexit => "fexit",
        }
    }
}

/// One command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Done by init itself.
    Work(Work<'a>),
    /// Done by a child pinned to a CPU.
    Spawn {
        /// The child's CPU.
        cpu: usize,
        /// The work of the child.
        work: Work<'a>,
    },
    /// Done by several children at once, child `i` pinned to CPU `i` modulo the number of CPUs.
    Par {
        /// How many children.
        children: usize,
        /// The work of each child.
        work: Work<'a>,
    },
    /// Work of a child on the last CPU, while init writes 1 and 0 to a file by turns.
    Toggle {
        /// The file.
        path: &'a [u8],
        /// How many times both are written.
        times: u64,
        /// The work of the child.
        work: Work<'a>,
    },
    /// Work of a child on the last CPU, while init attaches and detaches such a program as
    /// [`Self::Attach`] does.
    Reattach {
        /// Where in the function.
        end: End,
        /// The function's number among the kernel's types.
        function: u32,
        /// How many times it comes and goes.
        times: u64,
        /// The work of the child.
        work: Work<'a>,
    },
    /// Pin init to a CPU.
    Cpu(usize),
    /// Load a kernel module of the initramfs.
    Insmod(Module<'a>),
    /// Unload a kernel module.
    Rmmod(Module<'a>),
    /// Mount a file system of this type that needs no device.
    Mount {
        /// The type.
        kind: &'a [u8],
        /// The folder.
        target: &'a [u8],
    },
    /// Append a line to a file.
    Put {
        /// The file.
        path: &'a [u8],
        /// The line, without its end.
        line: &'a [u8],
    },
    /// Have that many more children, which sleep until the machine ends.
    Crowd(u64),
    /// Answer the number that follows a word in a file.
    Number {
        /// The file.
        path: &'a [u8],
        /// The word.
        word: &'a [u8],
    },
    /// Write each byte that comes from a terminal back to it.
    Echo {
        /// The terminal.
        path: &'a [u8],
        /// How many bytes.
        count: u64,
    },
    /// Answer the rows of a terminal, once it has so many columns.
    Winsize {
        /// The terminal.
        path: &'a [u8],
        /// Its columns.
        columns: u64,
    },
    /// Have a BPF program count the calls of a function, from now on.
    Attach {
        /// Where in the function.
        end: End,
        /// The function's number among the kernel's types.
        function: u32,
    },
    /// Answer the calls that this program has counted.
    Calls(End),
    /// Detach it.
    Detach(End),
    /// Answer the bytes of the widest vector register that user mode may use.
    Width,
    /// Answer.
    Ping,
    /// Report all totals since boot.
    Counters,
    /// Sync and reset the machine.
    Poweroff,
    /// Reset the machine.
    Reboot,
    /// Make the kernel panic.
    Panic,
}

/// The words of a line.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.0.trim_ascii_start();
        let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(end)?;
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    fn word(&mut self, what: &'static str) -> Result<&'a [u8], Reason<'a>> {
        self.next().ok_or(Reason::Missing(what))
    }

    fn number(&mut self, what: &'static str) -> Result<u64, Reason<'a>> {
        let word = self.word(what)?;
        number(word).ok_or(Reason::BadNumber(word))
    }

    /// The rest of the line.
    fn rest(&mut self, what: &'static str) -> Result<&'a [u8], Reason<'a>> {
        let rest = core::mem::take(&mut self.0).trim_ascii();
        if rest.is_empty() { Err(Reason::Missing(what)) } else { Ok(rest) }
    }

    fn socket_address(&mut self) -> Result<SocketAddrV4, Reason<'a>> {
        let word = self.word("address")?;
        let parsed = core::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
        parsed.ok_or(Reason::BadAddress(word))
    }

    fn port(&mut self) -> Result<u32, Reason<'a>> {
        let word = self.word("port")?;
        number(word).and_then(|n| u32::try_from(n).ok()).ok_or(Reason::BadNumber(word))
    }

    fn module(&mut self) -> Result<Module<'a>, Reason<'a>> {
        let word = self.word("module name")?;
        Module::new(word).ok_or(Reason::BadModule(word))
    }

    fn io(&mut self) -> Result<Io, Reason<'a>> {
        match self.word("kind")? {
            b"read" => Ok(Io::Read),
            b"write" => Ok(Io::Write),
            b"sync" => Ok(Io::Sync),
            word => Err(Reason::BadIo(word)),
        }
    }

    fn kib(&mut self) -> Result<usize, Reason<'a>> {
        let word = self.word("KiB")?;
        let kib = number(word).filter(|kib| (1..=MAX_KIB).contains(kib));
        kib.and_then(|kib| usize::try_from(kib).ok()).ok_or(Reason::BadNumber(word))
    }

    fn message(&mut self) -> Result<usize, Reason<'a>> {
        let word = self.word("bytes")?;
        let len = number(word).and_then(|len| usize::try_from(len).ok());
        len.filter(|len| (1..=MAX_MESSAGE).contains(len)).ok_or(Reason::BadNumber(word))
    }

    fn end(&mut self) -> Result<End, Reason<'a>> {
        let word = self.word("fentry or fexit")?;
        End::ALL.into_iter().find(|end| end.name().as_bytes() == word).ok_or(Reason::BadEnd(word))
    }

    fn type_number(&mut self) -> Result<u32, Reason<'a>> {
        let word = self.word("type number")?;
        number(word).and_then(|n| u32::try_from(n).ok()).ok_or(Reason::BadNumber(word))
    }

    fn index(&mut self, what: &'static str) -> Result<usize, Reason<'a>> {
        let word = self.word(what)?;
        number(word).and_then(|n| usize::try_from(n).ok()).ok_or(Reason::BadNumber(word))
    }
}

/// Decimal digits only, at most `u32::MAX`: no sum of counts overflows then.
fn number(word: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for &byte in word {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!word.is_empty() && u32::try_from(value).is_ok()).then_some(value)
}

/// The decimal number that follows a word in a text, both between blanks.
#[must_use]
pub fn number_after(text: &[u8], word: &[u8]) -> Option<u64> {
    let mut words = Words(text);
    while let Some(found) = words.next() {
        if found == word {
            return words.next().and_then(number);
        }
    }
    None
}

/// Splits a line into the command's number and the command: `#NUMBER COMMAND`.
///
/// A line that begins otherwise, or with more than a `u32` holds, has no number.
#[must_use]
pub fn split_number(line: &[u8]) -> (Option<u32>, &[u8]) {
    let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let digits = word.strip_prefix(b"#").filter(|digits| digits.iter().all(u8::is_ascii_digit));
    let number = digits.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
    match number {
        Some(number) => (Some(number), line.get(word.len()..).unwrap_or_default()),
        None => (None, line),
    }
}

/// Parses one line; an empty one is no command.
///
/// # Errors
/// The command word and what is wrong with the line.
pub fn parse(line: &[u8]) -> Result<Option<Command<'_>>, ParseError<'_>> {
    let mut words = Words(line);
    let Some(command) = words.next() else { return Ok(None) };
    let parsed = parse_words(command, &mut words).and_then(|parsed| match words.next() {
        None => Ok(Some(parsed)),
        Some(word) => Err(Reason::Excess(word)),
    });
    parsed.map_err(|reason| ParseError { command, reason })
}

fn parse_words<'a>(command: &[u8], words: &mut Words<'a>) -> Result<Command<'a>, Reason<'a>> {
    Ok(match command {
        b"ping" => Command::Ping,
        b"width" => Command::Width,
        b"counters" => Command::Counters,
        b"poweroff" => Command::Poweroff,
        b"reboot" => Command::Reboot,
        b"panic" => Command::Panic,
        b"cpu" => Command::Cpu(words.index("CPU")?),
        b"insmod" => Command::Insmod(words.module()?),
        b"rmmod" => Command::Rmmod(words.module()?),
        b"mount" => Command::Mount { kind: words.word("type")?, target: words.word("folder")? },
        b"put" => Command::Put { path: words.word("path")?, line: words.rest("text")? },
        b"crowd" => Command::Crowd(words.number("count")?),
        b"number" => Command::Number { path: words.word("path")?, word: words.word("word")? },
        b"echo" => Command::Echo { path: words.word("path")?, count: words.number("count")? },
        b"winsize" => {
            Command::Winsize { path: words.word("path")?, columns: words.number("columns")? }
        }
        b"attach" => Command::Attach { end: words.end()?, function: words.type_number()? },
        b"calls" => Command::Calls(words.end()?),
        b"detach" => Command::Detach(words.end()?),
        b"reattach" => Command::Reattach {
            end: words.end()?,
            function: words.type_number()?,
            times: words.number("count")?,
            work: child_work(words)?,
        },
        b"toggle" => Command::Toggle {
            path: words.word("path")?,
            times: words.number("count")?,
            work: child_work(words)?,
        },
        b"spawn" => Command::Spawn { cpu: words.index("CPU")?, work: child_work(words)? },
        b"par" => {
            let children = words.index("number of children")?;
            if !(1..=MAX_CHILDREN).contains(&children) {
                return Err(Reason::Children);
            }
            Command::Par { children, work: child_work(words)? }
        }
        _ => Command::Work(work(command, words)?.ok_or(Reason::Unknown)?),
    })
}

fn child_work<'a>(words: &mut Words<'a>) -> Result<Work<'a>, Reason<'a>> {
    let command = words.word("command")?;
    work(command, words)?.ok_or(Reason::NotInChild(command))
}

fn work<'a>(command: &[u8], words: &mut Words<'a>) -> Result<Option<Work<'a>>, Reason<'a>> {
    Ok(Some(match command {
        b"getpid" => Work::Getpid(words.number("count")?),
        b"open" => Work::Open(words.word("path")?, words.number("count")?),
        b"fork" => Work::Fork(words.number("count")?),
        b"write" => Work::Write(words.number("count")?),
        b"mmap" => Work::Mmap(words.number("count")?),
        b"spin" => Work::Spin(words.number("milliseconds")?),
        b"gap" => Work::Gap(words.number("milliseconds")?),
        b"sleep" => Work::Sleep(words.number("milliseconds")?),
        b"trap" => Work::Trap(words.number("count")?),
        b"badptr" => Work::Badptr(words.number("count")?),
        b"vectors" => Work::Vectors(words.number("count")?),
        b"diskread" => Work::Diskread(words.word("path")?, words.number("count")?),
        b"diskwrite" => Work::Diskwrite(words.word("path")?, words.number("count")?),
        b"diskio" => Work::Diskio {
            io: words.io()?,
            path: words.word("path")?,
            kib: words.kib()?,
            count: words.number("count")?,
        },
        b"words" => Work::Words(words.word("path")?, words.number("count")?),
        b"udp" => Work::Udp(words.socket_address()?, words.number("count")?),
        b"vsock-send" => Work::VsockSend(words.port()?, words.number("count")?),
        b"vsock-echo" => Work::VsockEcho(words.port()?),
        b"tcp" => Work::Tcp { kib: words.number("KiB")?, count: words.number("count")? },
        b"tcp-full" => Work::TcpFull(words.number("milliseconds")?),
        b"unix" => Work::Unix { len: words.message()?, count: words.number("count")? },
        b"oom" => Work::Oom(words.number("count")?),
        _ => match SystemCall::parse(command, words)? {
            Some(call) => Work::Calls(call, words.number("count")?),
            None => return Ok(None),
        },
    }))
}

#[cfg(test)]
mod tests;
