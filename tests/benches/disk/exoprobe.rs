//! The machine of this workspace, with a probe engine that has no probes.

use std::path::Path;

use exoprobe_tests::{TestGuest, TestKernel, unfiltered_host};
use exoprobe_vmm::{DiskConfig, DiskMode, Vm, VmConfig};

use crate::subject::{Statistics, Subject};

/// A guest in this process.
pub(crate) struct Exoprobe(TestGuest);

impl Exoprobe {
    /// Boots the guest with one disk.
    pub(crate) fn boot(disk: &Path) -> Self {
        let disk = DiskConfig { path: disk.to_owned(), mode: DiskMode::ReadWrite };
        let config = VmConfig { disks: vec![disk], ..TestKernel::Linux6_12.config(1) };
        let vm = Vm::create(&unfiltered_host(), &config).expect("the guest can be made");
        let guest = TestGuest::of_kernel(vm, None);
        guest.power_on();
        guest.wait_for_prompt();
        Self(guest)
    }
}

impl Subject for Exoprobe {
    fn work(&mut self, command: &str) -> u64 {
        self.0.work(command)
    }

    fn statistics(&mut self) -> Statistics {
        self.0.vm.kvm_stats(0).expect("KVM has statistics")
    }
}
