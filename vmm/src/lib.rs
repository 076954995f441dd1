//! A small KVM virtual machine that boots Linux: memory, boot, CPUs, devices, run control and host
//! preflight. It knows nothing of Linux symbols, probes or HTTP.
//!
//! [`Host::open`] examines the host's KVM, [`Vm::create`] turns a [`VmConfig`] into a machine, and
//! [`Vm::start`] runs it with an [`ExitHook`], which sees every breakpoint before the guest does.

pub mod addr;
mod boot;
mod config;
pub mod devices;
mod dump;
pub mod fault_fixup;
pub mod hidden;
mod hook;
mod host;
mod idt;
pub mod layout;
mod machine;
pub mod memory;
mod msr;
mod msr_exits;
mod new_file;
pub mod paging;
mod preflight;
mod profile;
pub mod quirks;
mod registers;
mod snapshot;
mod status;
mod stub;
mod time;
mod vcpu;
mod vm;

pub use addr::{Gpa, Gva};
pub use boot::{BootError, ImageError, PayloadError, PayloadFormat};
pub use config::{ConfigError, MAX_VCPUS, VmConfig, with_kernel_words};
pub use devices::{OutputLog, SerialPort};
pub use dump::{Dump, DumpError, DumpNotes};
pub use fault_fixup::FixupError;
pub use hidden::{HiddenError, HiddenMemory};
pub use hook::{BreakpointAction, ExitHook, HitContext, KernelEntry, SregsSource};
pub use host::{DEFAULT_KVM, Host, HostError};
pub use idt::IdtError;
pub use kvm_bindings::{kvm_regs, kvm_sregs};
pub use kvm_ioctls::Error as KvmError;
pub use memory::{GuestRam, OutsideMemory};
pub use new_file::{NewFile, NewFileError};
pub use preflight::PreflightError;
pub use profile::{BreakpointExit, HostProfile, Reinjection};
pub use registers::{Registers, VcpuError, gpr};
pub use snapshot::{SnapshotError, SnapshotProgress};
pub use status::{StopReason, StopRecord, VmState};
pub use stub::StubError;
pub use time::{GuestClock, GuestTime};
pub use vcpu::{ExitCounts, StatsError, StepError};
pub use vm::{BootFiles, ControlError, CreateError, RebootError, Vm};
