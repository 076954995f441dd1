//! A small KVM virtual machine that boots Linux: memory, boot, CPUs, devices, run control and host
//! preflight. It knows nothing of Linux symbols, probes or HTTP.
//!
//! [`Host::open`] examines the host's KVM, [`Vm::create`] turns a [`VmConfig`] into a machine, and
//! [`Vm::start`] runs it with an [`ExitHook`](exoprobe_guest::ExitHook), which sees every
//! breakpoint before the guest does.

mod boot;
mod config;
pub mod devices;
mod dump;
mod failures;
mod host;
mod hugepages;
pub mod layout;
mod locked;
mod mac;
mod machine;
mod new_file;
mod preflight;
mod profile;
mod progress;
mod ram;
mod snapshot;
mod status;
mod threads;
mod vcpu;
mod vm;

pub use boot::{BootError, ImageError, PayloadError, PayloadFormat};
pub use config::{
    ConfigError, DiskConfig, DiskMode, GUEST_CID, HostSides, MAX_DEVICES, MAX_VCPUS, NetConfig,
    NetLink, VmConfig, VsockConfig, with_kernel_words,
};
pub use devices::{
    DiskError, NetError, OutputLog, SerialPort, TerminalSize, VirtioConsole, VsockError,
};
pub use dump::{Dump, DumpError};
pub use exoprobe_guest::kvm::Reinjection;
pub use host::{DEFAULT_KVM, Host, HostError};
pub use hugepages::{HUGE_PAGES, HugePagesError};
pub use locked::LockError;
pub use mac::{MacAddr, MacError};
pub use new_file::{NewFile, NewFileError};
pub use preflight::PreflightError;
pub use profile::{BreakpointExit, HostProfile};
pub use progress::WriteProgress;
#[cfg(any(test, feature = "testing"))]
pub use snapshot::DrivenSnapshot;
pub use snapshot::SnapshotError;
pub use status::{StopReason, StopRecord, VmState};
pub use threads::{ThreadHook, ThreadKind};
pub use vcpu::{ExitCounts, StatsError, StepError};
pub use vm::{BootFiles, ControlError, CreateError, RebootError, Vm};
