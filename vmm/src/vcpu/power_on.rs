//! Resets a vCPU to its power-on state, in any state of its guest.

use kvm_ioctls::{Error, SyncReg};

use super::core::{Mode, Vcpu};
use super::state::{Refusal, VcpuState, at};

/// Maximum number of turns to finish an instruction that is half done. A string instruction of the
/// guest's may take many. KVM returns to the guest's side of KVM_RUN after each 1,024 iterations at
/// the latest, and does not enter the guest.
const MAX_TURNS: u32 = 2048;

impl Vcpu {
    /// Puts the vCPU into `state`, paused; this ends a stop or a hold. Single-stepping stays on.
    pub(super) fn power_on(&mut self, state: &VcpuState) -> Result<(), Refusal> {
        self.finish_instruction().map_err(at("finish the guest's last instruction"))?;
        // KVM may still have an INIT to handle for this vCPU. It does so here; later, it would
        // reset the vCPU again.
        self.fd.get_mp_state().map_err(at("report a vCPU's run state"))?;
        state.restore_registers(&self.fd)?;
        // A hook's changes belong to the previous boot.
        self.fd.clear_sync_dirty_reg(SyncReg::Register);
        self.entering = None;
        self.mode = Mode::Paused;
        Ok(())
    }

    /// Makes KVM finish an instruction whose exit was the vCPU's last (api.rst, 5, note at
    /// KVM_EXIT_IO). Otherwise KVM may finish it at the next entry, over the new registers.
    fn finish_instruction(&mut self) -> Result<(), Error> {
        for _ in 0..MAX_TURNS {
            self.fd.set_kvm_immediate_exit(1);
            match self.fd.run() {
                // More of the same instruction; the values it reads no longer matter.
                Ok(_) => {}
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                    // This may lose the kick of a command that has arrived meanwhile. The command
                    // itself is not lost: the thread reads its queue again after this one.
                    self.fd.set_kvm_immediate_exit(0);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(libc::ELOOP))
    }
}
