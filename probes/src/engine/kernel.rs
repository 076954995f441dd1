//! The running kernel as the engine needs to know it: that it is far enough, where its symbols
//! really are, and which of its instructions it treats specially.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use exoprobe_introspect::symbols::TextKind;
use exoprobe_introspect::{ExceptionTable, SymbolTable, VirtualMemory};
use exoprobe_vmm::Gva;
use exoprobe_vmm::paging::{PagingMode, translate};

use super::guest::{Guest, KernelView};
use crate::error::{AttachError, Reserved};

/// IA32_LSTAR: the system-call entry, set once the kernel has taken over its page tables.
const MSR_LSTAR: u32 = 0xc000_0082;
const SYSCALL_ENTRY: &str = "entry_SYSCALL_64";
/// enum system_states: 0 is SYSTEM_BOOTING, left after alternatives have been patched.
const SYSTEM_STATE: &str = "system_state";
/// Root of the kernel's own page tables (swapper_pg_dir in C).
const PAGE_TABLES: &str = "init_top_pgt";
/// Prefix of trampolines' names (STATIC_CALL_TRAMP_PREFIX).
const STATIC_CALL_TRAMPOLINE: &str = "__SCT__";
/// Largest kernel table read, in bytes: ten times a distribution kernel's.
const TABLE_MAX: u64 = 8 << 20;

/// A kernel that can be probed.
pub(crate) struct Kernel {
    pub(crate) symbols: SymbolTable,
    pub(crate) view: KernelView,
    entry_text: Range<Gva>,
    extable: ExceptionTable,
    jump_labels: HashSet<Gva>,
    static_calls: HashSet<Gva>,
}

/// A kernel table of place-relative 32-bit addresses, one at the start of each entry.
struct RelativeTable {
    name: &'static str,
    start: &'static str,
    stop: &'static str,
    entry: u64,
}

/// include/linux/jump_label.h: code, target (32 bits each), key (64 bits).
const JUMP_LABELS: RelativeTable = RelativeTable {
    name: "__jump_table",
    start: "__start___jump_table",
    stop: "__stop___jump_table",
    entry: 16,
};

/// include/linux/static_call_types.h: addr, key (32 bits each).
const STATIC_CALLS: RelativeTable = RelativeTable {
    name: ".static_call_sites",
    start: "__start_static_call_sites",
    stop: "__stop_static_call_sites",
    entry: 8,
};

impl Kernel {
    /// Looks at the guest; `symbols` are as linked.
    ///
    /// # Errors
    /// [`AttachError::Booting`] until the kernel's text is final.
    pub(crate) fn attach(
        guest: &Arc<dyn Guest>,
        symbols: &SymbolTable,
    ) -> Result<Self, AttachError> {
        if symbols.is_empty() {
            return Err(AttachError::NoSymbols);
        }
        let entry = Gva(guest.msr(MSR_LSTAR)?);
        if entry == Gva(0) {
            return Err(AttachError::Booting);
        }
        let symbols = slide(symbols, entry)?;
        let view =
            KernelView::new(Arc::clone(guest), kernel_paging(guest.as_ref(), &symbols, entry)?);
        let memory = VirtualMemory::with_mode(&view, view.mode);
        if !text_is_final(&memory, &symbols) {
            return Err(AttachError::Booting);
        }
        guest.hidden().map(guest.ram(), view.mode)?;
        let entry_text = entry_text(&symbols);
        let extable = ExceptionTable::read(&memory, &symbols)?;
        let jump_labels = JUMP_LABELS.read(&memory, &symbols)?;
        let static_calls = STATIC_CALLS.read(&memory, &symbols)?;
        Ok(Self { symbols, view, entry_text, extable, jump_labels, static_calls })
    }

    /// Memory as the kernel sees it.
    pub(crate) fn memory(&self) -> VirtualMemory<'_, KernelView> {
        VirtualMemory::with_mode(&self.view, self.view.mode)
    }

    /// How the kernel treats the instruction at `at`, if specially.
    pub(crate) fn reserved(&self, at: Gva) -> Option<Reserved> {
        if self.symbols.text_kind(at) == Some(TextKind::Init) {
            Some(Reserved::InitText)
        } else if self.entry_text.contains(&at) {
            Some(Reserved::EntryText)
        } else if self.extable.covers(at) {
            Some(Reserved::ExceptionTable)
        } else if self.jump_labels.contains(&at) {
            Some(Reserved::JumpLabel)
        } else if self.static_calls.contains(&at) || self.is_static_call_trampoline(at) {
            Some(Reserved::StaticCall)
        } else {
            None
        }
    }
}

