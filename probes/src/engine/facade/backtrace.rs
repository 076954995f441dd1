//! Back-traces of the guest's stacks, with true addresses where probes have changed some.

use exoprobe_guest::{Gva, KvmError, Registers, SregsSource, VcpuError, kvm_sregs};
use exoprobe_introspect::unwind::{Place, Stack, UserPlace, Walk, prologue, user_frames};
use exoprobe_introspect::{SymbolOffset, SymbolTable};
use serde::Serialize;

use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::hit::stack::ProbedStack;
use crate::engine::hit::table::Table;
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
pub(crate) struct Known<'a>(pub(crate) &'a kvm_sregs);

impl SregsSource for Known<'_> {
    fn sregs(&self) -> Result<kvm_sregs, KvmError> {
        Ok(*self.0)
    }
}

/// The addresses of a back-trace.
pub(crate) struct Addresses {
    /// The next instruction, then return addresses; none in user mode.
    pub(crate) kernel: Vec<Gva>,
    /// Where user mode goes on, if the walk came there.
    pub(crate) user: Option<UserPlace>,
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
        let table = self.hits.table.load();
        let known = Known(&registers.sregs);
        let stack = self.probed_stack(&table, kernel, &known);
        let Addresses { kernel: found, user } =
            self.addresses_of(control, kernel, registers, switched_out);
        let symbols = &kernel.symbols;
        let mut frames = Vec::new();
        if let Some((ip, callers)) = found.split_first() {
            frames.push(kernel_frame(symbols, *ip));
            frames.extend(callers.iter().map(|at| caller_frame(symbols, *at)));
        }
        if let Some(user) = user {
            frames.extend(user_frames(&stack, user).map(user_frame));
        }
        frames
    }

    /// The addresses of the same back-trace.
    pub(crate) fn addresses_of(
        &self,
        control: &Control,
        kernel: &Kernel,
        registers: &Registers,
        switched_out: bool,
    ) -> Addresses {
        let Registers { regs, sregs } = registers;
        if is_user(sregs) {
            return Addresses { kernel: Vec::new(), user: Some(UserPlace::from(regs)) };
        }
        let table = self.hits.table.load();
        let known = Known(sregs);
        let stack = self.probed_stack(&table, kernel, &known);
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
        let addresses = std::iter::once(ip).chain(walk.by_ref()).map(original).collect();
        Addresses { kernel: addresses, user: walk.user() }
    }

    /// RIP, or, in code of a probe's, the place of the guest's that it stands for.
    pub(crate) fn ip_of(&self, control: &Control, kernel: &Kernel, registers: &Registers) -> Gva {
        let ip = Gva(registers.regs.rip);
        if is_user(&registers.sregs) {
            return ip;
        }
        let table = self.hits.table.load();
        let known = Known(&registers.sregs);
        let ip = self.probed_stack(&table, kernel, &known).stands_for(ip);
        control.optimizer.of_detour(ip).unwrap_or(ip)
    }

    pub(crate) fn probed_stack<'a>(
        &'a self,
        table: &'a Table,
        kernel: &'a Kernel,
        sregs: &'a Known<'a>,
    ) -> ProbedStack<'a> {
        let memory = HitMemory { view: &kernel.view, sregs, tasks: None };
        ProbedStack { calls: &self.hits.calls, table, memory }
    }
}

fn is_user(sregs: &kvm_sregs) -> bool {
    sregs.cs.selector & USER_RPL == USER_RPL
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
