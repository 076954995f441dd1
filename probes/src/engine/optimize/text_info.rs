//! Facts about the running kernel's text besides its bytes, for the optimizer's safety check.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolKind;
use exoprobe_introspect::symbols::TextKind;

use crate::detour::{BRANCHES_MAX, Targets, TextFacts};
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::view::GuestText;
use crate::insn::Assurances;

/// Names of the thunks that replace `jmp *REG` where mitigations need it
/// (arch/x86/lib/retpoline.S).
const THUNKS: [&str; 2] = ["__x86_indirect_thunk_*", "__x86_indirect_jump_thunk_*"];
/// Suffix that compilers give to the parts of a function that they move away.
const COLD: &str = ".cold";

/// The whole kernel's text, of which functions are decoded as they are asked about.
pub(crate) struct TextInfo {
    kernel: Arc<Kernel>,
    targets: Targets,
    thunks: HashSet<Gva>,
}

impl TextInfo {
    /// Scans all functions of the resident text.
    pub(crate) fn new(text_of: GuestText<'_>, kernel: &Arc<Kernel>) -> Self {
        let symbols = &kernel.symbols;
        let core = symbols.text_ranges().find(|range| range.kind == TextKind::Core);
        let text = core.map_or(Gva(0)..Gva(0), |range| range.start..range.end);
        let thunks = THUNKS.iter().flat_map(|name| symbols.search(name));
        let thunks = thunks.map(|thunk| thunk.address).collect();
        let functions = symbols.iter().filter(|symbol| symbol.kind == SymbolKind::Function);
        let mut functions: Vec<Range<Gva>> = functions
            .filter_map(|symbol| symbols.function_at(symbol.address))
            .filter(|function| text.contains(&function.start))
            .map(|function| function.start..function.end)
            .collect();
        functions.dedup_by_key(|function| function.start);
        let mut targets = Targets::new(text, functions);
        kernel.jump_targets().for_each(|at| targets.add(at));
        let memory = kernel.memory();
        let read = |function: Range<Gva>| text_of.original(&memory, function.start, function.end);
        targets.scan(BRANCHES_MAX, |function| read(function).ok());
        Self { kernel: Arc::clone(kernel), targets, thunks }
    }

    /// Decodes all that has to be known of a jmp at `at`.
    pub(crate) fn learn(&mut self, text_of: GuestText<'_>, at: Gva) {
        for function in self.targets.functions_near(at) {
            self.decode(text_of, &function);
        }
        for (_, start) in self.parts_of(at) {
            if let Some(function) = self.targets.function_from(start) {
                self.decode(text_of, &function);
            }
        }
    }

    fn decode(&mut self, text_of: GuestText<'_>, function: &Range<Gva>) {
        let read = text_of.original(&self.kernel.memory(), function.start, function.end);
        // Of one that cannot be read nothing is known.
        let bytes = read.unwrap_or_default();
        self.targets.decode(function.start, &bytes, |at| self.thunks.contains(&at));
    }

    /// Names and starts of the function at `at` and of its parts that lie elsewhere.
    fn parts_of(&self, at: Gva) -> Vec<(String, Gva)> {
        let symbols = &self.kernel.symbols;
        let Some(function) = symbols.function_at(at) else { return Vec::new() };
        let base = function.name.split(COLD).next().unwrap_or(function.name);
        let parts = format!("{base}{COLD}*");
        let own = symbols.search(base).chain(symbols.search(&parts));
        own.map(|part| (part.name.to_owned(), part.address)).collect()
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
        let mut parts = self.parts_of(at).into_iter();
        parts.find_map(|(name, start)| Some((name, self.targets.indirect_jump(start)?)))
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
