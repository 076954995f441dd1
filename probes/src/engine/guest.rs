//! What the engine needs of a guest: the one seam between it and the virtual machine.

use exoprobe_vmm::{GuestRam, HiddenMemory, Registers, VcpuError, Vm, VmState, kvm_sregs};

/// A guest that can be probed.
pub trait Guest: Send + Sync {
    /// Its RAM.
    fn ram(&self) -> &GuestRam;
    /// Its hidden region.
    fn hidden(&self) -> &HiddenMemory;
    /// Number of vCPUs.
    fn vcpus(&self) -> u8;
    /// Segment and control registers of the first vCPU.
    ///
    /// # Errors
    /// [`VcpuError`] when it does not answer.
    fn sregs(&self) -> Result<kvm_sregs, VcpuError>;
    /// A model-specific register of the first vCPU.
    ///
    /// # Errors
    /// As [`Self::sregs`].
    fn msr(&self, index: u32) -> Result<u64, VcpuError>;
    /// What is added to the first vCPU's time-stamp counter to have the guest's time, in ticks.
    ///
    /// # Errors
    /// As [`Self::sregs`].
    fn tsc_offset(&self) -> Result<u64, VcpuError>;
    /// Returns once every vCPU has left the guest and dealt with the exit, since the call.
    ///
    /// # Errors
    /// As [`Self::sregs`].
    fn sync_vcpus(&self) -> Result<(), VcpuError>;
    /// Has every vCPU stand still, and gives `access` their registers.
    ///
    /// # Errors
    /// As [`Self::sregs`]; `access` was not called.
    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError>;
    /// It runs no more.
    fn stopped(&self) -> bool;
}

impl Guest for Vm {
    fn ram(&self) -> &GuestRam {
        self.ram()
    }

    fn hidden(&self) -> &HiddenMemory {
        self.hidden()
    }

    fn vcpus(&self) -> u8 {
        self.config().vcpus
    }

    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        Ok(self.registers(0)?.sregs)
    }

    fn msr(&self, index: u32) -> Result<u64, VcpuError> {
        self.msr(0, index)
    }

    fn tsc_offset(&self) -> Result<u64, VcpuError> {
        self.tsc_offset(0)
    }

    fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.sync_vcpus()
    }

    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError> {
        self.with_vcpus_still(access)
    }

    fn stopped(&self) -> bool {
        matches!(self.state(), VmState::Stopped(_))
    }
}
