//! Facts about the running kernel's text besides its bytes, for the optimizer's safety check.

use std::collections::HashSet;
use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolKind;
use exoprobe_introspect::symbols::TextKind;

use crate::detour::{Targets, TextFacts};
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::view::GuestText;
use crate::insn::Assurances;

/// Names of the thunks that replace `jmp *REG` where mitigations need it
/// (arch/x86/lib/retpoline.S).
const THUNKS: [&str; 2] = ["__x86_indirect_thunk_*", "__x86_indirect_jump_thunk_*"];
/// Suffix that compilers give to the parts of a function that they move away.
const COLD: &str = ".cold";

/// The whole kernel, decoded once.
pub(crate) struct TextInfo {
    kernel: Arc<Kernel>,
    targets: Targets,
}

impl TextInfo {
    /// Decodes all functions of the resident text.
    pub(crate) fn new(text_of: GuestText<'_>, kernel: &Arc<Kernel>) -> Self {
        let (symbols, memory) = (&kernel.symbols, kernel.memory());
        let core = symbols.text_ranges().find(|range| range.kind == TextKind::Core);
        let text = core.map_or(Gva(0)..Gva(0), |range| range.start..range.end);
        let thunks: HashSet<Gva> = THUNKS
            .iter()
            .flat_map(|name| symbols.search(name))
            .map(|thunk| thunk.address)
            .collect();
        let mut targets = Targets::new(text.clone());
        let mut last = Gva(0);
        for symbol in symbols.iter().filter(|symbol| symbol.kind == SymbolKind::Function) {
            let Some(function) = symbols.function_at(symbol.address) else { continue };
            if function.start == last || !text.contains(&function.start) {
                continue;
            }
            last = function.start;
            if let Ok(bytes) = text_of.original(&memory, function.start, function.end) {
                targets.add_function(function.start, &bytes, |at| thunks.contains(&at));
            }
        }
        kernel.jump_targets().for_each(|at| targets.add(at));
        Self { kernel: Arc::clone(kernel), targets }
    }
}

impl TextFacts for TextInfo {
    fn assurances(&self) -> Assurances {
        self.kernel.assurances()
    }

    fn is_target(&self, at: Gva) -> bool {
        self.targets.contains(at)
    }

    fn follows_call(&self, at: Gva) -> bool {
        self.targets.follows_call(at)
    }

    fn indirect_jump(&self, at: Gva) -> Option<(String, Gva)> {
        let symbols = &self.kernel.symbols;
        let name = symbols.function_at(at)?.name;
        let base = name.split(COLD).next().unwrap_or(name);
        let parts = format!("{base}{COLD}*");
        let own = symbols.search(base).chain(symbols.search(&parts));
        own.into_iter().find_map(|part| {
            let at = self.targets.indirect_jump(part.address)?;
            Some((part.name.to_owned(), at))
        })
    }

    fn may_fault(&self, at: Gva) -> bool {
        self.kernel.may_fault(at)
    }

    fn is_rewritten(&self, at: Gva, len: usize) -> bool {
        (0..len as u64).any(|offset| self.kernel.is_rewritten(at.wrapping_add(offset)))
    }

    fn is_reserved(&self, at: Gva) -> bool {
        self.kernel.is_entry_text(at) || self.kernel.symbols.text_kind(at) != Some(TextKind::Core)
    }
}
