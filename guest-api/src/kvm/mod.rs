//! The KVM calls that every VMM with the engine makes, over kvm-ioctls:
//!
//! - before the guest runs: [`register_memory`], [`request_msr_exits`], [`prepare_vcpu`];
//! - at the exits that concern the engine: [`ProbeExits`];
//! - the pages that the guest writes: [`KvmDirtyLog`];
//! - a vCPU's thread that others can stop: [`VcpuThread`], [`Request`], [`with_vcpus_still`], and
//!   [`KvmGuest`], the [`crate::Guest`] over such threads.

mod calls;
mod dirty;
mod exits;
mod guest;
mod kick;
mod memory;
mod request;
mod thread;

pub use calls::{
    VECTOR_BREAKPOINT, can_filter_msrs, inject_breakpoint, report_debug, request_msr_exits,
};
pub use dirty::KvmDirtyLog;
pub use exits::{AfterExit, ExitError, ProbeExit, ProbeExits, Reinjection, prepare_vcpu};
pub use guest::KvmGuest;
pub use memory::register_memory;
pub use request::{Request, with_vcpus_still};
pub use thread::{Pending, Reply, VcpuThread};