impl Kernel {
    /// A static call's trampoline, in which the kernel wants to find its own jmp or ret.
    fn is_static_call_trampoline(&self, at: Gva) -> bool {
        self.symbols.function_at(at).is_some_and(|f| f.name.starts_with(STATIC_CALL_TRAMPOLINE))
    }
}

/// With KASLR all of the kernel is moved by one distance, so its entry point tells it.
fn slide(symbols: &SymbolTable, entry: Gva) -> Result<SymbolTable, AttachError> {
    let linked = symbols
        .lookup_function(SYSCALL_ENTRY)
        .map_err(|e| AttachError::WrongSymbols(e.to_string()))?
        .address;
    let distance = entry.0.wrapping_sub(linked.0).cast_signed();
    if distance % 4096 != 0 {
        let text = format!("{SYSCALL_ENTRY} is at {linked} in them and at {entry} in the guest");
        return Err(AttachError::WrongSymbols(text));
    }
    Ok(symbols.with_slide(distance))
}

/// The kernel's own page tables, which stay for as long as it runs. Those of the moment may be a
/// process's, gone when it exits, or the user half of a KPTI pair; but all map the entry point, and
/// the kernel's image is contiguous in physical memory.
fn kernel_paging(
    guest: &dyn Guest,
    symbols: &SymbolTable,
    entry: Gva,
) -> Result<PagingMode, AttachError> {
    let s = guest.sregs()?;
    let mode = PagingMode::from_registers(s.cr0, s.cr3, s.cr4, s.efer)?;
    let root = symbols.lookup(PAGE_TABLES).map_err(|e| AttachError::WrongSymbols(e.to_string()))?;
    let entry_gpa = translate(guest.ram(), mode, entry)?.gpa;
    let cr3 = entry_gpa.0.wrapping_add(root.address.0.wrapping_sub(entry.0));
    let kernel = PagingMode { cr3, ..mode };
    match translate(guest.ram(), kernel, root.address) {
        Ok(found) if found.gpa.0 == cr3 => Ok(kernel),
        _ => Err(AttachError::WrongSymbols(format!("{PAGE_TABLES} does not map itself"))),
    }
}

/// Linux's section of entry code; empty when the symbols do not name it.
fn entry_text(symbols: &SymbolTable) -> Range<Gva> {
    let edge = |name| symbols.lookup(name).map(|symbol| symbol.address);
    match (edge("__entry_text_start"), edge("__entry_text_end")) {
        (Ok(start), Ok(end)) => start..end,
        _ => Gva(0)..Gva(0),
    }
}

fn text_is_final(memory: &VirtualMemory<'_, KernelView>, symbols: &SymbolTable) -> bool {
    let Ok(state) = symbols.lookup(SYSTEM_STATE) else { return true };
    let mut word = [0; 4];
    memory.read(state.address, &mut word).is_ok() && u32::from_le_bytes(word) != 0
}

impl RelativeTable {
    /// The addresses in the table; none when the kernel has no such table.
    fn read(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        symbols: &SymbolTable,
    ) -> Result<HashSet<Gva>, AttachError> {
        let (Ok(start), Ok(stop)) = (symbols.lookup(self.start), symbols.lookup(self.stop)) else {
            return Ok(HashSet::new());
        };
        let fail = |reason: String| AttachError::KernelTable { table: self.name, reason };
        let len = stop.address.0.wrapping_sub(start.address.0);
        if len > TABLE_MAX || len % self.entry != 0 {
            return Err(fail(format!("it has {len} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(len).expect("at most 8 MiB")];
        memory.read(start.address, &mut bytes).map_err(|e| fail(e.to_string()))?;
        let step = usize::try_from(self.entry).expect("16 or 8");
        let places = (0..).step_by(step).zip(bytes.chunks_exact(step));
        Ok(places
            .map(|(at, entry)| {
                let relative = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
                let place = start.address.wrapping_add(at);
                place.wrapping_add(i64::from(relative).cast_unsigned())
            })
            .collect())
    }
}
