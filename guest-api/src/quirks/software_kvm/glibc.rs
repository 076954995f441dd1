//! Tests that programs of this host use only registers that a guest kernel without AVX saves, with
//! the words for such guests.

use std::ffi::c_void;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr;

use super::NO_AVX_IN_GLIBC;

/// A program with the C library of a distribution, and with few instructions of its own.
const PROGRAM: &str = "/bin/true";
/// Offsets in struct user (sys/user.h).
const RIP: usize = 16 * 8;
const ORIG_RAX: usize = 15 * 8;
/// First bytes of instructions that have VEX or EVEX (Intel SDM vol. 2, 2.3 and 2.7): AVX, AVX2,
/// AVX-512.
const WIDE: [u8; 3] = [0xc4, 0xc5, 0x62];

/// Runs the program instruction by instruction, once its loader has relocated a library. Returns
/// the number of its instructions, and of its wide ones. `None` if the host does not permit
/// tracing.
fn step(tunables: Option<&str>) -> Option<(u64, u64)> {
    let mut command = Command::new(PROGRAM);
    command.env_clear().envs(tunables.and_then(|words| words.split_once('=')));
    let trace_me = || match ptrace(libc::PTRACE_TRACEME, 0, 0) {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: it does one system call, which allocates nothing.
    unsafe { command.pre_exec(trace_me) };
    let child = command.stdout(Stdio::null()).spawn().ok()?;
    let pid = i32::try_from(child.id()).unwrap();
    run_to_mprotect(pid);
    let (mut all, mut wide) = (0, 0);
    while is_stopped(pid) {
        let rip = ptrace(libc::PTRACE_PEEKUSER, pid, RIP);
        let text = ptrace(libc::PTRACE_PEEKTEXT, pid, usize::try_from(rip).unwrap_or_default());
        all += 1;
        wide += u64::from(WIDE.contains(&text.to_le_bytes()[0]));
        assert_ne!(ptrace(libc::PTRACE_SINGLESTEP, pid, 0), -1, "{all} instructions");
    }
    Some((all, wide))
}

/// Runs the program to its first mprotect(), with which the loader ends a library's relocation. All
/// before is code of the loader's own, which has no choice of registers: 70,000 instructions, each
/// of which takes 0.2 ms where KVM emulates kernels.
fn run_to_mprotect(pid: i32) {
    assert!(is_stopped(pid), "at its beginning");
    loop {
        assert_ne!(ptrace(libc::PTRACE_SYSCALL, pid, 0), -1);
        assert!(is_stopped(pid), "its loader protects what it has relocated");
        if ptrace(libc::PTRACE_PEEKUSER, pid, ORIG_RAX) == libc::SYS_mprotect {
            break;
        }
    }
    assert_ne!(ptrace(libc::PTRACE_SINGLESTEP, pid, 0), -1);
}

fn ptrace(request: libc::c_uint, pid: i32, address: usize) -> i64 {
    let data = ptr::null_mut::<c_void>();
    // SAFETY: these requests write nothing to this process: what they read is what the call gives.
    unsafe { libc::ptrace(request, pid, address as *mut c_void, data) }
}

/// Waits. Returns true if the program has stopped, and false if it has ended.
fn is_stopped(pid: i32) -> bool {
    let mut status = 0;
    // SAFETY: `status` is a place for the answer; the process is a child that nothing else waits
    // for.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    waited == pid && libc::WIFSTOPPED(status)
}

#[test]
fn with_these_words_programs_take_no_wide_registers() {
    let Some((all, wide)) = step(None) else {
        eprintln!("skipped: {} cannot be traced here", PROGRAM);
        return;
    };
    println!("{all} instructions, {wide} of AVX");
    let (all, kept) = step(Some(NO_AVX_IN_GLIBC)).expect("as before");
    println!("{all} instructions, {kept} of AVX, with {NO_AVX_IN_GLIBC}");
    assert!(all > 1000, "{all} instructions");
    assert_eq!(kept, 0);
    let has_avx = std::arch::is_x86_feature_detected!("avx2");
    assert_eq!(wide > 0, has_avx, "without the words it takes them where they are");
}
