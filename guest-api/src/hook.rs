//! The engine's part in a guest's exits.

use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm_sys_util::errno::Error;

use crate::addr::Gva;
use crate::time::GuestTime;

/// The answer to a breakpoint exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakpointAction {
    /// The breakpoint is the hook's and is handled: continue with the present registers.
    Resume,
    /// The breakpoint is the hook's and is not complete: the machine is paused here, with the
    /// present registers, until it is resumed; [`ExitHook::release`] completes it then. See
    /// `Vm::held` of exoprobe-vmm.
    Hold,
    /// The breakpoint is the guest's own: inject its #BP, with the present registers but for RIP,
    /// which is that of the exit.
    PassToGuest,
}

/// A source of a vCPU's segment and control registers.
pub trait SregsSource {
    /// Reads them.
    ///
    /// # Errors
    /// KVM's.
    fn sregs(&self) -> Result<kvm_sregs, Error>;
}

/// A closure that reads them: `|| vcpu.get_sregs()` over kvm-ioctls.
impl<F: Fn() -> Result<kvm_sregs, Error>> SregsSource for F {
    fn sregs(&self) -> Result<kvm_sregs, Error> {
        self()
    }
}

/// A vCPU that is out of the guest, as a hook sees it on the vCPU's own thread.
pub struct HitContext<'a> {
    /// Index of the vCPU.
    pub vcpu: u8,
    /// General registers. At a breakpoint, RIP is the breakpoint's own address. Changes go to the
    /// guest.
    pub regs: &'a mut kvm_regs,
    /// Guest time of the exit.
    pub time: GuestTime,
    /// Set by a hook that emulated an STI which set RFLAGS.IF: the vCPU takes no interrupt before
    /// the end of its next instruction (Intel SDM vol. 2, STI). Read only with
    /// [`BreakpointAction::Resume`]; it has no meaning without RFLAGS.IF.
    pub sti_shadow: bool,
    source: &'a dyn SregsSource,
}

impl<'a> HitContext<'a> {
    /// The context of a breakpoint at `regs.rip`.
    #[must_use]
    pub fn new(
        vcpu: u8,
        regs: &'a mut kvm_regs,
        time: GuestTime,
        source: &'a dyn SregsSource,
    ) -> Self {
        Self { vcpu, regs, time, sti_shadow: false, source }
    }

    /// Returns true if the vCPU must take no interrupt before the end of its next instruction: a
    /// hook has emulated an STI, and RFLAGS.IF is set.
    #[must_use]
    pub fn has_sti_shadow(&self) -> bool {
        const RFLAGS_IF: u64 = 1 << 9;
        self.sti_shadow && self.regs.rflags & RFLAGS_IF != 0
    }

    /// RIP: at a breakpoint, its address.
    #[must_use]
    pub fn rip(&self) -> Gva {
        Gva(self.regs.rip)
    }

    /// The source of [`Self::sregs`], which outlives this borrow.
    #[must_use]
    pub fn sregs_source(&self) -> &'a dyn SregsSource {
        self.source
    }

    /// Segment and control registers, read now by an ioctl; only callers that need them pay for it.
    ///
    /// # Errors
    /// KVM's.
    pub fn sregs(&self) -> Result<kvm_sregs, Error> {
        self.source.sregs()
    }
}

/// The moment at which the guest's kernel runs at its own addresses.
#[derive(Clone, Copy, Debug)]
pub struct KernelEntry {
    /// Address in the kernel's text at which the vCPU is.
    pub rip: Gva,
    /// Its segment and control registers.
    pub sregs: kvm_sregs,
}

/// Called on vCPU threads, several at once. An implementation must not block on anything that
/// waits for a vCPU.
pub trait ExitHook: Send + Sync {
    /// The guest hit an int3 in kernel or user mode.
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction;

    /// Completes the hit of a vCPU that was held at a breakpoint ([`BreakpointAction::Hold`]) and
    /// is resumed. Called once for each hold, on the vCPU's thread, before it enters the guest
    /// again; not called if the machine is stopped or booted again meanwhile. The registers are
    /// those of the hold, the time is that of the breakpoint. `Vm::sync_vcpus` of exoprobe-vmm does
    /// not wait for it.
    fn release(&self, context: &mut HitContext<'_>);

    /// The guest is booted again. All vCPUs are out of it and in their power-on state (IA32_LSTAR
    /// is 0). Its memory, hidden memory included, is still that of the previous boot; it is void,
    /// and replaced once this returns. So an implementation must first finish all work in progress,
    /// which could otherwise write to the new guest. Not called on a vCPU's thread: vCPUs answer.
    /// Run control is locked meanwhile: the implementation must not wait for a thread that may be
    /// waiting for run control (`Vm::pause`, `Vm::snapshot` and so on).
    fn reset(&self);

    /// The guest's kernel has begun: it runs on page tables of its own at its virtual addresses,
    /// has called no C function there, and no other vCPU runs yet. Called once per boot if
    /// `Vm::reports_kernel_entry` of exoprobe-vmm is true; for a guest restored from a snapshot
    /// that was taken soon after, at a later moment of its boot. An implementation that cannot act
    /// at once (see above) returns `false`: the vCPU then runs its commands, and the hook is called
    /// again before the vCPU enters the guest.
    fn kernel_entered(&self, entry: &KernelEntry) -> bool;
}
