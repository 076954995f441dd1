//! A vCPU back to its power-on state, whatever its guest was doing.

use kvm_ioctls::{Error, SyncReg};

use super::core::{Mode, Vcpu};
use super::state::{Refusal, VcpuState, at};

/// Most turns to finish an instruction that is half done. A string instruction of the guest's may
/// take many, but KVM comes back to the guest's side of KVM_RUN at the latest after each 1,024
/// iterations, and does not enter it.
const MAX_TURNS: u32 = 2048;

impl Vcpu {
    /// Puts the vCPU into `state`, paused; a stop or a hold is over with that. Single-stepping
    /// stays on.
    pub(super) fn power_on(&mut self, state: &VcpuState) -> Result<(), Refusal> {
        self.finish_instruction().map_err(at("finish the guest's last instruction"))?;
        // KVM may still have to deal with an INIT for this vCPU, which it does here: later, it
        // would reset the vCPU anew.
        self.fd.get_mp_state().map_err(at("report a vCPU's run state"))?;
        state.restore_registers(&self.fd)?;
        // What a hook has changed belongs to the former boot.
        self.fd.clear_sync_dirty_reg(SyncReg::Register);
        self.entering = None;
        self.mode = Mode::Paused;
        Ok(())
    }

    /// Has KVM finish an instruction whose exit was the last thing the vCPU did (api.rst, 5, note
    /// at KVM_EXIT_IO): else it may do so when it is entered next, over the new registers.
    fn finish_instruction(&mut self) -> Result<(), Error> {
        for _ in 0..MAX_TURNS {
            self.fd.set_kvm_immediate_exit(1);
            match self.fd.run() {
                // More of the same instruction; what it reads no longer matters.
                Ok(_) => {}
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                    // The kick of a command that has come meanwhile may be lost by this, and the
                    // command is not: the thread looks at the queue again after this one.
                    self.fd.set_kvm_immediate_exit(0);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(libc::ELOOP))
    }
}
