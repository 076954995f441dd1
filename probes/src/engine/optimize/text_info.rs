//! Facts about a text besides its bytes, for the optimizer's safety check: the running kernel's, or
//! that of one of its modules.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::symbols::TextKind;
use exoprobe_introspect::{Symbol, SymbolKind};

use crate::detour::{BRANCHES_MAX, Targets, TextFacts};
use crate::engine::kernel::modules::Loaded;
use crate::engine::kernel::running::Kernel;
use crate::engine::patch::view::GuestText;
use crate::insn::Assurances;

/// Names of the thunks that replace `jmp *REG` where mitigations need it
/// (arch/x86/lib/retpoline.S).
const THUNKS: [&str; 3] =
    ["__x86_indirect_thunk_*", "__x86_indirect_jump_thunk_*", "__x86_indirect_its_thunk_*"];
/// Suffix that compilers give to the parts of a function that they move away.
const COLD: &str = ".cold";
/// All functions of a module may have so many times the bytes of its text: some have two names.
const OVERLAPS: u64 = 2;
/// So many of a module's functions may begin within another: a look for the functions near an
/// address passes over them.
const NESTED_MAX: usize = 512;

/// The reason why nothing is known of a module's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownText {
    #[error("its text at {0} is not mapped, or has more than 1 MiB without a symbol")]
    Unreadable(Gva),
    #[error("its functions lie upon one another")]
    Overlapping,
    #[error("at {0}, outside of its functions, may be an indirect jump, whose target is not known")]
    IndirectJump(Gva),
}

/// A whole text, of which functions are decoded as they are asked about.
pub(crate) struct TextInfo {
    kernel: Arc<Kernel>,
    /// `None` if it is the kernel's own.
    module: Option<Arc<Loaded>>,
    targets: Targets,
    thunks: HashSet<Gva>,
}

impl TextInfo {
    /// Scans all functions of the kernel's resident text.
    pub(crate) fn new(text_of: GuestText<'_>, kernel: &Arc<Kernel>) -> Self {
        let symbols = &kernel.symbols;
        let core = symbols.text_ranges().find(|range| range.kind == TextKind::Core);
        let text = core.map_or(Gva(0)..Gva(0), |range| range.start..range.end);
        let functions = functions_in(kernel, &text, symbols.iter());
        let mut targets = Targets::new(text, functions);
        kernel.jump_targets().for_each(|at| targets.add(at));
        let memory = kernel.memory();
        let read = |function: Range<Gva>| text_of.original(&memory, function.start, function.end);
        targets.scan(BRANCHES_MAX, |function| read(function).ok());
        Self { kernel: Arc::clone(kernel), module: None, targets, thunks: thunks(kernel) }
    }

    /// Scans all of a module's text, also between its functions, for at most so many branches. Its
    /// text for initialization must have gone.
    pub(crate) fn of_module(
        text_of: GuestText<'_>,
        kernel: &Arc<Kernel>,
        module: &Arc<Loaded>,
        branches: usize,
    ) -> Result<Self, UnknownText> {
        let text = module.module.text.clone();
        let own = format!("{}:*", module.module.name);
        let functions = functions_in(kernel, &text, kernel.symbols.search(&own));
        let len = |range: &Range<Gva>| range.end.0.saturating_sub(range.start.0);
        let most = len(&text).saturating_mul(OVERLAPS);
        if functions.iter().map(len).sum::<u64>() > most || nested(&functions) > NESTED_MAX {
            return Err(UnknownText::Overlapping);
        }
        let memory = kernel.memory();
        let read = |range: Range<Gva>| {
            let read = text_of.original(&memory, range.start, range.end).ok();
            let whole = read.filter(|bytes| bytes.len() as u64 == len(&range));
            whole.ok_or(UnknownText::Unreadable(range.start))
        };
        let between = gaps(&text, &functions);
        let mut targets = Targets::new(text, functions);
        module.jump_targets().for_each(|at| targets.add(at));
        for gap in between {
            let bytes = read(gap.clone())?;
            if let Some(jmp) = targets.add_any(gap.start, &bytes) {
                return Err(UnknownText::IndirectJump(jmp));
            }
        }
        let mut failed = None;
        targets.scan(branches, |function| read(function).map_err(|why| failed = Some(why)).ok());
        match failed {
            Some(why) => Err(why),
            None => Ok(Self {
                kernel: Arc::clone(kernel),
                module: Some(Arc::clone(module)),
                targets,
                thunks: thunks(kernel),
            }),
        }
    }

