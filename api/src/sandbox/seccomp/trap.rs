//! The end of the process at a forbidden system call: the kernel sends SIGSYS in place of the call
//! (SECCOMP_RET_TRAP), whose handler says which it was. A killed process could not.

use std::cell::Cell;
use std::io;
use std::mem;

use libc::{c_int, c_long, c_void, siginfo_t};

use super::kind::Kind;
use super::names;

/// Exit status of the process: that of Firecracker for the same.
pub const STATUS: i32 = 148;
/// `si_code` of the signal of a filter (asm-generic/siginfo.h).
const SYS_SECCOMP: c_int = 1;
/// The longest name of a thread, with its NUL (prctl(2), PR_GET_NAME).
const NAME_LEN: usize = 16;

thread_local! {
    /// The kind of this thread. The service's own inherit their filter, and are not asked.
    static KIND: Cell<&'static str> = const { Cell::new(Kind::Service.name()) };
}

/// Sets the kind of this thread, for the message.
pub(super) fn set_kind(kind: Kind) {
    KIND.set(kind.name());
}

/// `siginfo_t` of SIGSYS (sigaction(2)).
#[repr(C)]
struct SysInfo {
    signo: c_int,
    errno: c_int,
    code: c_int,
    padding: c_int,
    call_address: *mut c_void,
    number: c_int,
    arch: u32,
}

/// Installs the signal's handler, once in the process or again.
///
/// # Errors
/// sigaction's.
pub(super) fn install_handler() -> io::Result<()> {
    const { assert!(size_of::<SysInfo>() <= size_of::<siginfo_t>()) };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_sigsys;
    // SAFETY: all zeros is a valid `sigaction`, a plain C structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the structure lives across the call, and the handler is a function of this program
    // that only does what a signal's handler may.
    let result = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigsys(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a `siginfo_t`, which is larger and has these members for SIGSYS.
    let info = unsafe { &*info.cast::<SysInfo>() };
    let forbidden = (info.code == SYS_SECCOMP).then_some(info.number);
    let mut name = [0_u8; NAME_LEN];
    // SAFETY: the call writes at most `NAME_LEN` bytes. All filters allow it.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
    let mut text = Text::default();
    message(&mut text, &name[..len], KIND.get(), forbidden);
    let bytes = text.as_bytes();
    // SAFETY: the bytes live across the call. There is no place to report a failure.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: it ends the process, and runs nothing of it.
    unsafe { libc::_exit(STATUS) };
}

fn message(text: &mut Text, thread: &[u8], kind: &str, forbidden: Option<c_int>) {
    let Some(number) = forbidden else {
        return text.push(b"the service ends: it was sent SIGSYS\n");
    };
    text.push(b"the service ends: its thread `");
    text.push(thread);
    text.push(b"` (");
    text.push(kind.as_bytes());
    text.push(b") made the system call ");
    if let Some(name) = names::name(c_long::from(number)) {
        text.push(name.as_bytes());
        text.push(b", ");
    }
    text.push(b"number ");
    text.push_number(number.unsigned_abs());
    text.push(b", which its seccomp filter forbids; --no-seccomp runs without filters\n");
}

/// Bytes without an allocation; those that do not fit are left out.
struct Text {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }
}

impl Text {
    fn push(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes[self.len..].iter_mut().zip(bytes) {
            *to = *from;
            self.len += 1;
        }
    }

    fn push_number(&mut self, number: u32) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + u8::try_from(number % 10).unwrap_or_default()]);
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_thread_kind_and_call() {
        let of = |thread: &str, number| {
            let mut text = Text::default();
            message(&mut text, thread.as_bytes(), "disk", number);
            String::from_utf8(text.as_bytes().to_vec()).unwrap()
        };
        assert_eq!(
            of("disk waits", Some(libc::c_int::try_from(libc::SYS_execve).unwrap())),
            "the service ends: its thread `disk waits` (disk) made the system call execve, number 59, \
             which its seccomp filter forbids; --no-seccomp runs without filters\n"
        );
        assert!(of("a", Some(9999)).contains("the system call number 9999, which"));
        assert!(of("a", None).contains("sent SIGSYS"));
        assert_eq!(of(&"x".repeat(400), Some(0)).len(), 256, "it is cut");
    }
}
