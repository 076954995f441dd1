//! How a layer above takes part in a guest's exits, without this crate knowing of it.

use kvm_bindings::kvm_regs;

use crate::addr::Gva;
use crate::time::GuestTime;

/// What is to become of a breakpoint exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakpointAction {
    /// It was ours and is dealt with: go on at the registers as they are now.
    Resume,
    /// It is the guest's own: give it its #BP.
    PassToGuest,
}

/// A vCPU that is out of the guest, as a hook sees it on the vCPU's own thread.
pub struct HitContext<'a> {
    /// Index of the vCPU.
    pub vcpu: u8,
    /// General registers; RIP is the breakpoint's own address. Changes go to the guest.
    pub regs: &'a mut kvm_regs,
    /// Guest time of the exit.
    pub time: GuestTime,
}

impl HitContext<'_> {
    /// Address of the breakpoint.
    #[must_use]
    pub fn rip(&self) -> Gva {
        Gva(self.regs.rip)
    }
}

/// Called on vCPU threads, several at once. An implementation must not block on anything that
/// waits for a vCPU.
pub trait ExitHook: Send + Sync {
    /// The guest hit an int3 in kernel or user mode.
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction;
}
