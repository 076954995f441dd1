//! The user's part of a back-trace, by frame pointers: of programs that were built with them.

use exoprobe_guest::{Gva, kvm_regs};

use super::stack::{FRAMES_MAX, KERNEL_HALF, Stack};

/// Registers of user mode, now or when the kernel was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPlace {
    /// RIP.
    pub ip: Gva,
    /// RSP.
    pub sp: Gva,
    /// RBP; 0 of 32-bit code, whose frames are not followed.
    pub bp: Gva,
}

impl From<&kvm_regs> for UserPlace {
    /// Of a vCPU in user mode.
    fn from(regs: &kvm_regs) -> Self {
        Self { ip: Gva(regs.rip), sp: Gva(regs.rsp), bp: Gva(regs.rbp) }
    }
}

/// The addresses of a user's back-trace: that of the place itself, then those that frames return
/// to, at most [`FRAMES_MAX`].
pub fn user_frames<S: Stack + ?Sized>(
    stack: &S,
    place: UserPlace,
) -> impl Iterator<Item = Gva> + use<'_, S> {
    let (mut lowest, mut bp) = (place.sp.0, place.bp.0);
    let callers = std::iter::from_fn(move || {
        let is_frame = bp >= lowest && bp.is_multiple_of(8) && bp & KERNEL_HALF == 0;
        let frame = is_frame.then_some(Gva(bp))?;
        let (next, ret) = (stack.word(frame)?, stack.word(frame.wrapping_add(8))?);
        // It goes up alone.
        (lowest, bp) = (frame.0.checked_add(16)?, next);
        (ret != 0 && ret & KERNEL_HALF == 0).then_some(Gva(ret))
    });
    std::iter::once(place.ip).chain(callers).take(FRAMES_MAX)
}
