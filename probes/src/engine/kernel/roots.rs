//! The roots of the kernel's page tables.

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::symbols::SYSCALL_ENTRY;
use crate::engine::kernel::view::KernelView;
use crate::engine::kernel::view::USER_TABLES;
use exoprobe_guest::Guest;
use exoprobe_guest::paging::{PagingMode, translate};
use exoprobe_guest::{Gva, kvm_sregs};
use exoprobe_introspect::SymbolTable;

/// Root of the kernel's own page tables (swapper_pg_dir in C).
const PAGE_TABLES: &str = "init_top_pgt";

/// The kernel's own page tables, which stay while it runs. The present ones may be a process's,
/// which are freed when it exits, or the user half of a KPTI pair; but all of them map the entry
/// point.
pub(crate) fn kernel_paging(
    guest: &dyn Guest,
    s: &kvm_sregs,
    symbols: &SymbolTable,
    entry: Gva,
) -> Result<PagingMode, AttachError> {
    let now = PagingMode::of(s)?;
    let kernel = own_tables(guest, now, symbols, entry)?;
    match translate(guest.ram(), kernel, root_address(symbols)?) {
        Ok(found) if found.gpa.0 == kernel.cr3 => Ok(kernel),
        _ => Err(AttachError::WrongSymbols(format!("{PAGE_TABLES} does not map itself"))),
    }
}

fn root_address(symbols: &SymbolTable) -> Result<Gva, AttachError> {
    let root = symbols.lookup(PAGE_TABLES);
    root.map(|symbol| symbol.address).map_err(|e| AttachError::WrongSymbols(e.to_string()))
}

/// Address of the kernel's own root, by its distance from text that `now` maps: the kernel's image
/// is contiguous in physical memory.
pub(crate) fn own_tables(
    guest: &dyn Guest,
    now: PagingMode,
    symbols: &SymbolTable,
    text: Gva,
) -> Result<PagingMode, AttachError> {
    let text_gpa = translate(guest.ram(), now, text)?.gpa;
    let cr3 = text_gpa.0.wrapping_add(root_address(symbols)?.0.wrapping_sub(text.0));
    Ok(PagingMode { cr3, ..now })
}

/// Returns true if the kernel uses other page tables in user mode (KPTI). Those follow its own, and
/// map the entry code to the same place.
pub(crate) fn isolates_page_tables(view: &KernelView, symbols: &SymbolTable) -> bool {
    let Some(entry) = symbols.address_of(SYSCALL_ENTRY) else { return true };
    // With KPTI, the two roots are aligned as a pair.
    if view.mode.cr3 & USER_TABLES != 0 {
        return false;
    }
    let user = PagingMode { cr3: view.mode.cr3 | USER_TABLES, ..view.mode };
    let place = |mode| translate(&view.ram, mode, entry).map(|found| found.gpa);
    matches!((place(view.mode), place(user)), (Ok(kernel), Ok(user)) if kernel == user)
}
