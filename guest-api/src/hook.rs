//! The engine's part in a guest's exits.

use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm_sys_util::errno::Error;

use crate::addr::Gva;
use crate::time::GuestTime;

/// The answer to a breakpoint exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakpointAction {
    /// It was ours and is dealt with: go on at the registers as they are now.
    Resume,
    /// It was ours and is not complete: the machine is paused here, at the registers as they are
    /// now, until it is resumed; [`ExitHook::release`] completes it then. See `Vm::held` of
    /// exoprobe-vmm.
    Hold,
    /// It is the guest's own: give it its #BP.
    PassToGuest,
}

/// Has the segment and control registers of a vCPU.
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
    /// Set by a hook that carried out an STI which set RFLAGS.IF: the vCPU takes no interrupt
    /// before the end of its next instruction (Intel SDM vol. 2, STI). Looked at with
    /// [`BreakpointAction::Resume`] alone; without RFLAGS.IF it means nothing.
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

    /// Returns true if the vCPU is to take no interrupt before the end of its next instruction: a
    /// hook has carried out an STI, and RFLAGS.IF is set.
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

    /// Where [`Self::sregs`] come from, for longer than this borrow.
    #[must_use]
    pub fn sregs_source(&self) -> &'a dyn SregsSource {
        self.source
    }

    /// Segment and control registers, read now: an ioctl, which only those pay who ask.
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
    /// Where in the kernel's text the vCPU is.
    pub rip: Gva,
    /// Its segment and control registers.
    pub sregs: kvm_sregs,
}

/// Called on vCPU threads, several at once. An implementation must not block on anything that
/// waits for a vCPU.
pub trait ExitHook: Send + Sync {
    /// The guest hit an int3 in kernel or user mode.
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction;

    /// A vCPU that was held at a breakpoint ([`BreakpointAction::Hold`]) is resumed: completes the
    /// hit. Called once for each hold, on the vCPU's thread, before it enters the guest again; not
    /// when the machine is stopped or booted anew meanwhile. The registers are those of the hold,
    /// the time is that of the breakpoint. `Vm::sync_vcpus` of exoprobe-vmm does not wait for it.
    fn release(&self, context: &mut HitContext<'_>);

    /// The guest is booted again. All vCPUs are out of it and in their power-on state (IA32_LSTAR
    /// is 0), and its memory, hidden memory included, is still that of the former boot; it is void,
    /// and replaced once this returns. So what is under way here is to be finished first, that it
    /// may not write to the new guest. Not on a vCPU's thread: vCPUs answer. Run control is locked
    /// meanwhile: a thread that may be waiting for it (`Vm::pause`, `Vm::snapshot` and so on) must
    /// not be waited for.
    fn reset(&self);

    /// The guest's kernel has begun: it runs on page tables of its own at its virtual addresses,
    /// has called no C function there, and no other vCPU runs yet. Called once a boot, where
    /// `Vm::tells_kernel_entry` of exoprobe-vmm; of a guest restored from a snapshot that was taken
    /// soon after, at a later moment of its boot. An implementation that cannot act at once (see
    /// above) gives `false`: the vCPU obeys its commands, and it is called again before it enters
    /// the guest.
    fn kernel_entered(&self, entry: &KernelEntry) -> bool;
}
