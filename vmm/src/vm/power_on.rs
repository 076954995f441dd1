//! The power-on state of a machine.

use std::sync::Arc;

use kvm_ioctls::{VcpuFd, VmFd};

use crate::snapshot::Chips;
use crate::vcpu::VcpuState;
use exoprobe_guest::msr::MSR_TSC;

/// Accompanies [`MSR_TSC`] (Intel SDM vol. 3, 17.17). A reboot keeps it, as it keeps the machine's
/// clock.
const MSR_TSC_ADJUST: u32 = 0x3b;

/// The state of a machine as KVM made it.
pub(super) struct PowerOn {
    pub(super) vcpus: Vec<Arc<VcpuState>>,
    pub(super) chips: Chips,
}

impl PowerOn {
    /// Reads the state of a machine that has not run.
    pub(super) fn save(
        fd: &VmFd,
        vcpus: &[VcpuFd],
        msrs: &[u32],
    ) -> Result<Self, kvm_ioctls::Error> {
        let kept = |index: &u32| ![MSR_TSC, MSR_TSC_ADJUST].contains(index);
        let msrs: Vec<u32> = msrs.iter().copied().filter(kept).collect();
        let states = vcpus.iter().map(|vcpu| VcpuState::save(vcpu, &msrs).map(Arc::new));
        Ok(Self { vcpus: states.collect::<Result<_, _>>()?, chips: Chips::save(fd)? })
    }
}
