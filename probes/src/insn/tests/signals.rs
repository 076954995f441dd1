//! Exceptions of the code under test, caught as signals.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Once;

use exoprobe_guest::guarded_load;

/// Bytes of the signal stack: the code under test has a stack pointer of its own. A frame holds all
/// vector registers.
const STACK_LEN: usize = 64 << 10;
/// #PF.
const PAGE_FAULT: i64 = 14;
/// The carry flag.
const CF: i64 = 1;

/// An exception as the kernel's handler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) vector: i64,
    pub(super) error: i64,
    /// The page fault's address.
    pub(super) address: Option<i64>,
    /// Of the instruction that faulted.
    pub(super) rip: u64,
}

/// Where this thread's code under test is, and where it goes on after a fault.
struct Catcher {
    code: Range<u64>,
    resume: u64,
}

thread_local! {
    static CATCHER: Cell<Option<Catcher>> = const { Cell::new(None) };
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// The fault since the last call, if any.
pub(super) fn take_fault() -> Option<Fault> {
    FAULT.take()
}

/// Catches this thread's faults for as long as it lives.
pub(super) struct Catching {
    _stack: Box<[u8]>,
    former: libc::stack_t,
}

impl Catching {
    /// A fault of an instruction in `code` goes on at `resume`, with the registers of the fault.
    pub(super) fn start(code: Range<u64>, resume: u64) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install_handler);
        CATCHER.set(Some(Catcher { code, resume }));
        let mut stack = vec![0; STACK_LEN].into_boxed_slice();
        let new =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_LEN };
        let mut former = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
        // SAFETY: the new stack lives until `drop` puts the former one back.
        let set = unsafe { libc::sigaltstack(&raw const new, &raw mut former) };
        assert_eq!(set, 0, "sigaltstack: {}", std::io::Error::last_os_error());
        Self { _stack: stack, former }
    }
}

impl Drop for Catching {
    fn drop(&mut self) {
        CATCHER.set(None);
        // SAFETY: this was the thread's signal stack before, and its owner frees it later.
        let set = unsafe { libc::sigaltstack(&raw const self.former, ptr::null_mut()) };
        assert_eq!(set, 0, "sigaltstack: {}", std::io::Error::last_os_error());
    }
}

fn install_handler() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: all zeroes is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for.
        let set = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        assert_eq!(set, 0, "sigaction: {}", std::io::Error::last_os_error());
    }
}

/// Returns true if the code at an address of the code under test is a guarded load. The stub of the
/// guest does the same.
fn is_guarded(rip: u64) -> bool {
    // SAFETY: the instruction was just fetched from there, so its bytes can be read; a load at the
    // end of the mapping is not tested.
    let bytes = unsafe { ptr::read_unaligned(rip as *const [u8; guarded_load::MARK.len()]) };
    bytes == guarded_load::MARK
}

extern "C" fn on_signal(signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a SA_SIGINFO handler its thread's ucontext_t, which nothing else
    // uses.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    let catcher = CATCHER.take();
    match &catcher {
        Some(Catcher { code, .. }) if code.contains(&rip) && is_guarded(rip) => {
            registers[libc::REG_RIP as usize] += guarded_load::CODE.len().cast_signed() as i64;
            registers[libc::REG_EFL as usize] |= CF;
        }
        Some(Catcher { code, resume }) if code.contains(&rip) => {
            let vector = registers[libc::REG_TRAPNO as usize];
            let address = registers[libc::REG_CR2 as usize];
            FAULT.set(Some(Fault {
                vector,
                error: registers[libc::REG_ERR as usize],
                address: (vector == PAGE_FAULT).then_some(address),
                rip,
            }));
            registers[libc::REG_RIP as usize] = resume.cast_signed();
        }
        _ => {
            // SAFETY: the default action needs no handler; the fault comes again and ends the test.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    CATCHER.set(catcher);
}
