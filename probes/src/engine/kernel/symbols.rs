//! The symbols that the engine uses: the given ones, moved to KASLR's address, or else the kernel's
//! own, read from its memory.

use exoprobe_guest::Gva;
use exoprobe_guest::paging::{PAGE_SIZE, PAGE_SIZE_2M, PagingMode, translate};
use exoprobe_introspect::{SymbolTable, VirtualMemory, kallsyms};

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::view::KernelView;
use crate::engine::kernel::view::USER_TABLES;
use exoprobe_guest::Guest;

pub(crate) const SYSCALL_ENTRY: &str = "entry_SYSCALL_64";
/// The code by which both the first CPU and the others reach the kernel's own addresses.
const FIRST_CODE: &str = "secondary_startup_64";
/// Most bytes that this code extends after [`FIRST_CODE`].
const FIRST_CODE_MAX: u64 = 64 << 10;

/// The source of symbols.
pub(crate) struct SymbolSource<'a> {
    /// Given symbols, as linked.
    pub(crate) given: Option<&'a SymbolTable>,
    /// The running kernel's own symbols, once they have been read.
    pub(crate) found: &'a mut Option<SymbolTable>,
}

impl SymbolSource<'_> {
    /// The symbols of a kernel whose system-call entry is set.
    pub(crate) fn at_syscall_entry(
        &mut self,
        guest: &dyn Guest,
        mode: PagingMode,
        entry: Gva,
    ) -> Result<SymbolTable, AttachError> {
        match self.given {
            Some(given) => slide(given, entry),
            None => self.own(guest, mode, entry),
        }
    }

    /// The symbols of a kernel that runs its first instructions at its own addresses.
    pub(crate) fn at_first_code(
        &mut self,
        guest: &dyn Guest,
        mode: PagingMode,
        rip: Gva,
    ) -> Result<SymbolTable, AttachError> {
        match self.given {
            Some(given) => early_slide(given, rip),
            None => self.own(guest, mode, rip),
        }
    }

    fn own(
        &mut self,
        guest: &dyn Guest,
        mode: PagingMode,
        inside: Gva,
    ) -> Result<SymbolTable, AttachError> {
        if let Some(found) = self.found {
            return Ok(found.clone());
        }
        // Under page-table isolation a vCPU in user mode has tables that map little of the kernel;
        // its own root is the page before.
        let kernel = PagingMode { cr3: mode.cr3 & !USER_TABLES, ..mode };
        let place = |mode| translate(guest.ram(), mode, inside).ok().map(|found| found.gpa);
        let is_pair = place(kernel).is_some() && place(kernel) == place(mode);
        let mode = if is_pair { kernel } else { mode };
        let view = KernelView { ram: guest.ram().clone(), mode, early: None };
        let found = kallsyms::read(&VirtualMemory::with_mode(&view, mode), inside)?;
        tracing::info!(symbols = found.len(), "symbols from the guest's memory");
        Ok(self.found.insert(found).clone())
    }
}

/// KASLR moves all of the kernel by one distance, which its entry point gives.
fn slide(symbols: &SymbolTable, entry: Gva) -> Result<SymbolTable, AttachError> {
    let linked = linked_address(symbols, SYSCALL_ENTRY)?;
    let distance = entry.0.wrapping_sub(linked.0).cast_signed();
    if distance % PAGE_SIZE.cast_signed() != 0 {
        let text = format!("{SYSCALL_ENTRY} is at {linked} in them and at {entry} in the guest");
        return Err(AttachError::WrongSymbols(text));
    }
    Ok(symbols.with_slide(distance))
}

/// The distance is a multiple of 2 MiB (CONFIG_PHYSICAL_ALIGN), and `rip` is a little after a
/// symbol.
fn early_slide(symbols: &SymbolTable, rip: Gva) -> Result<SymbolTable, AttachError> {
    let linked = linked_address(symbols, FIRST_CODE)?;
    let distance = rip.0.wrapping_sub(linked.0);
    if distance % PAGE_SIZE_2M > FIRST_CODE_MAX {
        let text = format!("{FIRST_CODE} is at {linked} in them and the guest's begins at {rip}");
        return Err(AttachError::WrongSymbols(text));
    }
    Ok(symbols.with_slide((distance & !(PAGE_SIZE_2M - 1)).cast_signed()))
}

fn linked_address(symbols: &SymbolTable, name: &str) -> Result<Gva, AttachError> {
    let found = symbols.lookup_function(name);
    found.map(|symbol| symbol.address).map_err(|e| AttachError::WrongSymbols(e.to_string()))
}
