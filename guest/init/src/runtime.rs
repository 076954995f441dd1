//! The parts of a C library that init needs: the entry point and the memory functions the compiler
//! calls.

use core::arch::{asm, global_asm};

use crate::sys;

// The kernel starts a program with RSP 16-byte aligned and no return address: `call` gives the
// alignment a Rust function expects.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "call {main}",
    "ud2",
    main = sym crate::main,
);

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The end of process 1 is a kernel panic, which says it all on the console.
    sys::exit(101)
}

/// # Safety
/// As C's `memcpy`.
// SAFETY: the one definition of this symbol in a program without libc.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both ranges; the direction flag is clear (System V ABI).
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As C's `memmove`.
// SAFETY: as for `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: copying upwards never reads a byte it has written: `to` is not inside `from`.
        return unsafe { memcpy(to, from, count) };
    }
    let last = count.wrapping_sub(1);
    // SAFETY: the caller vouches for both ranges; copying downwards is right where `to` is
    // above `from`, and the direction flag is restored.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") count => _,
             inout("rdi") to.wrapping_add(last) => _, inout("rsi") from.wrapping_add(last) => _,
             options(nostack));
    }
    to
}

/// # Safety
/// As C's `memset`.
// SAFETY: as for `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the range; the direction flag is clear (System V ABI).
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("eax") byte,
             options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As C's `memcmp`.
// SAFETY: as for `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for offset in 0..count {
        // SAFETY: the caller vouches for `count` bytes; volatile keeps the compiler from making
        // this loop a call of `memcmp`.
        let left = unsafe { a.wrapping_add(offset).read_volatile() };
        // SAFETY: as above.
        let right = unsafe { b.wrapping_add(offset).read_volatile() };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// # Safety
/// As `memcmp`.
// SAFETY: as for `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(a, b, count) }
}
