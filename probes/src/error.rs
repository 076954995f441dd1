//! The engine's errors, each with the errno of the kernel's own API if it has one.

use exoprobe_guest::{Gva, OutsideMemory, VcpuError};
use exoprobe_introspect::btf::NoTypes;
use exoprobe_introspect::{LookupError, NoModules, VirtualReadError};

use crate::definition::{FieldError, ParseError, UnknownRegister};
use crate::engine::arguments::error::ParameterError;
use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::reserved::Reserved;
use crate::engine::kernel::tasks::NoTasks;
use crate::engine::patch::error::{SlotError, TextError};
use crate::insn::{AssembleError, BoundaryError, PostUnsupported, Refusal};
use crate::synthetic::SyntheticError;
use crate::trigger::{TriggerError, VariableError};

/// The reason why a probe was not registered, changed or removed. Nothing was changed in that case.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A line of kprobe_events' language is wrong.
    #[error(transparent)]
    Syntax(#[from] ParseError),
    /// Both or neither of symbol and address are given.
    #[error("give either symbol_name or addr: {0}")]
    Place(&'static str),
    /// An address is given by an unknown register.
    #[error(transparent)]
    Register(#[from] UnknownRegister),
    /// A name is no C identifier or too long.
    #[error("`{name}` is no {what} name: a letter or _, then letters, digits and _, at most 63")]
    BadName {
        /// "group", "event" or "argument".
        what: &'static str,
        /// The given text.
        name: String,
    },
    /// Two arguments of one probe have one name.
    #[error("two arguments are called `{0}`")]
    DuplicateArg(String),
    /// The event does not get or lose the trigger.
    #[error(transparent)]
    Trigger(#[from] TriggerError),
    /// A synthetic event.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// A filter does not fit the probe.
    #[error("{error}: it has `{known}`")]
    Filter {
        /// The fault.
        error: FieldError,
        /// The fields of the probe.
        known: String,
    },
    /// A parameter cannot be fetched by its name.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The kernel's types are not known.
    #[error(transparent)]
    Types(#[from] NoTypes),
    /// A field or action that only the other kind of probe has.
    #[error("{0}")]
    Kind(&'static str),
    /// maxactive out of range.
    #[error("maxactive {0}: give 1 to 4096")]
    Maxactive(u32),
    /// Too much private data.
    #[error("data_size {0}: an instance has at most 4096 bytes of its own")]
    DataSize(usize),
    /// The combination of actions is not valid.
    #[error("{0}")]
    Action(&'static str),
    /// A return probe, or an action that leaves the function, is not at a function's entry.
    #[error("{0} is not a function's entry, where a return can be followed; use an offset of 0")]
    NotEntry(Gva),
    /// The kernel will still patch the instruction.
    #[error(
        "the kernel patches the instruction at {0} while it boots: the probe waits until it has"
    )]
    NotFinal(Gva),
    /// Too many arguments.
    #[error("{0} arguments: a probe takes at most 128")]
    TooManyArgs(usize),
    /// The values of a hit are too long.
    #[error(
        "argument {} ends {bytes} bytes into an event's values, which have at most {}", index + 1,
        crate::definition::RECORD_MAX
    )]
    EventTooBig {
        /// The first argument that has no room, from 0.
        index: usize,
        /// Bytes up to its end, by the tracer's count.
        bytes: usize,
    },
    /// The group and event exist.
    #[error("an event `{0}` exists already: choose another event name, or delete it first")]
    NameTaken(String),
    /// The event's probes are of the other kind.
    #[error("the event `{0}` exists with the other kind of probe: choose another name")]
    OtherKind(String),
    /// The event's probes have other fields.
    #[error(
        "argument {number} is other than the event `{event}` has it, which is there ({there}): write the same names \
        and types, or choose another name",
        number = index + 1
    )]
    OtherArgument {
        /// Group and name of the event.
        event: String,
        /// The first argument that differs, from 0; or the number of arguments, if the event has
        /// more.
        index: usize,
        /// The argument as the event has it.
        there: String,
    },
    /// The event has a probe of the same place and arguments.
    #[error(
        "the event `{0}` has this probe already, at the same place and with the same arguments"
    )]
    SameProbe(String),
    /// There is no such probe.
    #[error("there is no probe `{0}`")]
    NoSuchProbe(String),
    /// The symbol is unknown or ambiguous.
    #[error(transparent)]
    Symbol(#[from] LookupError),
    /// No function matches a pattern.
    #[error("no function matches `{0}`")]
    NoMatch(String),
    /// Too many functions match a pattern.
    #[error("{found} functions match `{pattern}`: --max allows {most}")]
    ManyMatches {
        /// The pattern.
        pattern: String,
        /// How many match.
        found: usize,
        /// How many may.
        most: usize,
    },
    /// The probes of a pattern would all have one event.
    #[error(
        "`{0}` is a pattern: leave out the event's name, or put a `*` into it, which stands for the function"
    )]
    PatternName(String),
    /// Offset beyond the function.
    #[error("{symbol}+{offset:#x} is beyond the function, which has {size:#x} bytes")]
    OffsetBeyond {
        /// The function.
        symbol: String,
        /// The offset given.
        offset: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Not kernel text.
    #[error("{0} is not in the kernel's text")]
    NotText(Gva),
    /// Inside an instruction, or not decidable.
    #[error(transparent)]
    Boundary(BoundaryError),
    /// The instruction cannot run displaced.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The kernel treats the instruction specially.
    #[error("the instruction at {at} {why}; probe the instruction before or after it", why = .reserved.why())]
    Reserved {
        /// Its address.
        at: Gva,
        /// The kernel's treatment of it.
        reserved: Reserved,
    },
    /// A post-handler cannot run after it.
    #[error(transparent)]
    Post(#[from] PostUnsupported),
    /// The slot cannot be made.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Hidden memory is used up.
    #[error("hidden memory for displaced instructions is used up ({0} bytes): restart the guest")]
    NoSlots(u64),
    /// The trace instance was removed.
    #[error("the trace instance was removed: `instances` has those that there are")]
    NoInstance,
    /// All probes and histograms together might take too much of the host's memory.
    #[error(
        "no room: this may take {} KiB of memory, and the other probes, histograms and instances {} KiB of the {} MiB for all \
         (--memory-limit): remove some, or lower maxactive, or a histogram's or buffer's size",
        wanted.div_ceil(1024), taken.div_ceil(1024), most >> 20
    )]
    NoMemory {
        /// The most that it may take, in bytes.
        wanted: usize,
        /// The most that the others may take, in bytes.
        taken: usize,
        /// The limit, in bytes.
        most: usize,
    },
    /// The guest's text differs from the bytes that the engine expects.
    #[error(
        "the guest changed its text at {at}: {found:#04x} where {expected:#04x} was expected; nothing was written"
    )]
    Clobbered {
        /// The address.
        at: Gva,
        /// The byte found.
        found: u8,
        /// The byte expected.
        expected: u8,
    },
    /// The kernel cannot be probed at the moment.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The guest's memory could not be read.
    #[error(transparent)]
    Read(#[from] VirtualReadError),
    /// The guest's memory could not be written.
    #[error(transparent)]
    Memory(#[from] OutsideMemory),
    /// The guest's tasks are not known.
    #[error("the guest's tasks are not known: {0}")]
    Tasks(#[from] NoTasks),
    /// The guest's modules are not known.
    #[error("the guest's modules are not known: {0}")]
    Modules(#[from] NoModules),
    /// The guest's memory has no valid list of modules.
    #[error("the guest's modules cannot be read: {0}")]
    BrokenModules(String),
    /// A vCPU did not answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
}

impl From<VariableError> for ProbeError {
    fn from(error: VariableError) -> Self {
        Self::Trigger(error.into())
    }
}

impl From<TextError> for ProbeError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Clobbered { at, found, expected } => Self::Clobbered { at, found, expected },
            TextError::Memory(error) => Self::Memory(error),
        }
    }
}

