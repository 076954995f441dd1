//! Specification of a detour.

use exoprobe_guest::Gva;
use iced_x86::IcedError;

use super::pool::Pool;
use super::ring::InBytes;
use crate::definition::{Field, Filter, Register, Segment};
use crate::insn::AssembleError;

/// Most words of one detour's frame for values that are loaded from memory. A text has two, and an
/// array one.
pub const LOADS_MAX: usize = 16;

/// Bytes of a counter.
pub const COUNTER: u64 = 8;

/// The reason why there is no detour.
#[derive(Debug, thiserror::Error)]
pub enum DetourError {
    /// The assembler refused.
    #[error("cannot assemble a detour: {0}")]
    Assemble(#[from] IcedError),
    /// A displaced instruction has no code there.
    #[error(transparent)]
    Instruction(#[from] AssembleError),
    /// An address is not in the last 2 GiB, so 32 bits do not hold it.
    #[error("{0} is not in the last 2 GiB of addresses")]
    Far(Gva),
    /// A filter or a value is of the current task.
    #[error("the address of the current task is not known")]
    NoTask,
    /// A filter compares text.
    #[error("a filter compares text")]
    Text,
    /// A filter compares an address that is not known.
    #[error("the address of the probe is not known")]
    NoAddress,
    /// The kernel's stack has no room for more.
    #[error(
        "arguments that read memory need more than {LOADS_MAX} words, of which a text needs two"
    )]
    TooManyLoads,
    /// A record with texts or arrays has too many values, or too long ones.
    #[error("a record has no room for its arrays and texts beside so many arguments")]
    NoRoom,
    /// A displaced instruction has the bytes by which guarded loads are known.
    #[error("a displaced instruction looks like a guarded load")]
    LooksGuarded,
}

/// A value that a detour writes into a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A register as before the probed instruction.
    Register(Register),
    /// A segment register's selector.
    Segment(Segment),
    /// The stack pointer.
    StackPointer,
    /// The Nth word from the stack pointer on.
    Stack(u16),
    /// The word at an address that is always mapped.
    Fixed(Gva),
    /// The word at another value plus `offset`.
    Deref {
        /// Bytes added to the inner value.
        offset: i64,
        /// Source of the address.
        base: Box<Value>,
        /// It is user memory.
        user: bool,
    },
    /// The text at another value plus `offset`, up to its NUL, of the kernel or of a user. Its word
    /// in a record is the number of bytes that it has after the words, and 1 more if it could not
    /// be read.
    Text {
        /// Bytes added to the inner value.
        offset: i64,
        /// Source of the address.
        base: Box<Value>,
        /// An address of the kernel's is refused.
        user: bool,
    },
    /// So many bytes at another value plus `offset`. Its word in a record is as a text's.
    Array {
        /// Bytes added to the inner value.
        offset: i64,
        /// Source of the address.
        base: Box<Value>,
        /// It is user memory.
        user: bool,
        /// Its length, at least 1.
        bytes: u16,
    },
    /// The return address of the call; in code for returns only.
    ReturnAddress,
    /// The guest's time-stamp counter at the call's beginning; in code for returns only.
    Entered,
    /// The word of the call's entry at this place of its instance; in code for returns only.
    Kept(u16),
    /// This number.
    Constant(u64),
    /// The address of the current task.
    CurrentTask,
}

impl Value {
    /// Returns true if it comes from memory that may not be mapped.
    pub(super) fn is_loaded(&self) -> bool {
        self.words() > 0
    }

    /// Words of a detour's frame that it is loaded into.
    pub(super) fn words(&self) -> usize {
        match self {
            Self::Stack(_) | Self::Fixed(_) | Self::Deref { .. } | Self::Array { .. } => 1,
            Self::Text { .. } => 2,
            _ => 0,
        }
    }

    /// Returns true if it is text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text { .. })
    }

    /// Bytes of an array.
    pub(super) fn array(&self) -> Option<u16> {
        match self {
            Self::Array { bytes, .. } => Some(*bytes),
            _ => None,
        }
    }

    /// Returns true if it is a text or an array: its bytes come after the words of a record.
    pub(super) fn is_in_bytes(&self) -> bool {
        self.is_text() || self.array().is_some()
    }

    /// Returns true if it needs a guarded load ([`exoprobe_guest::guarded_load`]).
    pub(super) fn is_guarded(&self) -> bool {
        match self {
            Self::Text { .. } | Self::Deref { user: true, .. } | Self::Array { user: true, .. } => {
                true
            }
            Self::Deref { base, .. } | Self::Array { base, .. } => base.is_guarded(),
            _ => false,
        }
    }
}

