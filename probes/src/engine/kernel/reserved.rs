//! Places that no probe may be at, by name and reason (kprobes.rst, "Blacklist").
//!
//! The in-kernel blacklist is far longer: it must contain everything that the handling of a
//! breakpoint runs through. Here nothing of the guest runs for a breakpoint, so its handlers of
//! int3, page faults and NMIs, its scheduler and its text patching can all be probed.

use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolTable;

/// Run at another address than their symbol's, or on page tables that do not map hidden memory.
const ELSEWHERE: &[&str] = &[
    "startup_64",
    "__startup_64",
    "startup_64_setup_env",
    "startup_64_load_idt",
    "startup_64_setup_gdt_idt",
    "early_setup_idt",
    "secondary_startup_64",
    "secondary_startup_64_no_verify",
    "__startup_secondary_64",
    "start_cpu0",
    "soft_restart_cpu",
    "verify_cpu",
    "sev_verify_cbit",
    "xen_start_kernel",
    "startup_xen",
    "pvh_start_xen",
    "relocate_kernel",
    "identity_mapped",
    "virtual_mapped",
    "swap_pages",
    "sme_encrypt_execute",
    "__enc_copy",
    "sme_encrypt_kernel",
    "core_restore_code",
    "restore_image",
    "restore_registers",
    "wakeup_long64",
    "trampoline_start64",
    "efi32_stub_entry",
    "efi64_stub_entry",
    "__efi64_thunk",
];

/// The NMI entry recognizes a nested NMI by the interrupted address, which a slot would change.
const NMI_ENTRY: &[&str] = &[
    "asm_exc_nmi",
    "nested_nmi",
    "nested_nmi_out",
    "first_nmi",
    "repeat_nmi",
    "end_repeat_nmi",
    "nmi_no_fsgsbase",
    "nmi",
    "nmi_swapgs",
    "nmi_restore",
];

/// At their entry the top of the stack is not a return address, or they change it.
const NO_RETURN_ADDRESS: &[&str] = &[
    "ret_from_fork",
    "ret_from_fork_asm",
    "return_to_handler",
    "__fentry__",
    "ftrace_caller",
    "ftrace_regs_caller",
    "ftrace_stub",
    "__x86_return_thunk",
    "__x86_return_skl",
    "srso_return_thunk",
    "srso_alias_return_thunk",
    "retbleed_return_thunk",
    "entry_ibpb",
    "native_irq_return_iret",
    "asm_load_gs_index",
    "error_entry",
    "error_return",
    "paranoid_entry",
    "paranoid_exit",
    "sync_regs",
];
/// Likewise: retpolines, which make a return address of their target.
const NO_RETURN_ADDRESS_PREFIX: &str = "__x86_indirect_";

/// A place on the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlacklistEntry {
    /// Its first address.
    pub start: Gva,
    /// The address after its last byte.
    pub end: Gva,
    /// The function, or the name of the range.
    pub symbol: String,
    /// Why no probe may be there.
    pub reason: Reserved,
}

/// The reason why the function of this name takes no probe.
pub(crate) fn by_name(name: &str) -> Option<Reserved> {
    // Suffixes of the compiler and linker (`.part.0`, `.cold`) do not make it another function.
    let name = name.split('.').next().unwrap_or(name);
    if ELSEWHERE.contains(&name) {
        Some(Reserved::Elsewhere)
    } else if NMI_ENTRY.contains(&name) {
        Some(Reserved::NmiEntry)
    } else {
        None
    }
}

/// The reason why the function of this name takes no return probe.
pub(crate) fn return_by_name(name: &str) -> Option<Reserved> {
    let listed = NO_RETURN_ADDRESS.contains(&name) || name.starts_with(NO_RETURN_ADDRESS_PREFIX);
    listed.then_some(Reserved::NoReturnAddress)
}

/// The entries by name, for this kernel.
pub(crate) fn named_entries(symbols: &SymbolTable) -> Vec<BlacklistEntry> {
    let mut entries = Vec::new();
    for symbol in symbols.iter() {
        let reason = by_name(symbol.name).or_else(|| return_by_name(symbol.name));
        if let (Some(reason), Some(bounds)) = (reason, symbols.function_at(symbol.address)) {
            let (start, end) = (symbol.address, bounds.end);
            entries.push(BlacklistEntry { start, end, symbol: symbol.name.to_owned(), reason });
        }
    }
    entries
}

/// Text that the guest's kernel treats specially, so that no probe may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// In the exception table: a fault is fixed up by the instruction's address, or by decoding it.
    ExceptionTable,
    /// A static key's branch, which the kernel rewrites and checks.
    JumpLabel,
    /// A static call, likewise.
    StaticCall,
    /// Init text, which the kernel frees once it has booted.
    InitText,
    /// Entry code, which may run on page tables without hidden memory (KPTI).
    EntryText,
    /// Runs at another address than its symbol's, or on page tables of its own.
    Elsewhere,
    /// The NMI's entry, which recognizes nested NMIs by the interrupted address.
    NmiEntry,
    /// No return probe: at its entry there is no return address on the stack.
    NoReturnAddress,
}

impl Reserved {
    /// The reason, as a phrase that follows "the instruction".
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::ExceptionTable => {
                "may fault and be fixed up by its address or its bytes (exception table)"
            }
            Self::JumpLabel => "is a static key's branch, which the kernel itself rewrites",
            Self::StaticCall => "belongs to a static call, which the kernel itself rewrites",
            Self::InitText => "is init text, whose memory the kernel frees after boot",
            Self::EntryText => "is entry code, which may run where hidden memory is not mapped",
            Self::Elsewhere => {
                "runs at another address than its symbol's, or on page tables of its own"
            }
            Self::NmiEntry => {
                "belongs to the NMI's entry, which recognizes nested NMIs by their address"
            }
            Self::NoReturnAddress => {
                "has no return address on the stack, so that no return probe can be there"
            }
        }
    }
}
