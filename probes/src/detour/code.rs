//! The code of a detour, in pieces.
//!
//! It uses only instructions that every KVM can run, the software-only one included, and changes
//! nothing that the probed code can see: registers and flags are saved on the kernel's stack (which
//! has no red zone: Linux's arch/x86/Makefile, -mno-red-zone) and restored. It may be interrupted,
//! by other detours too, and go on later on another CPU, but not while it writes a record: those
//! after it would wait. NMIs may come even then: a record is reserved by one locked exchange, and
//! counts from when its first word is there.
//!
//! Values from memory are loaded onto the stack before anything is counted. If one may not be
//! mapped, the detour rings its doorbell instead: all registers are restored, and an int3 makes the
//! VMM handle the hit. Texts are measured then, and copied into the record later, as arrays are.

use exoprobe_guest::Gva;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::loaded::{array_bytes, in_bytes, loads, text_bytes};
use super::pool::{ENTERED, RETURN, SHOWS, kept_word};
use super::ring::{
    self, RECORD_ARGS, RECORD_COMM, RECORD_PID, RECORD_TIME, RING_DATA, RING_HEAD, RING_LIMIT,
    padded,
};
use super::spec::{Block, BlockAction, DetourEnv, DetourError, Mapped, Value};
use crate::definition::{Register, Segment};

/// Bytes of a register on the stack.
const SAVED: i32 = 8;
/// Bytes of a word in memory.
pub(super) const WORD: u16 = 8;
/// Offsets of the saved words, after the loaded ones.
const FLAGS: i32 = 0;
const DX: i32 = 1;
const CX: i32 = 2;
const AX: i32 = 3;
/// Registers that are saved if the code touches more than a counter.
const SCRATCH: [AsmRegister64; 3] = [rax, rcx, rdx];
/// Addresses of one page have these bits in common.
const PAGE_BITS: i32 = -4096;

/// An address as a sign-extended 32-bit operand.
pub(super) fn imm32(address: Gva) -> Result<i32, DetourError> {
    i32::try_from(address.0.cast_signed()).map_err(|_| DetourError::Far(address))
}

/// The 64-bit word at an absolute address of the last 2 GiB.
pub(super) fn word_at(address: Gva) -> Result<AsmMemoryOperand, DetourError> {
    imm32(address)?;
    Ok(qword_ptr(address.0))
}

/// A per-CPU variable, whose offset is sign-extended too.
fn per_cpu(offset: Gva) -> Result<u64, DetourError> {
    imm32(offset)?;
    Ok(offset.0)
}

/// Offset of a field of a task.
fn in_task(offset: u32) -> i32 {
    i32::try_from(offset).expect("within a task")
}

/// Reads the time-stamp counter into RAX; uses RDX.
pub(super) fn read_tsc(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}

/// Stack layout of a running detour.
#[derive(Clone, Copy, Default)]
pub(super) struct DetourFrame {
    /// [`SCRATCH`] is saved.
    pub(super) scratch: bool,
    /// Words loaded from memory.
    pub(super) loads: i32,
    /// Above them is a copy of the record's address: set if it has texts or arrays.
    pub(super) has_bytes: bool,
    /// Above them is a copy of the call's return address: set if several probes follow the call, as
    /// the first overwrites the original with its stub.
    pub(super) keeps_return: bool,
    /// The address of an instance lies above the registers, and above that the address from which a
    /// call has returned.
    pub(super) is_return: bool,
}

impl DetourFrame {
    /// Words below the saved registers.
    fn words(self) -> i32 {
        self.loads + i32::from(self.has_bytes) + i32::from(self.keeps_return)
    }

    /// Operand of a word loaded from memory.
    pub(super) fn loaded(index: i32) -> AsmMemoryOperand {
        qword_ptr(rsp + index * SAVED)
    }

    /// Operand of the record's address.
    pub(super) fn record(self) -> AsmMemoryOperand {
        qword_ptr(rsp + self.loads * SAVED)
    }

    /// Operand of a saved register.
    fn saved(self, which: i32) -> AsmMemoryOperand {
        qword_ptr(rsp + (self.words() + which) * SAVED)
    }

