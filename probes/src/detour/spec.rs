//! Specification of a detour.

use exoprobe_guest::Gva;
use iced_x86::IcedError;

use super::pool::Pool;
use crate::definition::{Field, Filter, Register, Segment};
use crate::insn::AssembleError;

/// Most values of one detour that are read from memory.
pub const LOADS_MAX: usize = 16;

/// Bytes of a counter.
pub const COUNTER: u64 = 8;

/// Why there is no detour.
#[derive(Debug, thiserror::Error)]
pub enum DetourError {
    /// The assembler refused.
    #[error("cannot assemble a detour: {0}")]
    Assemble(#[from] IcedError),
    /// A displaced instruction has no code there.
    #[error(transparent)]
    Instruction(#[from] AssembleError),
    /// It is not in the last 2 GiB of addresses, where 32 bits hold an address.
    #[error("{0} is not in the last 2 GiB of addresses")]
    Far(Gva),
    /// A filter looks at the current task.
    #[error("the kernel does not show which task is current")]
    NoTask,
    /// A filter looks at text.
    #[error("text is read by the VMM")]
    Text,
    /// The kernel's stack has no room for more.
    #[error("more than {LOADS_MAX} arguments read memory")]
    TooManyLoads,
}

/// A value that a detour writes into a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A register, as it is when the probed instruction is about to run.
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
    },
    /// Where the call returns to; in code for returns only.
    ReturnAddress,
    /// The guest's time-stamp counter when the call began; in code for returns only.
    Entered,
    /// This number.
    Constant(u64),
}

impl Value {
    /// Whether it comes from memory that may not be there.
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self, Self::Stack(_) | Self::Fixed(_) | Self::Deref { .. })
    }
}

/// Work of a detour for one probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Adds one to the counter.
    Count,
    /// Writes a record, or adds one to the counter when there is no room. Hits that the filter does
    /// not let through go into a second counter after that.
    Record {
        /// Values of the record.
        values: Vec<Value>,
        /// Of these values by their places.
        filter: Option<Filter<Field>>,
    },
    /// Has the call return by way of an instance of this pool; adds one to the pool's own counter
    /// when none is free.
    Follow(Pool),
}

impl Task {
    /// Writes a record of every hit.
    #[must_use]
    pub fn record(values: Vec<Value>) -> Self {
        Self::Record { values, filter: None }
    }

    pub(super) fn values(&self) -> &[Value] {
        match self {
            Self::Record { values, .. } => values,
            Self::Count | Self::Follow(_) => &[],
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
    pub task: Task,
}

impl Block {
    /// The second counter.
    #[must_use]
    pub fn filtered(&self) -> Gva {
        self.counter.wrapping_add(COUNTER)
    }
}

/// Where a kernel has what names the current task, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// Per-CPU offset of the task's address.
    pub task: Gva,
    /// In the task: its number, 32 bits.
    pub pid: u32,
    /// In the task: its name, 16 bytes.
    pub comm: u32,
}

/// Memory that stays mapped for as long as the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its first address.
    pub start: Gva,
    /// Bytes, 8 or more.
    pub len: u64,
}

impl Mapped {
    /// Whether the word at `at` is in it.
    #[must_use]
    pub fn has_word(&self, at: Gva) -> bool {
        at.0.wrapping_sub(self.start.0) <= self.len.saturating_sub(8)
    }
}

/// Where a detour finds things in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// The first CPU's ring.
    pub rings: Gva,
    /// Bytes from one CPU's ring to the next one's.
    pub stride: u32,
    /// Bytes of a ring's data less one.
    pub mask: u32,
    /// Per-CPU offset of the CPU's number (32 bits); `None` on a kernel for one CPU.
    pub cpu: Option<Gva>,
    /// Location of the current task, where known.
    pub current: Option<Current>,
    /// Where memory may be read without a fault.
    pub mapped: Vec<Mapped>,
    /// Hidden memory, where a return address is a trampoline's.
    pub hidden: Mapped,
}
