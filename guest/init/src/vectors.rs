//! Vector registers: whether they keep their values over switches of tasks and over signals.
//!
//! All of it is assembly: the program itself is built for baseline x86-64, and CPUID decides when
//! it runs which registers there are.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::arch::{asm, global_asm};

use crate::sys;

/// Vector registers by the widest form that user mode may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Xmm,
    Ymm,
    Zmm,
}

/// Bytes of the widest register.
const WIDEST: usize = 64;
/// Registers that AVX-512 has; the others have half of them.
const REGISTERS: usize = 32;
const SIGUSR1: usize = 10;

/// A value for each register.
#[repr(C, align(64))]
struct Values([[u8; WIDEST]; REGISTERS]);

impl Width {
    /// Asks CPUID, and XGETBV where the kernel has enabled it (Intel SDM vol. 1, 13.5, 14.3 and
    /// 15.2).
    pub(crate) fn of_user_mode() -> Self {
        const OSXSAVE: u32 = 1 << 27;
        const AVX: u32 = 1 << 28;
        const AVX512F: u32 = 1 << 16;
        const STATE_AVX: u32 = 0b110;
        const STATE_AVX512: u32 = 0b1110_0110;
        let features = __cpuid(1).ecx;
        if features & OSXSAVE == 0 || features & AVX == 0 {
            return Self::Xmm;
        }
        let xcr0: u32;
        // SAFETY: OSXSAVE is set, so that XGETBV is there; it changes EAX and EDX only.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") xcr0, out("edx") _, options(nomem, nostack));
        }
        let has_avx512 = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & AVX512F != 0;
        if has_avx512 && xcr0 & STATE_AVX512 == STATE_AVX512 {
            Self::Zmm
        } else if xcr0 & STATE_AVX == STATE_AVX {
            Self::Ymm
        } else {
            Self::Xmm
        }
    }

    /// Bytes of a register.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Xmm => 16,
            Self::Ymm => 32,
            Self::Zmm => WIDEST,
        }
    }

    const fn registers(self) -> usize {
        match self {
            Self::Xmm | Self::Ymm => REGISTERS / 2,
            Self::Zmm => REGISTERS,
        }
    }

    /// The signal handler that overwrites all registers of this width.
    fn handler(self) -> extern "C" fn() {
        match self {
            Self::Xmm => exoprobe_clobber_xmm,
            Self::Ymm => exoprobe_clobber_ymm,
            Self::Zmm => exoprobe_clobber_zmm,
        }
    }
}

unsafe extern "C" {
    safe fn exoprobe_clobber_xmm();
    safe fn exoprobe_clobber_ymm();
    safe fn exoprobe_clobber_zmm();
    safe fn exoprobe_sigreturn();
}

global_asm!(
    "exoprobe_clobber_xmm:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "pcmpeqd xmm\\n, xmm\\n",
    ".endr",
    "ret",
    "exoprobe_clobber_ymm:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "vpcmpeqd xmm\\n, xmm\\n, xmm\\n",
    ".endr",
    "ret",
    "exoprobe_clobber_zmm:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "vpternlogd zmm\\n, zmm\\n, zmm\\n, 255",
    ".endr",
    "ret",
    // rt_sigreturn.
    "exoprobe_sigreturn:",
    "mov eax, 15",
    "syscall",
);

/// Loads `$registers` from `$from`, makes the system call, stores them to `$to`.
macro_rules! over_system_call {
    ($load:literal, $store:literal, $registers:literal, $from:expr, $to:expr, $call:expr) => {{
        let (number, [first, second]) = $call;
        asm!(
            concat!(".irp n,", $registers),
            $load,
            ".endr",
            "syscall",
            concat!(".irp n,", $registers),
            $store,
            ".endr",
            inlateout("rax") number => _,
            in("rdi") first,
            in("rsi") second,
            in("r12") $from,
            in("r13") $to,
            lateout("rcx") _,
            lateout("r11") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        )
    }};
}

/// One process's registers under test.
pub(crate) struct Registers {
    width: Width,
    tid: usize,
    pattern: Values,
}

impl Registers {
    /// Installs the signal handler. The pattern differs between processes and between registers.
    pub(crate) fn new() -> sys::Result<Self> {
        let width = Width::of_user_mode();
        let tid = sys::gettid()?;
        let restorer: extern "C" fn() = exoprobe_sigreturn;
        sys::handle_signal(SIGUSR1, width.handler() as usize, restorer as usize)?;
        let mut pattern = Values([[0; WIDEST]; REGISTERS]);
        for (at, byte) in pattern.0.as_flattened_mut().iter_mut().enumerate() {
            *byte = at.wrapping_mul(7).wrapping_add(tid.wrapping_mul(31)).to_le_bytes()[0];
        }
        Ok(Self { width, tid, pattern })
    }

    /// Whether all registers are kept over a `sched_yield`, and over a signal whose handler
    /// overwrites them.
    pub(crate) fn are_kept(&self) -> bool {
        const SCHED_YIELD: usize = 24;
        const TKILL: usize = 200;
        let yielded = self.kept_over((SCHED_YIELD, [0, 0]));
        let signalled = self.kept_over((TKILL, [self.tid, SIGUSR1]));
        yielded && signalled
    }

    fn kept_over(&self, call: (usize, [usize; 2])) -> bool {
        let mut seen = Values([[0; WIDEST]; REGISTERS]);
        let (from, to) = (&raw const self.pattern, &raw mut seen);
        match self.width {
            Width::Xmm => {
                // SAFETY: both areas have room for all registers of any width, and CPUID has this
                // one; the system calls take no pointers and return, and the handler changes vector
                // registers only.
                unsafe {
                    over_system_call!(
                        "movdqu xmm\\n, [r12 + 64*\\n]",
                        "movdqu [r13 + 64*\\n], xmm\\n",
                        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                        from,
                        to,
                        call
                    )
                }
            }
            Width::Ymm => {
                // SAFETY: both areas have room for all registers of any width, and CPUID has this
                // one; the system calls take no pointers and return, and the handler changes vector
                // registers only.
                unsafe {
                    over_system_call!(
                        "vmovdqu ymm\\n, [r12 + 64*\\n]",
                        "vmovdqu [r13 + 64*\\n], ymm\\n",
                        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                        from,
                        to,
                        call
                    )
                }
            }
            Width::Zmm => {
                // SAFETY: both areas have room for all registers of any width, and CPUID has this
                // one; the system calls take no pointers and return, and the handler changes vector
                // registers only.
                unsafe {
                    over_system_call!(
                        "vmovdqu32 zmm\\n, [r12 + 64*\\n]",
                        "vmovdqu32 [r13 + 64*\\n], zmm\\n",
                        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                        from,
                        to,
                        call
                    )
                }
            }
        }
        let pairs = self.pattern.0.iter().zip(&seen.0).take(self.width.registers());
        pairs
            .into_iter()
            .all(|(want, got)| want.iter().zip(got).take(self.width.bytes()).all(|(a, b)| a == b))
    }
}