    /// Operand of the return address that is kept.
    pub(super) fn kept_return(self) -> AsmMemoryOperand {
        qword_ptr(rsp + (self.loads + i32::from(self.has_bytes)) * SAVED)
    }

    /// Offset of the word above the registers: the return address at a function's entry, or an
    /// instance.
    pub(super) fn above(self) -> i32 {
        (self.words() + AX + 1) * SAVED
    }

    /// Offset of the probed code's stack.
    fn stack(self) -> i32 {
        self.above() + i32::from(self.is_return) * SAVED
    }
}

pub(super) struct Code {
    pub(super) a: CodeAssembler,
    /// The probed address.
    at: Gva,
    pub(super) frame: DetourFrame,
    pub(super) doorbell: CodeLabel,
    /// The displaced instructions, after all other code.
    pub(super) displaced: CodeLabel,
    /// The doorbell's int3, once there is one.
    pub(super) int3: Option<CodeLabel>,
    /// Number of words loaded so far, and number of those recorded by the blocks so far.
    pub(super) loaded: i32,
    pub(super) recorded: i32,
}

impl Code {
    pub(super) fn new(mut a: CodeAssembler, at: Gva, frame: DetourFrame) -> Self {
        let (doorbell, displaced) = (a.create_label(), a.create_label());
        Self { a, at, frame, doorbell, displaced, int3: None, loaded: 0, recorded: 0 }
    }

    pub(super) fn enter(&mut self) -> Result<(), IcedError> {
        if self.frame.scratch {
            for register in SCRATCH {
                self.a.push(register)?;
            }
        }
        self.a.pushfq()?;
        if self.frame.words() > 0 {
            self.a.lea(rsp, ptr(rsp - self.frame.words() * SAVED))?;
        }
        Ok(())
    }

    pub(super) fn leave(&mut self) -> Result<(), IcedError> {
        if self.frame.words() > 0 {
            self.a.lea(rsp, ptr(rsp + self.frame.words() * SAVED))?;
        }
        self.a.popfq()?;
        if self.frame.scratch {
            for register in SCRATCH.into_iter().rev() {
                self.a.pop(register)?;
            }
        }
        Ok(())
    }

    /// The doorbell. In a guest from a snapshot an int3 may be left without an engine; it is
    /// skipped, and the code after it continues without a hit.
    pub(super) fn ring(&mut self) -> Result<(), IcedError> {
        let (mut doorbell, mut int3) = (self.doorbell, self.a.create_label());
        self.a.set_label(&mut doorbell)?;
        self.leave()?;
        self.a.set_label(&mut int3)?;
        self.a.int3()?;
        self.int3 = Some(int3);
        if !self.frame.is_return {
            return self.a.jmp(self.displaced);
        }
        // Jumps to the instance's target; the instance stays in use.
        self.a.xchg(ptr(rsp), rcx)?;
        self.a.mov(rcx, qword_ptr(rcx + RETURN))?;
        self.a.xchg(ptr(rsp), rcx)?;
        self.a.ret()
    }

    pub(super) fn count(&mut self, counter: Gva) -> Result<(), DetourError> {
        Ok(self.a.lock().inc(word_at(counter)?)?)
    }

    /// Reached if there is no room, or the filter refuses the hit: counts that and continues at
    /// `done`.
    pub(super) fn count_instead(
        &mut self,
        counter: Gva,
        mut from: CodeLabel,
        done: CodeLabel,
    ) -> Result<(), DetourError> {
        self.a.set_label(&mut from)?;
        self.count(counter)?;
        Ok(self.a.jmp(done)?)
    }

    /// Evaluates the filter of a block, if it has one.
    pub(super) fn filter(
        &mut self,
        block: &Block,
        env: &DetourEnv,
        labels: Labels,
    ) -> Result<(), DetourError> {
        match &block.task {
            BlockAction::Record { values, filter: Some(filter) } => {
                self.go_if((filter, false), values, env, labels.filtered)
            }
            _ => Ok(()),
        }
    }

