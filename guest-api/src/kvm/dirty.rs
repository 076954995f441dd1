//! KVM's dirty log (Documentation/virt/kvm/api.rst, 4.8, 4.117 and 7.14).

use kvm_bindings::{
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_DIRTY_LOG_INITIALLY_SET,
    KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEM_LOG_DIRTY_PAGES, KVMIO, kvm_clear_dirty_log,
    kvm_dirty_log, kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{Error, VmFd};
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::{ioctl_iow_nr, ioctl_iowr_nr};

use super::memory::slots;
use crate::addr::to_usize;
use crate::dirty::{DirtyLog, DirtyLogError, PageRun, PageSet, WORD_PAGES};
use crate::memory::GuestRam;
use crate::paging::PAGE_SIZE;

ioctl_iow_nr!(KVM_GET_DIRTY_LOG, KVMIO, 0x42, kvm_dirty_log);
ioctl_iowr_nr!(KVM_CLEAR_DIRTY_LOG, KVMIO, 0xc0, kvm_clear_dirty_log);

/// [`DirtyLog`] of KVM, over the slots of [`super::register_memory`].
///
/// Only the calls of [`DirtyLog::clear`] make KVM protect pages, so that it never holds the lock of
/// its page tables for long (KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, Linux 5.7).
pub struct KvmDirtyLog<'a> {
    vm: &'a VmFd,
    slots: Vec<kvm_userspace_memory_region>,
    bitmaps: Vec<Vec<u64>>,
}

fn kvm(step: &'static str) -> impl Fn(Error) -> DirtyLogError {
    move |source| DirtyLogError::Kvm { step, source }
}

impl<'a> KvmDirtyLog<'a> {
    /// Starts to log what the vCPUs of `vm` write into `ram`. No other log of these slots may be
    /// open.
    ///
    /// # Errors
    /// [`DirtyLogError::Unsupported`] before Linux 5.7, and KVM's.
    ///
    /// # Safety
    /// [`super::register_memory`] has mapped `ram` in `vm`.
    pub unsafe fn start(vm: &'a VmFd, ram: &GuestRam) -> Result<Self, DirtyLogError> {
        let cap = KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2;
        let mut request = kvm_enable_cap { cap, ..kvm_enable_cap::default() };
        let flags = KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET;
        request.args[0] = u64::from(flags);
        if vm.enable_cap(&request).is_err() {
            return Err(DirtyLogError::Unsupported(
                "KVM has no manual dirty log (KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, Linux 5.7)",
            ));
        }
        let mut log = Self { vm, slots: Vec::new(), bitmaps: Vec::new() };
        for slot in slots(ram, KVM_MEM_LOG_DIRTY_PAGES) {
            let words = slot.memory_size.div_ceil(PAGE_SIZE * WORD_PAGES);
            // SAFETY: the slot is there, as the caller says; only its flags change.
            unsafe { vm.set_user_memory_region(slot) }.map_err(kvm("log the guest's writes"))?;
            log.slots.push(slot);
            log.bitmaps.push(vec![0; to_usize(words)]);
        }
        Ok(log)
    }
}

impl DirtyLog for KvmDirtyLog<'_> {
    fn read(&mut self, pages: &mut PageSet) -> Result<(), DirtyLogError> {
        for (range, (slot, bitmap)) in self.slots.iter().zip(&mut self.bitmaps).enumerate() {
            let mut request = kvm_dirty_log { slot: slot.slot, ..kvm_dirty_log::default() };
            request.__bindgen_anon_1.dirty_bitmap = bitmap.as_mut_ptr().cast();
            // SAFETY: the kernel writes a bit for each page of the slot, in words of 64; the bitmap
            // has so many.
            let done = unsafe { ioctl_with_ref(self.vm, KVM_GET_DIRTY_LOG(), &request) };
            if done != 0 {
                return Err(kvm("report the pages that the guest wrote")(Error::last()));
            }
            pages.add(range, bitmap);
        }
        Ok(())
    }

    fn clear(&mut self, pages: &PageRun) -> Result<(), DirtyLogError> {
        let Some(slot) = self.slots.get(pages.range) else { return Ok(()) };
        let count = pages.left.min(pages.words.len() as u64 * WORD_PAGES);
        let mut request = kvm_clear_dirty_log {
            slot: slot.slot,
            num_pages: u32::try_from(count).unwrap_or(u32::MAX),
            first_page: pages.first,
            ..kvm_clear_dirty_log::default()
        };
        request.__bindgen_anon_1.dirty_bitmap = pages.words.as_ptr().cast_mut().cast();
        // SAFETY: the kernel reads a bit for each of `num_pages`, in words of 64; it writes none.
        let done = unsafe { ioctl_with_ref(self.vm, KVM_CLEAR_DIRTY_LOG(), &request) };
        if done != 0 {
            return Err(kvm("log pages again that the guest wrote")(Error::last()));
        }
        Ok(())
    }
}

impl Drop for KvmDirtyLog<'_> {
    fn drop(&mut self) {
        for slot in &self.slots {
            let slot = kvm_userspace_memory_region { flags: 0, ..*slot };
            // A slot that KVM goes on logging costs the guest time, and nothing else.
            // SAFETY: as in `start`.
            let _ = unsafe { self.vm.set_user_memory_region(slot) };
        }
    }
}
