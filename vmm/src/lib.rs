//! A small KVM virtual machine that boots Linux: memory, boot, CPUs, devices, run control and host
//! preflight. It knows nothing of Linux symbols, probes or HTTP.

pub mod addr;
pub mod paging;

pub use addr::{Gpa, Gva};
