//! Back-traces of the guest's stacks, with true addresses where probes have changed some.

use exoprobe_guest::{Gva, KvmError, Registers, SregsSource, VcpuError, kvm_sregs};
use exoprobe_introspect::unwind::{Place, Stack, UserPlace, Walk, prologue, user_frames};
use exoprobe_introspect::{SymbolOffset, SymbolTable};
use serde::Serialize;

use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::hit::stack::ProbedStack;
use crate::engine::kernel::memory::HitMemory;
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::view::GuestText;
use crate::error::ProbeError;

/// Of the code segment's selector: the privilege level, 3 in user mode.
const USER_RPL: u16 = 3;
/// Longest instruction, in bytes.
const INSN_MAX: u64 = 15;

/// A place of a back-trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Frame {
    /// Its address: the next instruction of the first frame, the return address of those above.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "0xffffffff81000000"))]
    pub addr: Gva,
    /// The kernel's function that it is in; null outside all symbols, and in user mode.
    #[cfg_attr(feature = "schema", schema(example = "vfs_read"))]
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Bytes of the function; 0 where there is none.
    pub size: u64,
    /// It is of user mode.
    pub user: bool,
}

fn as_text<S: serde::Serializer>(addr: &Gva, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(addr)
}

/// Those of a vCPU that stands still.
struct Known<'a>(&'a kvm_sregs);

impl SregsSource for Known<'_> {
    fn sregs(&self) -> Result<kvm_sregs, KvmError> {
        Ok(*self.0)
    }
}

impl Engine {
    /// The back-trace of a vCPU, taken while all stand still: the kernel's part by its ORC tables,
    /// or by frame pointers where it has none, then the user's by frame pointers.
    ///
    /// # Errors
    /// [`ProbeError::Vcpu`] where there is no such vCPU, [`ProbeError::Attach`].
    pub fn stack(&self, vcpu: u8) -> Result<Vec<Frame>, ProbeError> {
        if vcpu >= self.guest.vcpus() {
            return Err(VcpuError::NoSuchVcpu(vcpu).into());
        }
        let (control, kernel) = self.look()?;
        kernel.learn_orc();
        let mut found = Vec::new();
        self.guest.with_vcpus_still(&mut |all| {
            if let Some(registers) = all.get(usize::from(vcpu)) {
                found = self.stack_of(&control, &kernel, registers, false);
            }
        })?;
        Ok(found)
    }

    /// The back-trace of a vCPU with these registers, or of a task that was `switched_out` with
    /// them.
    pub(crate) fn stack_of(
        &self,
        control: &Control,
        kernel: &Kernel,
        registers: &Registers,
        switched_out: bool,
    ) -> Vec<Frame> {
        let Registers { regs, sregs } = registers;
        let table = self.hits.table.load();
        let memory = HitMemory { view: &kernel.view, sregs: &Known(sregs) };
        let stack = ProbedStack { calls: &self.hits.calls, table: &table, memory };
        if sregs.cs.selector & USER_RPL == USER_RPL {
            return user_frames(&stack, UserPlace::from(regs)).map(user_frame).collect();
        }
        let ip = stack.stands_for(Gva(regs.rip));
        let mut from = Place::at(ip, regs);
        if let Some(offset) = without_frame(control.text(), kernel, ip) {
            from = from.without_frame(offset);
        }
        // RIP is a return address then, but for a new task, which begins at a function.
        let begins = kernel.symbols.function_at(ip).is_some_and(|function| function.start == ip);
        if switched_out && !begins {
            from = from.returned();
        }
        let mut walk = Walk::new(kernel.orc().map(|tables| &**tables), &stack, from);
        let original = |at: Gva| control.optimizer.of_detour(at).unwrap_or(at);
        let mut frames = vec![kernel_frame(&kernel.symbols, original(ip))];
        frames.extend(walk.by_ref().map(|at| caller_frame(&kernel.symbols, original(at))));
        if let Some(user) = walk.user() {
            frames.extend(user_frames(&stack, user).map(user_frame));
        }
        frames
    }
}

/// How far above the stack pointer the return address is, where the function at `ip` has no frame
/// there.
fn without_frame(text: GuestText<'_>, kernel: &Kernel, ip: Gva) -> Option<u64> {
    let function = kernel.symbols.function_at(ip)?;
    let end = ip.wrapping_add(INSN_MAX).min(function.end);
    let code = text.original(&kernel.memory(), function.start, end).ok()?;
    prologue::return_offset(&code, usize::try_from(ip.0.wrapping_sub(function.start.0)).ok()?)
}

fn kernel_frame(symbols: &SymbolTable, addr: Gva) -> Frame {
    let found = symbols.resolve(addr);
    Frame {
        addr,
        symbol_name: found.as_ref().map(SymbolOffset::qualified_name),
        offset: found.map_or(0, |found| found.offset),
        size: found.map_or(0, |found| found.size),
        user: false,
    }
}

/// As [`kernel_frame`], of an address that a call returns to. After a call of a function that never
/// returns, that is behind the caller's end, and often another function's first: the call itself
/// names the caller, as in the kernel's own back-traces (`%pB`,
/// Documentation/core-api/printk-formats.rst).
fn caller_frame(symbols: &SymbolTable, addr: Gva) -> Frame {
    let frame = kernel_frame(symbols, addr);
    if frame.symbol_name.is_some() && frame.offset > 0 {
        return frame;
    }
    let call = kernel_frame(symbols, Gva(addr.0.wrapping_sub(1)));
    match call.symbol_name {
        Some(_) => Frame { addr, offset: call.offset + 1, ..call },
        None => frame,
    }
}

fn user_frame(addr: Gva) -> Frame {
    Frame { addr, symbol_name: None, offset: 0, size: 0, user: true }
}
