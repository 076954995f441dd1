//! Getting a vCPU thread out of KVM_RUN. The signal's handler sets `immediate_exit`, so a signal
//! that comes just before KVM_RUN is not lost (Documentation/virt/kvm/api.rst, 5, immediate_exit).

use std::cell::Cell;
use std::sync::OnceLock;
use std::thread::JoinHandle;

use kvm_ioctls::VcpuFd;
use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::signal::{Killable, register_signal_handler};

thread_local! {
    /// `immediate_exit` of this thread's vCPU; null in all other threads.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
}

/// The first real-time signal that the C library leaves to programs.
fn kick_signal() -> c_int {
    libc::SIGRTMIN()
}

extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let flag = IMMEDIATE_EXIT.get();
    if !flag.is_null() {
        // SAFETY: `arm` stored a pointer into this thread's own kvm_run mapping and `disarm` takes it
        // out before the mapping goes. KVM reads the byte; nobody else writes it meanwhile.
        unsafe { flag.write_volatile(1) };
    }
}

/// Installs the signal's handler, once in the process.
///
/// # Errors
/// The errno of sigaction.
pub(super) fn install_handler() -> Result<(), i32> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    *DONE.get_or_init(|| register_signal_handler(kick_signal(), on_kick).map_err(|e| e.errno()))
}

/// Makes this thread kickable for as long as the guard lives.
pub(super) struct Armed(());

impl Armed {
    pub(super) fn new(vcpu: &mut VcpuFd) -> Self {
        IMMEDIATE_EXIT.set(&raw mut vcpu.get_kvm_run().immediate_exit);
        Self(())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(std::ptr::null_mut());
    }
}

/// Kicks the vCPU of `thread`.
pub(super) fn kick(thread: &JoinHandle<()>) {
    if let Err(error) = thread.kill(kick_signal()) {
        tracing::error!(%error, "cannot kick a vCPU");
    }
}
