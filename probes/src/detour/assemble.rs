//! What a detour is to do, and the whole of its code.

use exoprobe_guest::Gva;
use iced_x86::code_asm::{CodeAssembler, CodeLabel};
use iced_x86::{BlockEncoderOptions, IcedError};

use super::Region;
use super::code::{Code, Frame};
use super::pool::{Pool, STUB_LEN};
use crate::definition::{Field, Filter, Register, Segment};
use crate::insn::{self, AssembleError};

/// Most values of one detour that are read from memory.
pub const LOADS_MAX: usize = 16;
/// Bytes of a counter.
pub const COUNTER: u64 = 8;
/// push imm32
const PUSH: u8 = 0x68;

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
    #[error("the kernel does not tell which task is current")]
    NoTask,
    /// A filter looks at text.
    #[error("text is read by the VMM")]
    Text,
    /// The kernel's stack has no room for more.
    #[error("more than {LOADS_MAX} arguments read memory")]
    TooManyLoads,
}

/// What a detour writes into a record.
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
        /// What gives the address.
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

/// What a detour does for one probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Adds one to the counter.
    Count,
    /// Writes a record, or adds one to the counter when there is no room. Hits that the filter does not let
    /// through go into a second counter behind that.
    Record {
        /// What is written.
        values: Vec<Value>,
        /// Of these values by their places.
        filter: Option<Filter<Field>>,
    },
    /// Has the call return by way of an instance of this pool; adds one to the pool's own counter when none is
    /// free.
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
    /// What it does.
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
    /// What names the current task, where that is known.
    pub current: Option<Current>,
    /// Where memory may be read without a fault.
    pub mapped: Vec<Mapped>,
    /// Hidden memory, where a return address is a trampoline's.
    pub hidden: Mapped,
}

/// A detour's code for its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Offset of where it is entered.
    pub entry: usize,
    /// Offset of the int3 that has the VMM deal with a hit: nothing has been counted then, and all registers
    /// but RIP are as they were when the detour was entered.
    pub doorbell: Option<usize>,
    /// Offset of the displaced instructions, which go on after a doorbell.
    pub displaced: usize,
}

/// A branch out of the straight way.
#[derive(Clone, Copy)]
pub(super) struct Labels {
    /// Comes when there is no room, or no instance.
    pub(super) full: CodeLabel,
    /// Comes when the hit is not wanted.
    pub(super) filtered: CodeLabel,
    /// Goes on behind.
    pub(super) done: CodeLabel,
}

impl Detour {
    /// Assembles the code for `at`: what happens when something is full, the blocks, the instructions of
    /// `region`, and a jmp to behind it.
    ///
    /// # Errors
    /// [`DetourError`].
    pub fn assemble(
        region: &Region,
        blocks: &[Block],
        around: &Surroundings,
        at: Gva,
    ) -> Result<Self, DetourError> {
        let scratch = blocks.iter().any(|block| block.task != Task::Count);
        let mut plan = Plan::new(region.at(), blocks, Frame { scratch, ..Frame::default() })?;
        let code = &mut plan.code;
        code.prove(blocks, around)?;
        for (block, labels) in blocks.iter().zip(&plan.labels) {
            match &block.task {
                Task::Count => code.count(block.counter)?,
                Task::Record { .. } => code.record(block, around, *labels)?,
                Task::Follow(pool) => code.follow(*pool, *labels)?,
            }
        }
        code.leave()?;
        let mut detour = plan.finish(at)?;
        for insn in region.insns() {
            insn.copy_to(at, &mut detour.bytes)?;
        }
        if let Some(next) = region.next() {
            insn::jump_to(at, &mut detour.bytes, next)?;
        }
        Ok(detour)
    }

