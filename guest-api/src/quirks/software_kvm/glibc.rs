//! Tests that programs of this host use only registers that a guest kernel without AVX saves, with
//! the words for such guests.

use std::ffi::c_void;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr;

use super::NO_AVX_IN_GLIBC;

/// A program with the C library of a distribution, and with few instructions of its own. It prints
/// its version.
const PROGRAM: &str = "/bin/true";
/// Offset of RIP in struct user (sys/user.h).
const RIP: usize = 16 * 8;
/// First bytes of instructions that have VEX or EVEX (Intel SDM vol. 2, 2.3 and 2.7): AVX, AVX2,
/// AVX-512.
const WIDE: [u8; 3] = [0xc4, 0xc5, 0x62];

/// Runs the program instruction by instruction from its entry on, to its first wide one or to its
/// end. Returns the number of its instructions, and whether the last one is wide. `None` if the
/// host does not permit tracing.
fn step(tunables: Option<&str>) -> Option<(u64, bool)> {
    let mut command = Command::new(PROGRAM);
    command.arg("--version").env_clear().envs(tunables.and_then(|words| words.split_once('=')));
    let trace_me = || match ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: it does one system call, which allocates nothing.
    unsafe { command.pre_exec(trace_me) };
    let mut child = command.stdout(Stdio::null()).spawn().ok()?;
    let pid = i32::try_from(child.id()).unwrap();
    assert!(is_stopped(pid), "at its beginning");
    run_to(pid, entry(pid));
    let mut all = 0;
    loop {
        let rip = usize::try_from(ptrace(libc::PTRACE_PEEKUSER, pid, RIP, 0)).unwrap();
        all += 1;
        if WIDE.contains(&ptrace(libc::PTRACE_PEEKTEXT, pid, rip, 0).to_le_bytes()[0]) {
            child.kill().and_then(|()| child.wait()).unwrap();
            return Some((all, true));
        }
        assert_ne!(ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0), -1, "{all} instructions");
        if !is_stopped(pid) {
            return Some((all, false));
        }
    }
}

/// The program's entry, where its loader is done: the loader's own 80,000 instructions, each of
/// which takes 0.2 ms where KVM emulates kernels, have no choice of registers.
fn entry(pid: i32) -> usize {
    let words = std::fs::read(format!("/proc/{pid}/auxv")).unwrap();
    let words: Vec<_> = words.chunks_exact(8).map(|word| word.try_into().unwrap()).collect();
    let words: Vec<_> = words.into_iter().map(usize::from_le_bytes).collect();
    let entry = words.chunks_exact(2).find(|pair| pair[0] as u64 == libc::AT_ENTRY);
    entry.expect("each program has one")[1]
}

/// Runs the program to a breakpoint there.
fn run_to(pid: i32, at: usize) {
    const INT3: i64 = 0xcc;
    let text = ptrace(libc::PTRACE_PEEKTEXT, pid, at, 0);
    ptrace(libc::PTRACE_POKETEXT, pid, at, text & !0xff | INT3);
    assert_ne!(ptrace(libc::PTRACE_CONT, pid, 0, 0), -1);
    assert!(is_stopped(pid), "at its entry");
    ptrace(libc::PTRACE_POKETEXT, pid, at, text);
    let rip = i64::try_from(at).unwrap();
    assert_eq!(ptrace(libc::PTRACE_PEEKUSER, pid, RIP, 0), rip + 1, "after the breakpoint");
    ptrace(libc::PTRACE_POKEUSER, pid, RIP, rip);
}

fn ptrace(request: libc::c_uint, pid: i32, address: usize, data: i64) -> i64 {
    let data = ptr::without_provenance_mut::<c_void>(data.cast_unsigned().try_into().unwrap());
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
    println!("{all} instructions until one of AVX: {wide}");
    let (all, kept) = step(Some(NO_AVX_IN_GLIBC)).expect("as before");
    println!("{all} instructions until one of AVX: {kept}, with {NO_AVX_IN_GLIBC}");
    assert!(all > 1000, "{all} instructions");
    assert!(!kept, "one of AVX with the words");
    let has_avx = std::arch::is_x86_feature_detected!("avx2");
    assert_eq!(wide, has_avx, "without the words it takes them where they are");
}