impl From<SlotError> for ProbeError {
    fn from(error: SlotError) -> Self {
        match error {
            SlotError::Full(bytes) => Self::NoSlots(bytes),
            SlotError::Assemble(error) => Self::Assemble(error),
        }
    }
}

impl ProbeError {
    /// The errno's name, as the kernel's registration functions and kprobe_events return it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Symbol(LookupError::Unknown { .. } | LookupError::NoModule { .. })
            | Self::Tasks(NoTasks::NoSuch(_))
            | Self::NoSuchProbe(_)
            | Self::NoMatch(_)
            | Self::Vcpu(VcpuError::NoSuchVcpu(_)) => "ENOENT",
            Self::Symbol(LookupError::Ambiguous { .. }) => "EADDRNOTAVAIL",
            Self::NameTaken(_)
            | Self::OtherKind(_)
            | Self::OtherArgument { .. }
            | Self::SameProbe(_) => "EEXIST",
            Self::Boundary(BoundaryError::Inside { .. } | BoundaryError::Undecodable { .. }) => {
                "EILSEQ"
            }
            Self::Refused(_) | Self::Reserved { .. } | Self::Post(_) | Self::Assemble(_) => {
                "EOPNOTSUPP"
            }
            Self::TooManyArgs(_)
            | Self::EventTooBig { .. }
            | Self::DataSize(_)
            | Self::ManyMatches { .. } => "E2BIG",
            Self::NoSlots(_) | Self::NoMemory { .. } => "ENOMEM",
            Self::NoInstance => "ENODEV",
            Self::Clobbered { .. } => "ETXTBSY",
            Self::Attach(AttachError::Booting) | Self::NotFinal(_) => "EAGAIN",
            Self::Attach(AttachError::Stopped | AttachError::NeverBegan) | Self::Vcpu(_) => {
                "ESHUTDOWN"
            }
            Self::Attach(AttachError::NoSymbols(_)) => "ENODATA",
            Self::Attach(_) => "ENXIO",
            Self::Read(_) | Self::Memory(_) => "EFAULT",
            Self::Tasks(_) | Self::Types(_) | Self::Modules(_) => "ENODATA",
            Self::BrokenModules(_) => "EFAULT",
            Self::Parameter(
                ParameterError::NoPrototype(_)
                | ParameterError::NoReturnValue(_)
                | ParameterError::NoSuch { .. }
                | ParameterError::ByValue(_)
                | ParameterError::Member { .. },
            ) => "ENOENT",
            Self::Parameter(ParameterError::NoParameters(_)) => "EOPNOTSUPP",
            Self::Syntax(error) => error.errno(),
            Self::Trigger(error) => error.code(),
            Self::Synthetic(error) => error.code(),
            Self::Place(_)
            | Self::Register(_)
            | Self::BadName { .. }
            | Self::DuplicateArg(_)
            | Self::Filter { .. }
            | Self::Parameter(_)
            | Self::Kind(_)
            | Self::Maxactive(_)
            | Self::Action(_)
            | Self::NotEntry(_)
            | Self::PatternName(_)
            | Self::OffsetBeyond { .. }
            | Self::NotText(_)
            | Self::Boundary(BoundaryError::OutsideFunction { .. }) => "EINVAL",
        }
    }
}

