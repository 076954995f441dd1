//! Prepares the guest for probes: the only place that maps hidden memory and redirects faults.

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::running::Kernel;
use exoprobe_guest::Guest;
use exoprobe_guest::paging::PagingMode;
use exoprobe_guest::{Gva, fault_fixup, kvm_sregs};

/// Prepares the guest for probes: maps hidden memory and, if the kernel's text is final, redirects
/// faults of slots. Returns the kernel with the resulting assurances, or `None` if the guest was
/// prepared already.
///
/// # Errors
/// [`AttachError`]: hidden memory cannot be mapped, or the guest has changed its entry.
pub(crate) fn prepare(
    kernel: &Kernel,
    guest: &dyn Guest,
    sregs: impl FnOnce() -> Result<kvm_sregs, AttachError>,
) -> Result<Option<Kernel>, AttachError> {
    let is_new = kernel.is_unprepared();
    if is_new || kernel.has_booted() {
        guest.hidden().map(guest.ram(), kernel.mode_now())?;
    }
    if !is_new {
        return Ok(None);
    }
    let redirects =
        kernel.may_redirect_faults() && fixes_faults(guest, kernel.view.mode, &sregs()?);
    Ok(Some(kernel.prepared(redirects)))
}

fn fixes_faults(guest: &dyn Guest, mode: PagingMode, sregs: &kvm_sregs) -> bool {
    let (base, limit) = (Gva(sregs.idt.base), sregs.idt.limit);
    match fault_fixup::install(guest.ram(), guest.hidden(), mode, base, limit) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "faults of displaced instructions show the copy's address");
            false
        }
    }
}