    /// Loads all values from memory, and checks whether the present call can be followed; rings the
    /// doorbell otherwise. Nothing is counted before. Masks interrupts if records follow, until the
    /// flags are restored.
    pub(super) fn prove(&mut self, blocks: &[Block], env: &DetourEnv) -> Result<(), DetourError> {
        if blocks.iter().any(|block| block.task.is_follow()) {
            self.is_first_to_follow(&env.hidden)?;
        }
        if env.in_kernel && blocks.iter().any(|block| block.task.is_guarded()) {
            self.allow_user_memory()?;
        }
        for block in blocks {
            let values = block.task.values();
            for value in values.iter().filter(|value| value.is_loaded()) {
                match value {
                    Value::Text { offset, base, user } => {
                        self.place_of((base, *offset), env)?;
                        self.is_text_there(*user, env)?;
                        self.measure(text_bytes(values))?;
                    }
                    Value::Array { offset, base, user, bytes } => {
                        self.place_of((base, *offset), env)?;
                        self.find_array(*bytes, *user, env)?;
                    }
                    _ => {
                        self.evaluate(value, env)?;
                        self.a.mov(DetourFrame::loaded(self.loaded), rax)?;
                    }
                }
                self.loaded += loads(std::slice::from_ref(value));
            }
        }
        if env.in_kernel && blocks.iter().any(|block| block.task.is_record()) {
            self.a.cli()?;
        }
        Ok(())
    }

    /// Loads the sum of a value and an offset into RAX.
    fn place_of(
        &mut self,
        (base, offset): (&Value, i64),
        env: &DetourEnv,
    ) -> Result<(), DetourError> {
        self.evaluate(base, env)?;
        if offset != 0 {
            self.a.mov(rcx, offset)?;
            self.a.add(rax, rcx)?;
        }
        Ok(())
    }

    /// Loads a value into RAX; uses RCX and RDX.
    fn evaluate(&mut self, value: &Value, env: &DetourEnv) -> Result<(), DetourError> {
        match value {
            Value::Stack(n) => {
                let a = &mut self.a;
                a.lea(rax, ptr(rsp + (self.frame.stack() + i32::from(*n) * SAVED)))?;
                // An address in the page in which the registers were just saved is mapped.
                a.lea(rdx, ptr(rax + (SAVED - 1)))?;
                a.xor(rdx, rsp)?;
                a.test(rdx, PAGE_BITS)?;
                a.jne(self.doorbell)?;
            }
            Value::Fixed(at) => self.a.mov(rax, at.0)?,
            Value::Deref { offset, base, user: true } => {
                self.place_of((base, *offset), env)?;
                return Ok(self.load_of_user()?);
            }
            Value::Deref { offset, base, user: false } => {
                self.place_of((base, *offset), env)?;
                self.is_mapped(&env.mapped, WORD)?;
            }
            Value::Text { .. } | Value::Array { .. } => unreachable!("its bytes are no word"),
            Value::Register(_)
            | Value::Segment(_)
            | Value::StackPointer
            | Value::ReturnAddress
            | Value::Entered
            | Value::Kept(_)
            | Value::CurrentTask
            | Value::Constant(_) => {
                let from = self.value(value, env)?;
                return Ok(self.a.mov(rax, from)?);
            }
        }
        Ok(self.a.mov(rax, qword_ptr(rax))?)
    }

    /// Rings the doorbell unless so many bytes at RAX, at least a word, are in one of the ranges,
    /// or in the page in which the registers were just saved: those of system calls are often
    /// there.
    pub(super) fn is_mapped(&mut self, ranges: &[Mapped], bytes: u16) -> Result<(), IcedError> {
        let a = &mut self.a;
        let mut found = a.create_label();
        a.mov(rcx, rsp)?;
        a.and(rcx, PAGE_BITS)?;
        a.mov(rdx, rax)?;
        a.sub(rdx, rcx)?;
        a.cmp(rdx, !PAGE_BITS - (i32::from(bytes) - 1))?;
        a.jbe(found)?;
        for range in ranges.iter().filter(|range| range.len >= bytes.into()) {
            a.mov(rcx, range.start.0)?;
            a.mov(rdx, rax)?;
            a.sub(rdx, rcx)?;
            a.mov(rcx, range.len - u64::from(bytes))?;
            a.cmp(rdx, rcx)?;
            a.jbe(found)?;
        }
        a.jmp(self.doorbell)?;
        // The load comes next.
        a.set_label(&mut found)
    }

