//! The machine as the engine drives it.

use exoprobe_guest::dirty::{DirtyLog, DirtyLogError};
use exoprobe_guest::kvm::KvmDirtyLog;
use exoprobe_guest::{Guest, GuestRam, HiddenMemory, Registers, VcpuError, kvm_sregs};

use super::control::Vm;
use crate::status::VmState;

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

    fn log_writes(&self) -> Result<Box<dyn DirtyLog + '_>, DirtyLogError> {
        if !self.host_profile().dirty_log {
            return Err(DirtyLogError::Unsupported("KVM's dirty log misses stores on this host"));
        }
        // SAFETY: the machine's RAM is mapped as long as the machine is there.
        let log = unsafe { KvmDirtyLog::start(&self.fd, self.ram()) };
        Ok(Box::new(log?))
    }

    fn stopped(&self) -> bool {
        matches!(self.state(), VmState::Stopped(_))
    }

    fn paused(&self) -> bool {
        matches!(self.state(), VmState::Paused)
    }
}