impl ProbeError {
    /// The rule by which a probe was refused, in one word: to count refusals by. Stable.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Symbol(LookupError::Ambiguous { .. }) => "ambiguous",
            Self::Symbol(_) | Self::NoMatch(_) => "unknown",
            Self::NameTaken(_)
            | Self::OtherKind(_)
            | Self::OtherArgument { .. }
            | Self::SameProbe(_) => "exists",
            Self::Reserved { .. } => "blacklist",
            Self::Boundary(_) => "boundary",
            Self::Refused(_) | Self::Post(_) | Self::Assemble(_) => "instruction",
            Self::NotText(_) | Self::Read(_) | Self::Memory(_) => "not-text",
            Self::OffsetBeyond { .. } => "offset",
            Self::NotEntry(_) => "not-entry",
            Self::NotFinal(_) => "patched",
            Self::Clobbered { .. } => "clobbered",
            Self::NoSlots(_) | Self::NoMemory { .. } => "no-room",
            Self::Parameter(_) | Self::Types(_) => "argument",
            Self::Attach(_) | Self::Vcpu(_) | Self::Tasks(_) => "guest",
            Self::Modules(_) | Self::BrokenModules(_) => "modules",
            _ => "definition",
        }
    }
}

/// A refused batch; none of it was registered.
#[derive(Debug, thiserror::Error)]
#[error("probe {index} of the batch ({name}): {error}")]
pub struct BatchError {
    /// Index of the refused probe, from 0.
    pub index: usize,
    /// Its event name.
    pub name: String,
    /// The reason.
    pub error: ProbeError,
}

impl BatchError {
    /// As [`ProbeError::code`].
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.error.code()
    }
}

impl From<BatchError> for ProbeError {
    /// The fault of the probe that was refused.
    fn from(batch: BatchError) -> Self {
        batch.error
    }
}
