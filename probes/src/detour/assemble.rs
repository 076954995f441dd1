//! The code of a detour.
//!
//! It uses only instructions that every KVM can run, the software-only one included, and changes nothing that
//! the probed code can see: registers and flags are saved on the kernel's stack (which has no red zone: Linux's
//! arch/x86/Makefile, -mno-red-zone) and restored. It may be interrupted anywhere, by other detours too, and go
//! on later on another CPU: a record is reserved by one locked exchange, and counts from when its first word is
//! there.

use exoprobe_vmm::Gva;
use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, IcedError};

use super::Region;
use super::ring::{self, RECORD_ARGS, RECORD_TASK, RECORD_TIME, RING_DATA, RING_HEAD, RING_LIMIT};
use crate::definition::Register;
use crate::insn::{self, AssembleError};

/// Bytes of a register on the stack.
const SAVED: i32 = 8;

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
}

/// What a detour writes into a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A register, as it is when the probed instruction is about to run.
    Register(Register),
    /// The stack pointer.
    StackPointer,
}

/// What a detour does for one probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Adds one to the counter.
    Count,
    /// Writes a record, or adds one to the counter when there is no room.
    Record(Vec<Value>),
}

/// One probe's part of a detour.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its number in records.
    pub number: u16,
    /// A 64-bit counter in hidden memory.
    pub counter: Gva,
    /// What it does.
    pub task: Task,
}

/// Where a detour finds things in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// The first CPU's ring.
    pub rings: Gva,
    /// Bytes from one CPU's ring to the next one's.
    pub stride: u32,
    /// Bytes of a ring's data less one.
    pub mask: u32,
    /// Per-CPU offset of the CPU's number (32 bits); `None` on a kernel for one CPU.
    pub cpu: Option<u32>,
    /// Per-CPU offset of the current task's address.
    pub current: Option<u32>,
}

/// A detour's code for its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Offset of where it is entered.
    pub entry: usize,
}

impl Detour {
    /// Assembles the code for `at`: what happens when a ring is full, the blocks, the instructions of `region`,
    /// and a jmp to behind it.
    ///
    /// # Errors
    /// [`DetourError`].
    pub fn assemble(
        region: &Region,
        blocks: &[Block],
        around: &Surroundings,
        at: Gva,
    ) -> Result<Self, DetourError> {
        let records = blocks.iter().any(|block| matches!(block.task, Task::Record(_)));
        let mut code = Code { a: CodeAssembler::new(64)?, at: region.at() };
        let labels: Vec<Labels> = blocks.iter().map(|_| Labels::new(&mut code.a)).collect();
        for (block, labels) in blocks.iter().zip(&labels) {
            if matches!(block.task, Task::Record(_)) {
                code.when_full(block.counter, *labels)?;
            }
        }
        let mut entry = code.a.create_label();
        code.a.set_label(&mut entry)?;
        code.save(records)?;
        for (block, labels) in blocks.iter().zip(labels) {
            match &block.task {
                Task::Count => code.count(block.counter)?,
                Task::Record(values) => code.record(block, values, around, labels)?,
            }
        }
        code.restore(records)?;
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = code.a.assemble_options(at.0, options)?;
        let entry = assembled.label_ip(&entry)?.wrapping_sub(at.0);
        let mut bytes = assembled.inner.code_buffer;
        for insn in region.insns() {
            insn.copy_to(at, &mut bytes)?;
        }
        if let Some(next) = region.next() {
            insn::jump_to(at, &mut bytes, next)?;
        }
        Ok(Self { bytes, entry: usize::try_from(entry).unwrap_or_default() })
    }
}

/// Where the code of a record branches to.
#[derive(Clone, Copy)]
struct Labels {
    full: CodeLabel,
    done: CodeLabel,
}

impl Labels {
    fn new(a: &mut CodeAssembler) -> Self {
        Self { full: a.create_label(), done: a.create_label() }
    }
}

/// An address as the sign-extended 32 bits that an operand holds of it.
fn imm32(address: Gva) -> Result<i32, DetourError> {
    i32::try_from(address.0.cast_signed()).map_err(|_| DetourError::Far(address))
}

/// The 64-bit word at an absolute address of the last 2 GiB.
fn word_at(address: Gva) -> Result<AsmMemoryOperand, DetourError> {
    imm32(address)?;
    Ok(qword_ptr(address.0))
}

struct Code {
    a: CodeAssembler,
    /// The probed address.
    at: Gva,
}

