//! A checked script: its probes, what each must read at a hit, and its bodies.

use std::fmt;
use std::sync::Arc;

use crate::diagnostic::Span;
use crate::ir::{MapInfo, Statement};

/// A checked script.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its probes; bodies for the same place share one.
    pub attachments: Vec<Attachment>,
    /// Its actions.
    pub bodies: Vec<Body>,
    /// Probes that were left out: the kernel has no such function, and the list that names it has
    /// others. Each with the reason.
    pub missing: Vec<String>,
    pub(crate) maps: Vec<MapInfo>,
    /// Entries of a map, if the script says so.
    pub(crate) map_entries: Option<u32>,
    /// Maps are shown at the end.
    pub(crate) print_maps: bool,
}

/// A place of the guest, or an event, that runs bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The place.
    pub kind: AttachmentKind,
    /// The builtin `probe`: the place as bpftrace writes it.
    pub name: Arc<str>,
    /// Only a pattern stands for it: it may be left out if it cannot be armed.
    pub is_of_pattern: bool,
    /// Indices in [`Program::bodies`], in the script's order.
    pub bodies: Vec<usize>,
}

/// The kind of a probe, and its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttachmentKind {
    /// Once, after all others are armed.
    Begin,
    /// Once, after all others are removed.
    End,
    /// Each so many nanoseconds, on one CPU.
    Interval {
        /// Nanoseconds.
        nanoseconds: u64,
    },
    /// So many times a second, on each CPU.
    Profile {
        /// Nanoseconds between samples.
        nanoseconds: u64,
    },
    /// At an instruction of a function.
    Kprobe {
        /// The module, if the script names it.
        module: Option<Arc<str>>,
        /// The function.
        symbol: Arc<str>,
        /// Bytes from its start.
        offset: u64,
    },
    /// At a function's return.
    Kretprobe {
        /// The module, if the script names it.
        module: Option<Arc<str>>,
        /// The function.
        symbol: Arc<str>,
    },
    /// At a function's entry, with its arguments by name.
    Fentry {
        /// The function.
        symbol: Arc<str>,
    },
    /// At a function's return. [`Base::Arg`] means the arguments at its entry.
    Fexit {
        /// The function.
        symbol: Arc<str>,
    },
    /// At a system call's entry. [`Base::Arg`] means the call's arguments.
    SyscallEnter {
        /// Its name without `sys_`; `None` for every call.
        name: Option<Arc<str>>,
    },
    /// At a system call's return.
    SyscallExit {
        /// Its name without `sys_`; `None` for every call.
        name: Option<Arc<str>>,
    },
}

/// An action.
#[derive(Clone, Debug)]
pub struct Body {
    /// Its place in the script.
    pub span: Span,
    /// Reads at a hit; [`Hit::values`] has the values in this order.
    pub reads: Vec<Read>,
    /// Why the body must run at the hit itself, with the guest's memory at hand; `None` if all
    /// that it needs is in `reads`.
    pub needs_exit: Option<Reason>,
    pub(crate) filter: Option<crate::ir::Expr>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) variables: usize,
}

/// A value that depends on nothing but the hit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// A number, or an address.
    Base(Base),
    /// The task's name, at most 16 bytes: [`Datum::Bytes`].
    Comm,
    /// Process id (the guest's `tgid`).
    Pid,
    /// Thread id (the guest's `pid`).
    Tid,
    /// User id.
    Uid,
    /// Group id.
    Gid,
    /// Number of the NUMA node.
    NumaNode,
    /// Id of the control group.
    Cgroup,
    /// Return addresses in the kernel, at most this many: [`Datum::Stack`].
    KernelStack(u32),
    /// Return addresses in the process, at most this many: [`Datum::Stack`].
    UserStack(u32),
    /// Memory.
    Memory {
        /// Where.
        address: Chain,
        /// How much, and its form.
        what: MemoryKind,
    },
}

/// Start of a chain of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// An argument, from 0.
    Arg(u8),
    /// A word of the stack from the function's entry on, from 0; the return address is not one.
    StackArg(u16),
    /// The function's or system call's result.
    Retval,
    /// The number of the system call.
    SyscallNumber,
    /// A register, by its name of x86-64 without `%` (`rip`, `rax`, ...).
    Register(Arc<str>),
    /// Address of the current `task_struct`.
    Task,
    /// A fixed address.
    Address(u64),
    /// A symbol of the kernel, wherever it is at the hit.
    Symbol(Arc<str>),
}

