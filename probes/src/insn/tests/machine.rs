//! Runs machine code with a chosen register file, and captures the one after it.
//!
//! All of it lies in one mapping below 2 GiB: there a 32-bit absolute address reaches everything,
//! so that neither entry nor capture needs a register, and return addresses fit `push imm32` as
//! kernel addresses do.

use std::ptr;

use iced_x86::code_asm::*;

use super::signals::{Catching, Fault, take_fault};

/// Offsets in the mapping.
const INPUT: u64 = 0x000;
const OUTPUT: u64 = 0x400;
const HOST_RSP: u64 = 0x800;
const EXIT: u64 = 0x808;
const ENTRY: u64 = 0x810;
const MXCSR: u64 = 0x818;
const TRAMPOLINE: u64 = 0x1000;
const STUBS: u64 = 0x2000;
const HOME: u64 = 0x3800;
const SLOTS: u64 = 0x5000;
const MEMORY: u64 = 0x8000;
pub(crate) const MEMORY_LEN: usize = 0x4000;
/// Behind the memory: a page that cannot be accessed, and one that can only be read.
const NO_ACCESS: u64 = 0xc000;
const READ_ONLY: u64 = 0xd000;
const PAGE_LEN: usize = 0x1000;
const SIZE: usize = 0xe000;
/// The exit stub of a run that a fault ended.
const FAULTED: u32 = 0;

/// Registers by their number in [`State::gpr`].
pub(crate) const RCX: usize = 1;
pub(crate) const RDX: usize = 2;
pub(crate) const RBX: usize = 3;
pub(crate) const RSP: usize = 4;
pub(crate) const RBP: usize = 5;
pub(crate) const RSI: usize = 6;
pub(crate) const RDI: usize = 7;

/// The state that user code can see; what `fxsave64` stores holds the x87, MMX and SSE registers.
#[repr(C, align(64))]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) fx: [u8; 512],
    pub(crate) gpr: [u64; 16],
    pub(crate) rflags: u64,
}

const GPR_OFFSET: u64 = 512;
const RFLAGS_OFFSET: u64 = GPR_OFFSET + 16 * 8;

