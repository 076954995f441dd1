//! A guest whose vCPUs' threads accept only the engine's requests.

use std::sync::Arc;

use kvm_ioctls::VmFd;

use super::dirty::KvmDirtyLog;
use super::request::{Request, with_vcpus_still};
use super::thread::VcpuThread;
use crate::dirty::{DirtyLog, DirtyLogError};
use crate::guest::Guest;
use crate::hidden::HiddenMemory;
use crate::memory::GuestRam;
use crate::registers::{Registers, VcpuError};

/// [`Guest`] for a VMM without run control of its own: its vCPUs run until the program ends.
pub struct KvmGuest {
    vm: Arc<VmFd>,
    ram: GuestRam,
    hidden: HiddenMemory,
    vcpus: Vec<VcpuThread<Request>>,
}

impl KvmGuest {
    /// A guest of these parts: its vCPUs' threads in order of index, at most 255.
    ///
    /// # Safety
    /// [`super::register_memory`] has mapped `ram` and `hidden` in `vm`.
    #[must_use]
    pub unsafe fn new(
        vm: Arc<VmFd>,
        ram: GuestRam,
        hidden: HiddenMemory,
        vcpus: Vec<VcpuThread<Request>>,
    ) -> Self {
        Self { vm, ram, hidden, vcpus }
    }

    /// The threads of its vCPUs.
    #[must_use]
    pub fn threads(&self) -> &[VcpuThread<Request>] {
        &self.vcpus
    }

    fn first(&self) -> Result<&VcpuThread<Request>, VcpuError> {
        self.vcpus.first().ok_or(VcpuError::NoSuchVcpu(0))
    }
}

impl Guest for KvmGuest {
    fn ram(&self) -> &GuestRam {
        &self.ram
    }

    fn hidden(&self) -> &HiddenMemory {
        &self.hidden
    }

    fn vcpus(&self) -> u8 {
        u8::try_from(self.vcpus.len()).unwrap_or(u8::MAX)
    }

    fn msr(&self, index: u32) -> Result<u64, VcpuError> {
        self.first()?.msr(index)
    }

    fn tsc_offset(&self) -> Result<u64, VcpuError> {
        self.first()?.tsc_offset()
    }

    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError> {
        with_vcpus_still(&self.vcpus, access)
    }

    fn log_writes(&self) -> Result<Box<dyn DirtyLog + '_>, DirtyLogError> {
        // SAFETY: `new`'s caller has mapped the RAM.
        let log = unsafe { KvmDirtyLog::start(&self.vm, &self.ram) };
        Ok(Box::new(log?))
    }

    fn stopped(&self) -> bool {
        self.vcpus.iter().any(VcpuThread::has_ended)
    }
}
