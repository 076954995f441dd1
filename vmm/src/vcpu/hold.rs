//! A vCPU that a hook holds in the middle of a hit.

use super::core::{Mode, Vcpu};
use crate::status::StopReason;
use exoprobe_guest::GuestTime;

impl Vcpu {
    /// Pauses the machine at a hit of `time`. The registers are in KVM as the hook left them.
    pub(super) fn hold(&mut self, time: GuestTime) {
        // Of a machine that has stopped, the halt is in this thread's queue already.
        let held = self.machine.hold(self.index);
        self.mode = if held { Mode::Held(time) } else { Mode::Stopped };
    }

    /// Makes the hook complete the hit, and resumes the vCPU.
    pub(super) fn release(&mut self, time: GuestTime) {
        self.mode = Mode::Running;
        if let Err(error) = self.complete_hit(time) {
            let message = format!("releasing a held vCPU: {error}");
            self.stop(StopReason::Failed { message });
        }
    }

    fn complete_hit(&mut self, time: GuestTime) -> Result<(), kvm_ioctls::Error> {
        let Some(hook) = self.machine.hook() else { return Ok(()) };
        self.probes.release(&self.fd, &**hook, time)
    }
}
