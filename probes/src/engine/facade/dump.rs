//! The part of a dump that comes from the kernel's memory, and the places of probes' bytes in it.

use std::sync::Arc;

use exoprobe_guest::{DumpNotes, Gva};
use exoprobe_introspect::{SymbolTable, VmCoreInfo};

use crate::engine::facade::engine::{Engine, KeptProbes};
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::text::INT3;
use crate::engine::probe::site::Site;

/// Where x86-64 kernels are linked, but for those with another CONFIG_PHYSICAL_START.
const LINKED_TEXT: u64 = 0xffff_ffff_8100_0000;
const TEXT: &str = "_text";
/// Where a kernel with four levels of page tables maps all RAM, unless a variable has it
/// (Documentation/arch/x86/x86_64/mm.rst).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const DIRECT_MAP_VARIABLE: &str = "page_offset_base";

impl Engine {
    /// Gives the notes for `Vm::dump` of exoprobe-vmm; of a kernel that is not known, nothing but
    /// the guest's own bytes.
    #[must_use]
    pub fn dump_notes(&self) -> (KeptProbes<'_>, DumpNotes) {
        let (control, kernel) = match self.look() {
            Ok((control, kernel)) => (control, Some(kernel)),
            Err(error) => {
                tracing::info!(%error, "a dump without notes of the kernel");
                (self.lock(), None)
            }
        };
        let given = control.kernel.symbols.as_ref();
        let mut notes = kernel.map(|kernel| notes_of(given, &kernel)).unwrap_or_default();
        let ram = self.guest.ram();
        // The guest may have written over one.
        let has_int3 = |site: &&Arc<Site>| site.armed && ram.load_byte(site.gpa) == Ok(INT3);
        let kept = KeptProbes::new(self, control);
        let sites = kept.control.registry.sites.values().filter(has_int3);
        notes.original = sites.map(|site| (site.gpa, site.own_text()[0])).collect();
        notes.original.extend(kept.control.optimizer.original_bytes(ram));
        (kept, notes)
    }
}

fn notes_of(given: Option<&SymbolTable>, kernel: &Kernel) -> DumpNotes {
    let (memory, symbols) = (kernel.memory(), &kernel.symbols);
    let own = VmCoreInfo::read(&memory, symbols);
    let info = own.or_else(|| {
        let linked = given.and_then(|given| given.address_of(TEXT));
        let offset = symbols.address_of(TEXT)?.0.wrapping_sub(linked.unwrap_or(Gva(LINKED_TEXT)).0);
        let release = kernel.banner().ok()?.text.split_whitespace().nth(2)?.to_owned();
        VmCoreInfo::made(&memory, symbols, &release, offset, memory.mode().levels == 5)
    });
    let variable = symbols.address_of(DIRECT_MAP_VARIABLE);
    DumpNotes {
        vmcoreinfo: info.map(|info| info.text().to_owned()),
        direct_map: variable.map_or(Some(DIRECT_MAP), |at| memory.read_u64(at).ok()),
        original: Vec::new(),
    }
}