    /// Assembles the code for `at` that the calls of a pool return to: one block, which gives the instance back,
    /// and behind it the stubs of all instances, [`STUB_LEN`] bytes each. [`Self::doorbell`] has the registers
    /// as at the return, but for the instance's address, which is on the stack besides.
    ///
    /// # Errors
    /// [`DetourError`].
    pub fn assemble_returns(
        block: &Block,
        pool: Pool,
        around: &Surroundings,
        at: Gva,
    ) -> Result<Self, DetourError> {
        let blocks = std::slice::from_ref(block);
        // No register value is of the probed address there.
        let frame = Frame { scratch: true, is_return: true, ..Frame::default() };
        let mut plan = Plan::new(Gva(0), blocks, frame)?;
        let (code, mut labels) = (&mut plan.code, plan.labels[0]);
        code.is_of_instance()?;
        code.skip_when_off(pool, labels.done)?;
        code.prove(blocks, around)?;
        match &block.task {
            Task::Record { .. } => code.record(block, around, labels)?,
            Task::Count | Task::Follow(_) => {
                code.count(block.counter)?;
                code.a.set_label(&mut labels.done)?;
            }
        }
        code.give_back(pool)?;
        code.leave()?;
        code.a.ret()?;
        let mut detour = plan.finish(at)?;
        let entry = at.wrapping_add(detour.entry as u64);
        for index in 0..pool.capacity {
            let begun = detour.bytes.len();
            let instance = pool.instance(index);
            detour.bytes.push(PUSH);
            detour.bytes.extend(super::code::imm32(instance)?.to_le_bytes());
            insn::jump_to(at, &mut detour.bytes, entry)?;
            debug_assert_eq!(detour.bytes.len() - begun, STUB_LEN);
        }
        Ok(detour)
    }
}

/// Code on its way.
struct Plan {
    code: Code,
    labels: Vec<Labels>,
    entry: CodeLabel,
}

impl Plan {
    /// Begins with what is out of the straight way, and the registers saved.
    fn new(probed: Gva, blocks: &[Block], frame: Frame) -> Result<Self, DetourError> {
        let loads = blocks.iter().flat_map(|block| block.task.values());
        let loads = loads.filter(|value| value.is_loaded()).count();
        if loads > LOADS_MAX {
            return Err(DetourError::TooManyLoads);
        }
        let loads = i32::try_from(loads).expect("at most 16");
        let mut a = CodeAssembler::new(64)?;
        let label = |a: &mut CodeAssembler| Labels {
            full: a.create_label(),
            filtered: a.create_label(),
            done: a.create_label(),
        };
        let labels: Vec<Labels> = blocks.iter().map(|_| label(&mut a)).collect();
        let mut entry = a.create_label();
        let mut code = Code::new(a, probed, Frame { loads, ..frame });
        for (block, labels) in blocks.iter().zip(&labels) {
            match &block.task {
                Task::Count => {}
                Task::Record { filter, .. } => {
                    code.count_instead(block.counter, labels.full, labels.done)?;
                    if filter.is_some() {
                        code.count_instead(block.filtered(), labels.filtered, labels.done)?;
                    }
                }
                Task::Follow(pool) => {
                    code.count_instead(pool.missed(), labels.full, labels.done)?;
                }
            }
        }
        let may_ring = frame.is_return
            || blocks.iter().any(|b| matches!(b.task, Task::Follow(_)))
            || loads > 0;
        if may_ring {
            code.ring()?;
        }
        code.a.set_label(&mut entry)?;
        code.enter()?;
        Ok(Self { code, labels, entry })
    }

    fn finish(mut self, at: Gva) -> Result<Detour, DetourError> {
        let mut displaced = self.code.displaced;
        self.code.a.set_label(&mut displaced)?;
        // The label's place: what follows is not the assembler's.
        self.code.a.zero_bytes()?;
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = self.code.a.assemble_options(at.0, options)?;
        let offset = |label: &CodeLabel| -> Result<usize, IcedError> {
            let ip = assembled.label_ip(label)?;
            Ok(usize::try_from(ip.wrapping_sub(at.0)).unwrap_or_default())
        };
        let entry = offset(&self.entry)?;
        let doorbell = self.code.int3.as_ref().map(offset).transpose()?;
        let bytes = assembled.inner.code_buffer;
        let displaced = bytes.len();
        Ok(Detour { bytes, entry, doorbell, displaced })
    }
}