impl State {
    pub(crate) fn new() -> Self {
        let mut state = Self { fx: [0; 512], gpr: [0; 16], rflags: 0x202 };
        state.fx[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
        state.fx[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
        state
    }

    /// MXCSR, MMX and XMM registers: without the addresses of the last x87 instruction, which
    /// differ in a slot.
    fn vectors(&self) -> (&[u8], &[u8]) {
        (&self.fx[24..28], &self.fx[32..416])
    }
}

/// All exceptions masked.
const DEFAULT_MXCSR: u32 = 0x1f80;

/// Result of a run.
pub(crate) struct Outcome {
    pub(crate) state: State,
    /// Number of the exit stub that ended it.
    pub(crate) exit: u32,
    pub(crate) memory: Vec<u8>,
    /// The exception that ended it. The state is that of its handler.
    pub(super) fault: Option<Fault>,
}

impl Outcome {
    /// Differences from `other`, for a failing test's message.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let mut text = String::new();
        for (number, (a, b)) in self.state.gpr.iter().zip(&other.state.gpr).enumerate() {
            if a != b {
                text += &format!("r{number}: {a:#x} / {b:#x}\n");
            }
        }
        if self.state.rflags != other.state.rflags {
            text += &format!("rflags: {:#x} / {:#x}\n", self.state.rflags, other.state.rflags);
        }
        if self.state.vectors() != other.state.vectors() {
            text += "vector registers differ\n";
        }
        if self.exit != other.exit {
            text += &format!("exit: {} / {}\n", self.exit, other.exit);
        }
        let kind = |fault: &Option<Fault>| fault.clone().map(|f| (f.vector, f.error, f.address));
        if kind(&self.fault) != kind(&other.fault) {
            text += &format!("fault: {:x?} / {:x?}\n", self.fault, other.fault);
        }
        if self.memory != other.memory {
            let at = (0..MEMORY_LEN).find(|i| self.memory[*i] != other.memory[*i]);
            text += &format!("memory differs, first at offset {at:?}\n");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// A mapping with trampoline, code and data.
pub(crate) struct Machine {
    base: *mut u8,
    _catching: Catching,
}

impl Machine {
    pub(crate) fn new() -> Self {
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        let start = base as u64;
        let catching = Catching::start(start..start + SIZE as u64, start + STUBS);
        let mut machine = Self { base: base.cast(), _catching: catching };
        // A branch that reads its target there leads somewhere.
        let target = machine.stub(2).to_le_bytes();
        machine.write(machine.read_only(), &target.repeat(PAGE_LEN / target.len()));
        machine.protect(NO_ACCESS, libc::PROT_NONE);
        machine.protect(READ_ONLY, libc::PROT_READ);
        machine.write(machine.at(MXCSR), &DEFAULT_MXCSR.to_le_bytes());
        let (enter, capture) = machine.trampoline();
        machine.write(machine.at(TRAMPOLINE), &enter);
        machine.write(machine.at(TRAMPOLINE) + 0x800, &capture);
        for exit in 0..4 {
            let stub = machine.stub(exit);
            let code = machine.assemble(stub, |a, m| {
                a.mov(dword_ptr(m.at(EXIT)), exit)?;
                a.jmp(m.at(TRAMPOLINE) + 0x800)
            });
            machine.write(stub, &code);
        }
        machine
    }

    fn protect(&mut self, offset: u64, protection: i32) {
        let page = self.at(offset) as *mut libc::c_void;
        // SAFETY: the page is in the mapping, and no Rust reference points into it.
        let done = unsafe { libc::mprotect(page, PAGE_LEN, protection) };
        assert_eq!(done, 0, "mprotect: {}", std::io::Error::last_os_error());
    }

    fn at(&self, offset: u64) -> u64 {
        self.base as u64 + offset
    }

    /// Where the instruction under test has its place.
    pub(crate) fn home(&self) -> u64 {
        self.at(HOME)
    }

    /// Where its slot is; `number` is 0 to 63.
    pub(crate) fn slot(&self, number: u64) -> u64 {
        self.at(SLOTS) + number * super::super::SLOT_SIZE as u64
    }

    /// Code that ends a run with `exit` (0 to 3) and changes nothing on the way; 0 is for faults.
    pub(crate) fn stub(&self, exit: u32) -> u64 {
        self.at(STUBS) + u64::from(exit) * 32
    }

    /// First byte of the [`MEMORY_LEN`] bytes that a run may read and write. Stack pointers go
    /// into its upper half.
    pub(crate) fn memory(&self) -> u64 {
        self.at(MEMORY)
    }

    /// First byte of a page after the memory that cannot be accessed.
    pub(crate) fn no_access(&self) -> u64 {
        self.at(NO_ACCESS)
    }

    /// First byte of a page after that one, which can be read only.
    pub(crate) fn read_only(&self) -> u64 {
        self.at(READ_ONLY)
    }

    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        let offset = usize::try_from(address - self.base as u64).expect("inside the mapping");
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: in bounds of the mapping as just checked.
        let to = unsafe { self.base.add(offset) };
        // SAFETY: as checked, and `&mut self` makes the access exclusive.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let offset = usize::try_from(address - self.base as u64).expect("inside the mapping");
        assert!(offset + len <= SIZE);
        // SAFETY: in bounds of the mapping as just checked.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: as checked; mmap initialised it with zeroes, and nothing writes meanwhile.
        unsafe { std::slice::from_raw_parts(from, len) }.to_vec()
    }

    /// Writes a `jmp rel32`.
    pub(crate) fn write_jmp(&mut self, address: u64, to: u64) {
        let distance = to.wrapping_sub(address + 5).cast_signed();
        let mut jmp = vec![0xe9];
        jmp.extend(i32::try_from(distance).expect("both are in the mapping").to_le_bytes());
        self.write(address, &jmp);
    }

    /// Runs from `entry` with `input` and `memory`, until a stub or a fault ends the run.
    pub(crate) fn run(&mut self, entry: u64, input: &State, memory: &[u8]) -> Outcome {
        assert_eq!(memory.len(), MEMORY_LEN);
        self.write(self.memory(), memory);
        self.write(self.at(INPUT), &input.fx);
        for (number, value) in input.gpr.iter().enumerate() {
            self.write(self.at(INPUT + GPR_OFFSET) + number as u64 * 8, &value.to_le_bytes());
        }
        self.write(self.at(INPUT + RFLAGS_OFFSET), &input.rflags.to_le_bytes());
        self.write(self.at(EXIT), &u32::MAX.to_le_bytes());
        self.write(self.at(ENTRY), &entry.to_le_bytes());
        // SAFETY: the mapping is executable, and this is where `new` put the entry code, which
        // follows the C calling convention.
        let enter: extern "C" fn() = unsafe { std::mem::transmute(self.at(TRAMPOLINE)) };
        enter();
        self.outcome()
    }

    fn outcome(&self) -> Outcome {
        let word = |address| u64::from_le_bytes(self.read(address, 8).try_into().expect("8 bytes"));
        let mut state = State::new();
        state.fx.copy_from_slice(&self.read(self.at(OUTPUT), 512));
        for number in 0..16 {
            state.gpr[number] = word(self.at(OUTPUT + GPR_OFFSET) + number as u64 * 8);
        }
        state.rflags = word(self.at(OUTPUT + RFLAGS_OFFSET));
        let exit = u32::from_le_bytes(self.read(self.at(EXIT), 4).try_into().expect("4 bytes"));
        let fault = take_fault();
        assert_eq!(exit == FAULTED, fault.is_some(), "exit {exit}: {fault:x?}");
        Outcome { state, exit, memory: self.read(self.memory(), MEMORY_LEN), fault }
    }

    fn assemble(
        &self,
        ip: u64,
        code: impl FnOnce(&mut CodeAssembler, &Self) -> Result<(), iced_x86::IcedError>,
    ) -> Vec<u8> {
        let mut assembler = CodeAssembler::new(64).expect("64-bit is supported");
        code(&mut assembler, self).expect("valid operands");
        assembler.assemble(ip).expect("in reach")
    }

    /// The code that enters a run, and the code that captures its end.
    fn trampoline(&self) -> (Vec<u8>, Vec<u8>) {
        // RSP comes last on the way in, and is saved before the stack is used on the way out.
        let gprs = [rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15, rsp];
        let offset = |register: AsmRegister64| {
            GPR_OFFSET + iced_x86::Register::from(register).number() as u64 * 8
        };
        let saved = [rbx, rbp, r12, r13, r14, r15];
        let enter = self.assemble(self.at(TRAMPOLINE), |a, m| {
            for register in saved {
                a.push(register)?;
            }
            a.mov(qword_ptr(m.at(HOST_RSP)), rsp)?;
            a.fxrstor64(ptr(m.at(INPUT)))?;
            a.push(qword_ptr(m.at(INPUT + RFLAGS_OFFSET)))?;
            a.popfq()?;
            for register in gprs {
                a.mov(register, qword_ptr(m.at(INPUT) + offset(register)))?;
            }
            a.jmp(qword_ptr(m.at(ENTRY)))
        });
        let capture = self.assemble(self.at(TRAMPOLINE) + 0x800, |a, m| {
            for register in gprs {
                a.mov(qword_ptr(m.at(OUTPUT) + offset(register)), register)?;
            }
            a.mov(rsp, qword_ptr(m.at(HOST_RSP)))?;
            a.pushfq()?;
            a.pop(qword_ptr(m.at(OUTPUT + RFLAGS_OFFSET)))?;
            a.fxsave64(ptr(m.at(OUTPUT)))?;
            a.fninit()?;
            a.ldmxcsr(dword_ptr(m.at(MXCSR)))?;
            a.cld()?;
            for register in saved.into_iter().rev() {
                a.pop(register)?;
            }
            a.ret()
        });
        (enter, capture)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and nothing refers into it any more.
        unsafe { libc::munmap(self.base.cast(), SIZE) };
    }
}
