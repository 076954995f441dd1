//! The guest as the engine drives it: the only interface between the engine and a VMM.

use kvm_bindings::kvm_sregs;

use crate::dirty::{DirtyLog, DirtyLogError};
use crate::hidden::HiddenMemory;
use crate::memory::GuestRam;
use crate::registers::{Registers, VcpuError};

/// A guest that can be probed. A VMM implements it, over its vCPUs' threads.
///
/// The engine calls it on threads of its caller, never on a vCPU's.
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
    /// [`VcpuError`] if it does not answer.
    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        let mut first = None;
        self.with_vcpus_still(&mut |vcpus| first = vcpus.first().map(|vcpu| vcpu.sregs))?;
        first.ok_or(VcpuError::NoSuchVcpu(0))
    }
    /// A model-specific register of the first vCPU.
    ///
    /// # Errors
    /// As [`Self::sregs`].
    fn msr(&self, index: u32) -> Result<u64, VcpuError>;
    /// The number to add to the first vCPU's time-stamp counter to get the guest's time, in ticks.
    ///
    /// # Errors
    /// As [`Self::sregs`].
    fn tsc_offset(&self) -> Result<u64, VcpuError>;
    /// Returns once every vCPU has left the guest since the call, and [`crate::ExitHook`] has
    /// handled the exit. An instruction written to the guest's memory before the call is therefore
    /// executed as written after it.
    ///
    /// # Errors
    /// As [`Self::sregs`].
    fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.with_vcpus_still(&mut |_| ())
    }
    /// Stops every vCPU outside the guest, calls `access` with the registers of all of them, in
    /// order of index, and resumes them.
    ///
    /// # Errors
    /// As [`Self::sregs`]; `access` was not called.
    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError>;
    /// Opens a log of the pages of RAM that the guest writes, from now on until it is dropped. By
    /// it the engine searches RAM while the guest runs, and stops it only for the pages written
    /// since. With an error the engine stops the guest for as long as all of RAM is searched. The
    /// engine opens one log at a time.
    ///
    /// # Errors
    /// [`DirtyLogError::Unsupported`] by a VMM that has no such log, [`DirtyLogError::InUse`] while
    /// the VMM needs it itself, and KVM's.
    fn log_writes(&self) -> Result<Box<dyn DirtyLog + '_>, DirtyLogError>;
    /// Returns true if the guest has stopped, for good or until it is booted again.
    fn stopped(&self) -> bool;
    /// Returns true while the vCPUs are paused: they answer, and run no code of the guest's. A VMM
    /// that pauses no guest keeps the default.
    fn paused(&self) -> bool {
        false
    }
}