/// An address: the base and the first offset; for each more offset, the 8 bytes at the address,
/// and the offset added to these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its start.
    pub base: Base,
    /// At least one.
    pub offsets: Vec<i64>,
}

/// The form of memory that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// A number, 1 to 8 bytes long, extended by its sign if it has one: [`Datum::Int`].
    Int {
        /// Bytes.
        bytes: u8,
        /// It has a sign.
        signed: bool,
    },
    /// So many bytes: [`Datum::Bytes`].
    Bytes(u32),
    /// Text up to a zero byte, at most so many bytes: [`Datum::Bytes`].
    Text(u32),
}

/// Why a body needs an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The expression.
    pub span: Span,
    /// The reason, as text that follows "because".
    pub text: String,
}

/// The value of a [`Read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datum<'a> {
    /// A number; one with a sign is extended to 64 bits.
    Int(u64),
    /// Text or memory.
    Bytes(&'a [u8]),
    /// Return addresses, the innermost first.
    Stack(&'a [u64]),
    /// Memory that cannot be read: 0, or empty text, as in bpftrace.
    Fault,
}

/// A [`Datum`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedDatum {
    /// As [`Datum::Int`].
    Int(u64),
    /// As [`Datum::Bytes`].
    Bytes(Vec<u8>),
    /// As [`Datum::Stack`].
    Stack(Vec<u64>),
    /// As [`Datum::Fault`].
    Fault,
}

impl OwnedDatum {
    /// The value, for a [`Hit`].
    #[must_use]
    pub fn datum(&self) -> Datum<'_> {
        match self {
            Self::Int(number) => Datum::Int(*number),
            Self::Bytes(bytes) => Datum::Bytes(bytes),
            Self::Stack(frames) => Datum::Stack(frames),
            Self::Fault => Datum::Fault,
        }
    }
}

/// A hit of an attachment.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// Nanoseconds of the guest's time.
    pub time: u64,
    /// The CPU.
    pub cpu: u32,
    /// Values of the body's [`Body::reads`], in their order. A missing one counts as a fault.
    pub values: &'a [Datum<'a>],
}

impl Program {
    /// Returns true if one of its actions needs an exit: then all run at their hits, in order.
    #[must_use]
    pub fn runs_at_hits(&self) -> bool {
        self.bodies.iter().any(|body| body.needs_exit.is_some())
    }

    /// Describes for each probe whether it needs an exit, and why: `--explain`.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut lines = Vec::new();
        for attachment in &self.attachments {
            for body in attachment.bodies.iter().filter_map(|index| self.bodies.get(*index)) {
                let how = match &body.needs_exit {
                    None => "reads at the hit only".to_owned(),
                    Some(reason) => format!("takes an exit, because {}", reason.text),
                };
                let reads: Vec<String> = body.reads.iter().map(ToString::to_string).collect();
                lines.push(format!("{}: {how}", attachment.name));
                lines.extend(reads.iter().map(|read| format!("    {read}")));
            }
        }
        lines.join("\n") + "\n"
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base(base) => base.fmt(f),
            Self::Comm => f.write_str("comm"),
            Self::Pid => f.write_str("pid"),
            Self::Tid => f.write_str("tid"),
            Self::Uid => f.write_str("uid"),
            Self::Gid => f.write_str("gid"),
            Self::NumaNode => f.write_str("numaid"),
            Self::Cgroup => f.write_str("cgroup"),
            Self::KernelStack(frames) => write!(f, "kstack, {frames} frames"),
            Self::UserStack(frames) => write!(f, "ustack, {frames} frames"),
            Self::Memory { address, what } => write!(f, "{what} at {address}"),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int { bytes, signed } => {
                write!(f, "{}int{}", if *signed { "" } else { "u" }, u32::from(*bytes) * 8)
            }
            Self::Bytes(len) => write!(f, "{len} bytes"),
            Self::Text(max) => write!(f, "text of at most {max} bytes"),
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arg(number) => write!(f, "arg{number}"),
            Self::StackArg(number) => write!(f, "sarg{number}"),
            Self::Retval => f.write_str("retval"),
            Self::SyscallNumber => f.write_str("the call's number"),
            Self::Register(name) => write!(f, "%{name}"),
            Self::Task => f.write_str("curtask"),
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Symbol(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.base.to_string();
        for (index, offset) in self.offsets.iter().enumerate() {
            let inner = if index == 0 { text } else { format!("*({text})") };
            text = match offset {
                0 => inner,
                1.. => format!("{inner}+{offset}"),
                _ => format!("{inner}{offset}"),
            };
        }
        f.write_str(&text)
    }
}