impl Code {
    fn save(&mut self, records: bool) -> Result<(), IcedError> {
        if records {
            for register in [rax, rcx, rdx] {
                self.a.push(register)?;
            }
        }
        self.a.pushfq()
    }

    fn restore(&mut self, records: bool) -> Result<(), IcedError> {
        self.a.popfq()?;
        if records {
            for register in [rdx, rcx, rax] {
                self.a.pop(register)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, counter: Gva) -> Result<(), DetourError> {
        Ok(self.a.lock().inc(word_at(counter)?)?)
    }

    /// Comes from a record that has no room, and goes on behind it.
    fn when_full(&mut self, counter: Gva, labels: Labels) -> Result<(), DetourError> {
        let mut full = labels.full;
        self.a.set_label(&mut full)?;
        self.a.lock().inc(word_at(counter)?)?;
        Ok(self.a.jmp(labels.done)?)
    }

    /// RCX is the ring, then the record; RAX and RDX are at hand.
    fn record(
        &mut self,
        block: &Block,
        values: &[Value],
        around: &Surroundings,
        mut labels: Labels,
    ) -> Result<(), DetourError> {
        let header = ring::header(block.number, values.len());
        let rings = imm32(around.rings)?;
        let a = &mut self.a;
        let mut again = a.create_label();
        match around.cpu {
            Some(offset) => {
                let stride = i32::try_from(around.stride).expect("less than hidden memory");
                a.imul_3(ecx, dword_ptr(u64::from(offset)).gs(), stride)?;
                a.add(rcx, rings)?;
            }
            None => a.mov(rcx, i64::from(rings))?,
        }
        a.mov(rax, qword_ptr(rcx + RING_HEAD))?;
        a.set_label(&mut again)?;
        a.lea(rdx, ptr(rax + ring::record_bytes(values.len())))?;
        a.cmp(rdx, qword_ptr(rcx + RING_LIMIT))?;
        a.ja(labels.full)?;
        a.lock().cmpxchg(qword_ptr(rcx + RING_HEAD), rdx)?;
        a.jne(again)?;
        a.and(eax, i32::try_from(around.mask).expect("less than hidden memory"))?;
        a.lea(rcx, ptr(rcx + rax + RING_DATA))?;
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
        a.mov(qword_ptr(rcx + RECORD_TIME), rax)?;
        if let Some(offset) = around.current {
            a.mov(rax, qword_ptr(u64::from(offset)).gs())?;
            a.mov(qword_ptr(rcx + RECORD_TASK), rax)?;
        }
        for (index, value) in (0..).zip(values) {
            self.store(RECORD_ARGS + index * SAVED, *value)?;
        }
        let a = &mut self.a;
        a.mov(dword_ptr(rcx), header.cast_signed())?;
        // What follows, another block or the end, begins with an instruction.
        Ok(a.set_label(&mut labels.done)?)
    }

    /// Stores a value at `offset` of the record.
    fn store(&mut self, offset: i32, value: Value) -> Result<(), DetourError> {
        let to = qword_ptr(rcx + offset);
        let on_stack = |index: i32| qword_ptr(rsp + index * SAVED);
        let a = &mut self.a;
        let from = match value {
            Value::StackPointer | Value::Register(Register::Sp) => {
                a.lea(rax, ptr(rsp + 4 * SAVED))?;
                rax
            }
            Value::Register(Register::Ip) => return Ok(a.mov(to, imm32(self.at)?)?),
            Value::Register(Register::Flags) => load(a, on_stack(0))?,
            Value::Register(Register::Dx) => load(a, on_stack(1))?,
            Value::Register(Register::Cx) => load(a, on_stack(2))?,
            Value::Register(Register::Ax) => load(a, on_stack(3))?,
            Value::Register(Register::Bx) => rbx,
            Value::Register(Register::Si) => rsi,
            Value::Register(Register::Di) => rdi,
            Value::Register(Register::Bp) => rbp,
            Value::Register(Register::R8) => r8,
            Value::Register(Register::R9) => r9,
            Value::Register(Register::R10) => r10,
            Value::Register(Register::R11) => r11,
            Value::Register(Register::R12) => r12,
            Value::Register(Register::R13) => r13,
            Value::Register(Register::R14) => r14,
            Value::Register(Register::R15) => r15,
        };
        Ok(a.mov(to, from)?)
    }
}

fn load(a: &mut CodeAssembler, from: AsmMemoryOperand) -> Result<AsmRegister64, IcedError> {
    a.mov(rax, from)?;
    Ok(rax)
}
