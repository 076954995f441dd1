//! Machines whose guests never run, with failures of their devices' threads.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use tempfile::TempDir;

use super::{ControlError, Vm};
use crate::boot::elf;
use crate::config::VmConfig;
use crate::failures::tests::PATIENCE;
use crate::host::{DEFAULT_KVM, Host};
use crate::status::{StopReason, StopRecord, VmState};

const ENTRY: u64 = 0x100_0000;

/// A machine, and the folder of its kernel.
fn machine() -> Option<(Vm, TempDir)> {
    let Ok(host) = Host::open(Path::new(DEFAULT_KVM)) else {
        eprintln!("skipped, without KVM: {}", thread::current().name().unwrap_or_default());
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let kernel = dir.path().join("kernel");
    std::fs::write(&kernel, elf(62, ENTRY, 120, 4096)).unwrap();
    let config = VmConfig {
        kernel,
        initramfs: None,
        cmdline: String::new(),
        memory_mib: 32,
        vcpus: 2,
        disks: Vec::new(),
        nets: Vec::new(),
        vsock: None,
        virtio_console: false,
        hugepages: false,
    };
    Some((Vm::create(&host, &config).unwrap(), dir))
}

/// Has a thread of a disk's panic.
fn panic_in_a_device(vm: &Vm) {
    let failures = vm.failures.clone();
    let device = move || failures.watch("disk", || panic!("as a bug would"));
    let panicked: thread::Result<()> = thread::spawn(device).join().unwrap();
    assert!(panicked.is_err());
}

#[test]
fn a_thread_of_a_device_that_panics_stops_the_machine() {
    let Some((vm, _dir)) = machine() else { return };
    panic_in_a_device(&vm);
    let StopRecord { reason, vcpu, regs, .. } = vm.wait_stopped(PATIENCE).unwrap();
    let message = "the thread `disk` panicked".to_owned();
    assert_eq!((reason, vcpu), (StopReason::Failed { message }, 0));
    assert_eq!(regs.rip, ENTRY, "they are vCPU 0's");
}

#[test]
fn a_device_that_panics_during_a_snapshot_ends_it() {
    let Some((vm, dir)) = machine() else { return };
    assert!(vm.machine.status.set(VmState::Paused, || ()));
    let path = dir.path().join("snapshot");
    let snapshot = |permit: &dyn Fn()| {
        let permit = || {
            permit();
            Some(())
        };
        vm.snapshot_if(&path, &Arc::default(), permit)
    };
    assert!(snapshot(&|| ()).unwrap());
    std::fs::remove_file(&path).unwrap();
    let failed = snapshot(&|| panic_in_a_device(&vm));
    assert!(matches!(failed, Err(ControlError::Stopped)), "{failed:?}");
    assert!(!path.exists());
}
