//! Model-specific registers of which more than one module knows.

/// IA32_GS_BASE (Intel SDM vol. 4, 2.1). Linux's head_64.S writes it on each CPU before it calls its first
/// C function, and rarely after.
pub(crate) const MSR_GS_BASE: u32 = 0xc000_0101;
/// IA32_LSTAR: where SYSCALL goes (Intel SDM vol. 3, 5.8.8).
pub(crate) const MSR_LSTAR: u32 = 0xc000_0082;
/// A vCPU's time-stamp counter (Intel SDM vol. 4, IA32_TIME_STAMP_COUNTER).
pub(crate) const MSR_TSC: u32 = 0x10;
