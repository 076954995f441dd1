//! Writes of model-specific registers that a VMM must see (KVM_X86_SET_MSR_FILTER,
//! Documentation/virt/kvm/api.rst, 4.131).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::addr::Gva;
use crate::layout::KERNEL_HALF;

/// IA32_GS_BASE (Intel SDM vol. 4, 2.1). Linux's head_64.S writes it on each CPU before it calls
/// its first C function, and rarely after.
pub const MSR_GS_BASE: u32 = 0xc000_0101;
/// IA32_LSTAR: the address that SYSCALL jumps to (Intel SDM vol. 3, 5.8.8).
pub const MSR_LSTAR: u32 = 0xc000_0082;
/// A vCPU's time-stamp counter (Intel SDM vol. 4, IA32_TIME_STAMP_COUNTER).
pub const MSR_TSC: u32 = 0x10;

/// Recognizes the kernel's entry among the filtered writes of a guest's vCPUs: the first write of
/// [`MSR_GS_BASE`] of a boot by code in the kernel's half of the addresses.
///
/// ```
/// use exoprobe_guest::Gva;
/// use exoprobe_guest::msr::{EntryWatch, MSR_GS_BASE};
///
/// let watch = EntryWatch::default();
/// watch.begin_boot();
/// assert!(!watch.is_entry(MSR_GS_BASE, Gva(0x10_0000)), "the boot code, at its physical address");
/// assert!(watch.is_entry(MSR_GS_BASE, Gva(0xffff_ffff_8100_0000)));
/// assert!(!watch.is_entry(MSR_GS_BASE, Gva(0xffff_ffff_8100_0000)), "once a boot");
/// ```
#[derive(Debug, Default)]
pub struct EntryWatch {
    expected: AtomicBool,
}

impl EntryWatch {
    /// Expects an entry. Must be called before the vCPUs of each boot run.
    pub fn begin_boot(&self) {
        self.expected.store(true, Ordering::SeqCst);
    }

    /// Returns true if the write of register `index` by the instruction at `rip` is the kernel's
    /// entry. The VMM then completes the write and calls [`crate::ExitHook::kernel_entered`].
    pub fn is_entry(&self, index: u32, rip: Gva) -> bool {
        index == MSR_GS_BASE && rip >= KERNEL_HALF && self.expected.swap(false, Ordering::SeqCst)
    }
}