    /// The record of a block. RCX is the ring, then the record; RAX and RDX are free.
    pub(super) fn record(
        &mut self,
        block: &Block,
        env: &DetourEnv,
        mut labels: Labels,
    ) -> Result<(), DetourError> {
        let BlockAction::Record { values, .. } = &block.task else { return Ok(()) };
        self.reserve(values, env, labels)?;
        let a = &mut self.a;
        read_tsc(a)?;
        a.mov(qword_ptr(rcx + RECORD_TIME), rax)?;
        if let Some(current) = env.current {
            a.mov(rax, qword_ptr(per_cpu(current.task)?).gs())?;
            a.mov(edx, dword_ptr(rax + in_task(current.pid)))?;
            a.mov(dword_ptr(rcx + RECORD_PID), edx)?;
            a.mov(rdx, qword_ptr(rax + in_task(current.comm)))?;
            a.mov(qword_ptr(rcx + RECORD_COMM), rdx)?;
            a.mov(rdx, qword_ptr(rax + (in_task(current.comm) + SAVED)))?;
            a.mov(qword_ptr(rcx + (RECORD_COMM + SAVED)), rdx)?;
        }
        for (at, index) in (RECORD_ARGS..).step_by(8).zip(0..values.len()) {
            let from = self.value_of(values, index, env)?;
            self.a.mov(qword_ptr(rcx + at), from)?;
        }
        self.copy_bytes(values)?;
        self.recorded += loads(values);
        let a = &mut self.a;
        a.mov(dword_ptr(rcx), ring::header(block.number, values.len()).cast_signed())?;
        // The next code, another block or the end, begins with an instruction.
        Ok(a.set_label(&mut labels.done)?)
    }

    /// Reserves a record in the CPU's ring; RCX becomes its address.
    fn reserve(
        &mut self,
        values: &[Value],
        env: &DetourEnv,
        labels: Labels,
    ) -> Result<(), DetourError> {
        let rings = imm32(env.rings)?;
        let a = &mut self.a;
        let mut again = a.create_label();
        match env.cpu {
            Some(offset) => {
                let stride = i32::try_from(env.stride).expect("less than hidden memory");
                a.imul_3(ecx, dword_ptr(per_cpu(offset)?).gs(), stride)?;
                a.add(rcx, rings)?;
            }
            None => a.mov(rcx, i64::from(rings))?,
        }
        a.mov(rax, qword_ptr(rcx + RING_HEAD))?;
        a.set_label(&mut again)?;
        a.lea(rdx, ptr(rax + (ring::record_bytes(values.len()) + array_bytes(values))))?;
        let in_bytes = in_bytes(self.recorded, values);
        for (_, at) in in_bytes.filter(|(index, _)| values[*index].is_text()) {
            a.add(rdx, DetourFrame::loaded(at + 1))?;
        }
        a.cmp(rdx, qword_ptr(rcx + RING_LIMIT))?;
        a.ja(labels.full)?;
        a.lock().cmpxchg(qword_ptr(rcx + RING_HEAD), rdx)?;
        a.jne(again)?;
        a.and(eax, i32::try_from(env.mask).expect("less than hidden memory"))?;
        Ok(a.lea(rcx, ptr(rcx + rax + RING_DATA))?)
    }

    /// A register that holds one of the values of a record: its own, or RAX.
    pub(super) fn value_of(
        &mut self,
        values: &[Value],
        index: usize,
        env: &DetourEnv,
    ) -> Result<AsmRegister64, DetourError> {
        let value = &values[index];
        if !value.is_loaded() {
            return self.value(value, env);
        }
        if let Some(bytes) = value.array() {
            self.a.mov(rax, padded(bytes))?;
            return Ok(rax);
        }
        // In the order in which they were loaded; the length of a text is after its address.
        let before = self.recorded + loads(&values[..index]);
        self.a.mov(rax, DetourFrame::loaded(before + i32::from(value.is_text())))?;
        Ok(rax)
    }

