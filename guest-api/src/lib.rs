//! The types that the probe engine and a VMM share: a guest's addresses, RAM, page tables, hidden
//! memory, registers and clock, and the two traits by which they call each other.
//!
//! - The VMM implements [`Guest`]: the engine reads memory and stops vCPUs by it.
//! - The engine implements [`ExitHook`]: the VMM calls it at breakpoints.
//!
//! Without the feature `kvm-ioctls` the crate uses KVM's structures ([`kvm_bindings`]) and no
//! ioctl, so that it fits any VMM that uses the same versions of `kvm-bindings` and `vm-memory`.
//! `docs/embedding.md` describes the duties of a VMM.

pub mod addr;
pub mod cpuid;
pub mod dirty;
mod dump;
pub mod fault_fixup;
pub mod guarded_load;
mod guest;
pub mod hidden;
mod hook;
mod idt;
#[cfg(feature = "kvm-ioctls")]
pub mod kvm;
pub mod layout;
pub mod memory;
pub mod msr;
pub mod paging;
pub mod quirks;
mod registers;
mod stub;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod time;

pub use addr::{Gpa, Gva};
pub use dump::DumpNotes;
pub use fault_fixup::FixupError;
pub use guest::Guest;
pub use hidden::{HiddenError, HiddenMemory};
pub use hook::{BreakpointAction, ExitHook, HitContext, KernelEntry, SregsSource};
pub use idt::IdtError;
pub use kvm_bindings::{kvm_regs, kvm_sregs};
pub use memory::{GuestRam, LoggedWord, OutsideMemory};
pub use registers::{Registers, VcpuError, gpr};
pub use stub::StubError;
pub use time::{GuestClock, GuestTime};
pub use vmm_sys_util::errno::Error as KvmError;