/// Work of a detour for one probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlockAction {
    /// Adds one to the counter.
    Count,
    /// Writes a record, or increments the counter if there is no room. Hits that the filter refuses
    /// go into a second counter after that.
    Record {
        /// Values of the record.
        values: Vec<Value>,
        /// The filter over these values, by index.
        filter: Option<Filter<Field>>,
    },
    /// Makes the call return through an instance of this pool; increments the pool's own counter if
    /// none is free.
    Follow {
        /// The pool.
        pool: Pool,
        /// The values that the instance keeps, as many as the pool says.
        kept: Vec<Value>,
    },
}

impl BlockAction {
    /// Writes a record of every hit.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn record(values: Vec<Value>) -> Self {
        Self::Record { values, filter: None }
    }

    /// Returns true for [`Self::Record`].
    #[must_use]
    pub fn is_record(&self) -> bool {
        matches!(self, Self::Record { .. })
    }

    /// Returns true for [`Self::Follow`].
    #[must_use]
    pub fn is_follow(&self) -> bool {
        matches!(self, Self::Follow { .. })
    }

    /// Returns true if its code must be in the window where guarded loads are.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.values().iter().any(Value::is_guarded)
    }

    /// Returns true if its filter compares a value that is loaded from memory.
    pub(super) fn filter_reads_memory(&self) -> bool {
        let Self::Record { values, filter: Some(filter) } = self else { return false };
        filter.asks_for(&|field| match field {
            Field::Arg { index, .. } => values.get(index).is_none_or(Value::is_loaded),
            _ => false,
        })
    }

    /// The texts and arrays among the values of its record.
    #[must_use]
    pub fn in_bytes(&self) -> Vec<InBytes> {
        let values = self.values().iter().enumerate().filter(|(_, value)| value.is_in_bytes());
        values.map(|(index, value)| InBytes { index, array: value.array() }).collect()
    }

    /// The values that it loads: those of its records, or those that an instance keeps.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        match self {
            Self::Record { values, .. } | Self::Follow { kept: values, .. } => values,
            Self::Count => &[],
        }
    }
}

/// One probe's part of a detour.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its number in records.
    pub number: u16,
    /// Two 64-bit counters in hidden memory.
    pub counter: Gva,
    /// Its action.
    pub task: BlockAction,
}

impl Block {
    /// The second counter.
    #[must_use]
    pub fn filtered(&self) -> Gva {
        self.counter.wrapping_add(COUNTER)
    }
}

/// The location of a kernel's current task, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// Per-CPU offset of the task's address.
    pub task: Gva,
    /// In the task: its number, 32 bits.
    pub pid: u32,
    /// In the task: its name, 16 bytes.
    pub comm: u32,
}

/// Memory that stays mapped while the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its first address.
    pub start: Gva,
    /// Bytes, 8 or more.
    pub len: u64,
}

impl Mapped {
    /// Returns true if the range contains the word at `at`.
    #[must_use]
    pub fn has_word(&self, at: Gva) -> bool {
        at.0.wrapping_sub(self.start.0) <= self.len.saturating_sub(8)
    }
}

/// The addresses that a detour uses in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetourEnv {
    /// The first CPU's ring.
    pub rings: Gva,
    /// Bytes from one CPU's ring to the next one's.
    pub stride: u32,
    /// Bytes of a ring's data less one.
    pub mask: u32,
    /// Per-CPU offset of the CPU's number (32 bits); `None` on a kernel for one CPU.
    pub cpu: Option<Gva>,
    /// Location of the current task, if known.
    pub current: Option<Current>,
    /// Memory that can be read without a fault.
    pub mapped: Vec<Mapped>,
    /// Hidden memory: a return address in it is a trampoline's.
    pub hidden: Mapped,
    /// Faults of guarded loads are passed over ([`exoprobe_guest::guarded_load`]).
    pub guards_loads: bool,
    /// The code runs in a kernel: it can mask interrupts, and may have to set AC to read user
    /// memory (Intel SDM vol. 3, 4.6).
    pub in_kernel: bool,
}
