//! The errors of a machine.

use crate::boot::BootError;
use crate::config::ConfigError;
use crate::devices::{DiskError, NetError, VsockError};
use crate::dump::DumpError;
use crate::hugepages::HugePagesError;
use crate::snapshot::SnapshotError;
use exoprobe_guest::VcpuError;
use exoprobe_guest::memory::MemoryError;

/// Why a machine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// More vCPUs than KVM allows.
    #[error("{wanted} vCPUs: KVM on this host allows {most} (KVM_CAP_MAX_VCPUS); lower --vcpus")]
    Vcpus {
        /// The number in the configuration.
        wanted: u8,
        /// KVM's.
        most: usize,
    },
    /// More RAM than guests on this host can address.
    #[error(
        "{wanted} MiB of memory: guest-physical addresses have {bits} bits on this host; lower --memory to {most} or less"
    )]
    Addresses {
        /// The size in the configuration, in MiB.
        wanted: u64,
        /// Bits of an address.
        bits: u32,
        /// Most RAM, in MiB.
        most: u64,
    },
    /// Guest memory is not available.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Guest memory of huge pages is not available.
    #[error(transparent)]
    HugePages(#[from] HugePagesError),
    /// The kernel, initramfs or command line is unusable.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// KVM refused a step.
    #[error("KVM refused to {step}: {source}")]
    Kvm {
        /// The step.
        step: &'static str,
        /// KVM's error.
        source: kvm_ioctls::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the machine: {0}")]
    Thread(std::io::Error),
    /// A disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A network interface cannot be made.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The virtio console has no file descriptor.
    #[error("cannot make the virtio console: {0}")]
    Console(std::io::Error),
    /// A vsock device cannot be made.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// A snapshot is unusable.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// The reason why a machine did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Only a machine that is not running yet can be started.
    #[error("the guest was started already")]
    AlreadyStarted,
    /// The guest has stopped.
    #[error("the guest has stopped: `exoprobe vm reboot` boots it again")]
    Stopped,
    /// A vCPU is in the middle of a hit.
    #[error("a probe holds the guest in the middle of a hit: resume it first")]
    Held,
    /// The guest was not started.
    #[error("the guest was not started yet")]
    NotStarted,
    /// The guest's kernel has not enabled the power button's event.
    #[error(
        "the guest does not watch its power button: it has not booted so far, or its kernel has no ACPI"
    )]
    NoPowerButton,
    /// A vCPU gave no answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// A disk's content is not on its medium.
    #[error("a disk: {0}")]
    Disk(std::io::Error),
    /// Writing a snapshot failed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Writing a dump failed.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// KVM refused to return its state.
    #[error("KVM: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
}