    /// Number of noted branches.
    pub(crate) fn branches(&self) -> usize {
        self.targets.branches()
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
        let Self { kernel, module, targets, thunks } = self;
        let read = text_of.original(&kernel.memory(), function.start, function.end);
        // Of one that cannot be read nothing is known.
        let bytes = read.unwrap_or_default();
        // The kernel makes thunks for modules in memory without symbols.
        let is_made = |at| module.is_some() && !kernel.symbols.text_contains(at);
        targets.decode(function.start, &bytes, |at| thunks.contains(&at) || is_made(at));
    }

    /// Names and starts of the function at `at` and of its parts that lie elsewhere.
    fn parts_of(&self, at: Gva) -> Vec<(String, Gva)> {
        let symbols = &self.kernel.symbols;
        let Some(function) = symbols.function_at(at) else { return Vec::new() };
        let base = function.name.split(COLD).next().unwrap_or(function.name);
        // No compiler makes such a name, which would be a pattern here.
        if base.contains(['*', '?', '[']) {
            return Vec::new();
        }
        let base = match &self.module {
            Some(loaded) => format!("{}:{base}", loaded.module.name),
            None => base.to_owned(),
        };
        let parts = format!("{base}{COLD}*");
        let own = symbols.search(&base).chain(symbols.search(&parts));
        own.map(|part| (part.name.to_owned(), part.address)).collect()
    }
}

/// The functions among some symbols that begin in a text, in order, no two of one start.
fn functions_in<'a>(
    kernel: &Kernel,
    text: &Range<Gva>,
    symbols: impl Iterator<Item = Symbol<'a>>,
) -> Vec<Range<Gva>> {
    let functions = symbols.filter(|symbol| symbol.kind == SymbolKind::Function);
    let mut functions: Vec<Range<Gva>> = functions
        .filter_map(|symbol| kernel.symbols.function_at(symbol.address))
        .filter(|function| text.contains(&function.start))
        .map(|function| function.start..function.end)
        .collect();
    functions.sort_unstable_by_key(|function| function.start);
    functions.dedup_by_key(|function| function.start);
    functions
}

/// Number of functions that begin within another. They are in order.
fn nested(functions: &[Range<Gva>]) -> usize {
    let mut end = Gva(0);
    let mut begins_within = |function: &&Range<Gva>| {
        let is_within = function.start < end;
        end = end.max(function.end);
        is_within
    };
    functions.iter().filter(|function| begins_within(function)).count()
}

/// The parts of a text that are in none of its functions, which are in order.
fn gaps(text: &Range<Gva>, functions: &[Range<Gva>]) -> Vec<Range<Gva>> {
    let (mut gaps, mut at) = (Vec::new(), text.start);
    let end = text.end..text.end;
    for function in functions.iter().chain([&end]) {
        if at < function.start {
            gaps.push(at..function.start);
        }
        at = at.max(function.end);
    }
    gaps
}

fn thunks(kernel: &Kernel) -> HashSet<Gva> {
    let found = THUNKS.iter().flat_map(|name| kernel.symbols.search(name));
    found.map(|thunk| thunk.address).collect()
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
        match &self.module {
            Some(module) => module.may_fault(at),
            None => self.kernel.may_fault(at),
        }
    }

    fn is_rewritten(&self, at: Gva, len: usize) -> bool {
        let mut places = (0..len as u64).map(|offset| at.wrapping_add(offset));
        match &self.module {
            Some(module) => places.any(|at| module.is_rewritten(at)),
            None => places.any(|at| self.kernel.is_rewritten(at)),
        }
    }

    fn is_reserved(&self, at: Gva) -> bool {
        match &self.module {
            Some(module) => !module.module.text.contains(&at),
            None => {
                self.kernel.is_entry_text(at)
                    || self.kernel.symbols.text_kind(at) != Some(TextKind::Core)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_begin_within_others_are_counted() {
        let functions = |all: &[(u64, u64)]| -> Vec<Range<Gva>> {
            all.iter().map(|(start, end)| Gva(*start)..Gva(*end)).collect()
        };
        assert_eq!(nested(&functions(&[(0, 4), (4, 8), (16, 20)])), 0);
        assert_eq!(nested(&functions(&[(0, 16), (1, 2), (3, 4), (15, 20), (18, 19), (20, 21)])), 4);
    }
}