    /// Loads the number of the current task into RAX.
    pub(super) fn pid(&mut self, env: &DetourEnv) -> Result<AsmRegister64, DetourError> {
        let current = env.current.ok_or(DetourError::NoTask)?;
        self.a.mov(rax, qword_ptr(per_cpu(current.task)?).gs())?;
        self.a.mov(eax, dword_ptr(rax + in_task(current.pid)))?;
        Ok(rax)
    }

    /// Loads the number of the CPU into RAX.
    pub(super) fn cpu(&mut self, env: &DetourEnv) -> Result<AsmRegister64, DetourError> {
        match env.cpu {
            Some(offset) => self.a.mov(eax, dword_ptr(per_cpu(offset)?).gs())?,
            None => self.a.xor(eax, eax)?,
        }
        Ok(rax)
    }

    /// A register that holds a value that was not loaded: its own, or RAX.
    fn value(&mut self, value: &Value, env: &DetourEnv) -> Result<AsmRegister64, DetourError> {
        let (a, frame) = (&mut self.a, self.frame);
        match value {
            Value::StackPointer | Value::Register(Register::Sp) => {
                a.lea(rax, ptr(rsp + frame.stack()))?;
            }
            Value::Register(Register::Ip) => a.mov(rax, i64::from(imm32(self.at)?))?,
            Value::Register(Register::Flags) => a.mov(rax, frame.saved(FLAGS))?,
            Value::Register(Register::Dx) => a.mov(rax, frame.saved(DX))?,
            Value::Register(Register::Cx) => a.mov(rax, frame.saved(CX))?,
            Value::Register(Register::Ax) => a.mov(rax, frame.saved(AX))?,
            Value::Register(Register::Bx) => return Ok(rbx),
            Value::Register(Register::Si) => return Ok(rsi),
            Value::Register(Register::Di) => return Ok(rdi),
            Value::Register(Register::Bp) => return Ok(rbp),
            Value::Register(Register::R8) => return Ok(r8),
            Value::Register(Register::R9) => return Ok(r9),
            Value::Register(Register::R10) => return Ok(r10),
            Value::Register(Register::R11) => return Ok(r11),
            Value::Register(Register::R12) => return Ok(r12),
            Value::Register(Register::R13) => return Ok(r13),
            Value::Register(Register::R14) => return Ok(r14),
            Value::Register(Register::R15) => return Ok(r15),
            Value::Segment(Segment::Cs) => a.mov(eax, cs)?,
            Value::Segment(Segment::Ss) => a.mov(eax, ss)?,
            Value::Stack(_)
            | Value::Fixed(_)
            | Value::Deref { .. }
            | Value::Text { .. }
            | Value::Array { .. } => unreachable!("it is loaded"),
            Value::Constant(number) => a.mov(rax, *number)?,
            Value::CurrentTask => {
                let current = env.current.ok_or(DetourError::NoTask)?;
                a.mov(rax, qword_ptr(per_cpu(current.task)?).gs())?;
            }
            Value::ReturnAddress => self.instance_field(SHOWS)?,
            Value::Entered => self.instance_field(ENTERED)?,
            Value::Kept(index) => self.instance_field(kept_word(*index))?,
        }
        Ok(rax)
    }

    /// Loads a field of the call's instance into RAX.
    fn instance_field(&mut self, field: i32) -> Result<(), IcedError> {
        self.a.mov(rax, qword_ptr(rsp + self.frame.above()))?;
        self.a.mov(rax, qword_ptr(rax + field))
    }
}

/// Branches out of the main path.
#[derive(Clone, Copy)]
pub(super) struct Labels {
    /// Taken if there is no room, or no instance.
    pub(super) full: CodeLabel,
    /// Taken if the filter refuses the hit.
    pub(super) filtered: CodeLabel,
    /// The code continues here.
    pub(super) done: CodeLabel,
}
