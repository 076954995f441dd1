//! Takes a vCPU thread out of KVM_RUN. The signal's handler sets `immediate_exit`, so a signal just
//! before KVM_RUN is not lost (Documentation/virt/kvm/api.rst, 5, immediate_exit).

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::thread::JoinHandle;

use kvm_bindings::kvm_run;
use kvm_ioctls::VcpuFd;
use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::errno::Error;
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
        // SAFETY: `Armed::new` stored a pointer into a mapping that outlives the guard, whose drop
        // takes the pointer out. No reference leads into that mapping.
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

/// A mapping of a vCPU's kvm_run for the signal's handler alone. `VcpuFd`'s own mapping is borrowed
/// mutably whenever the vCPU runs, so no pointer into it may be kept.
pub(super) struct RunPage(*mut u8);

// SAFETY: the pointer is to a mapping of the process, not of a thread, and only its owner uses it.
unsafe impl Send for RunPage {}

/// Bytes that are mapped: `immediate_exit` is in the first page.
const RUN_PAGE: usize = 4096;

impl RunPage {
    /// Maps the page of `vcpu`.
    ///
    /// # Errors
    /// The errno of mmap.
    pub(super) fn map(vcpu: &VcpuFd) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (nowhere, fd) = (std::ptr::null_mut(), vcpu.as_raw_fd());
        // SAFETY: a new mapping, which replaces none; the descriptor is open.
        let at = unsafe { libc::mmap(nowhere, RUN_PAGE, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(at.cast())) }
    }

    fn immediate_exit(&self) -> *mut u8 {
        const { assert!(offset_of!(kvm_run, immediate_exit) < RUN_PAGE) };
        self.0.wrapping_add(offset_of!(kvm_run, immediate_exit))
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, of that length; guards that lead into it borrow
        // `self`.
        unsafe { libc::munmap(self.0.cast(), RUN_PAGE) };
    }
}

/// Makes this thread kickable while the guard lives.
pub(super) struct Armed<'a>(PhantomData<&'a RunPage>);

impl<'a> Armed<'a> {
    pub(super) fn new(page: &'a RunPage) -> Self {
        IMMEDIATE_EXIT.set(page.immediate_exit());
        Self(PhantomData)
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(std::ptr::null_mut());
    }
}

/// Takes the vCPU of `thread` out of KVM_RUN, or makes its next KVM_RUN return at once.
///
/// # Errors
/// The errno of pthread_kill.
pub(super) fn kick(thread: &JoinHandle<()>) -> Result<(), Error> {
    thread.kill(kick_signal())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_this_thread() {
        on_kick(kick_signal(), std::ptr::null_mut(), std::ptr::null_mut());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no KVM")]
    fn a_kick_reaches_kvm_run_by_a_mapping_of_its_own() {
        let Ok(kvm) = kvm_ioctls::Kvm::new() else {
            eprintln!("skipped, without /dev/kvm: a_kick_reaches_kvm_run_by_a_mapping_of_its_own");
            return;
        };
        let vm = kvm.create_vm().unwrap();
        let mut vcpu = vm.create_vcpu(0).unwrap();
        let page = RunPage::map(&vcpu).unwrap();
        let vcpus_own: *mut kvm_run = vcpu.get_kvm_run();
        assert_ne!(page.0.cast(), vcpus_own, "it is borrowed mutably whenever the vCPU runs");
        let armed = Armed::new(&page);
        on_this_thread();
        assert_eq!(vcpu.get_kvm_run().immediate_exit, 1);
        vcpu.set_kvm_immediate_exit(0);
        drop(armed);
        on_this_thread();
        assert_eq!(vcpu.get_kvm_run().immediate_exit, 0, "this thread has no vCPU any more");
    }

    #[test]
    fn a_kick_is_sound_while_the_page_is_armed_and_does_nothing_after() {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which replaces none.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), RUN_PAGE, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let page = RunPage(at.cast());
        // SAFETY: the flag is in the page, which is mapped, and no reference leads there.
        let flag = || unsafe { page.immediate_exit().read_volatile() };
        on_this_thread();
        assert_eq!(flag(), 0);
        let armed = Armed::new(&page);
        on_this_thread();
        assert_eq!(flag(), 1);
        drop(armed);
        drop(page);
        on_this_thread();
    }
}
