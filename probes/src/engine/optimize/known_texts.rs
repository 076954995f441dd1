//! Facts about the texts that probes are in: the kernel's own, and each module's.

use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::ModuleState;

use crate::detour::BRANCHES_MAX;
use crate::engine::kernel::modules::Loaded;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::text_info::{TextInfo, UnknownText};
use crate::engine::patch::view::GuestText;

/// Most bytes of text of all modules that are scanned: several times a distribution kernel's.
const TEXT_MAX: u64 = 128 << 20;

/// The reason why a module's text cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unjudged {
    #[error("{0} is in its text for initialization, which is freed")]
    InitText(Gva),
    #[error("its text for initialization is not freed yet, and may have jumps into it")]
    Beginning,
    #[error("it is not live yet, or being unloaded")]
    NotLive,
    #[error("it is a live patch, and the kernel relocates its text later")]
    LivePatch,
    #[error("there is no breakpoint at free_module, so its end would not be known in time")]
    Unwatched,
    #[error("the modules with probes have more than {} MiB of text", TEXT_MAX >> 20)]
    TooMuch,
    #[error(transparent)]
    Text(#[from] UnknownText),
}

/// Checks whether the text at `at` can be judged now, as far as that depends on its module.
pub(crate) fn check_module(kernel: &Kernel, at: Gva) -> Result<(), Unjudged> {
    let Some(loaded) = kernel.module_at(at) else { return Ok(()) };
    match &loaded.module {
        module if !module.text.contains(&at) => Err(Unjudged::InitText(at)),
        module if !module.init_text.is_empty() => Err(Unjudged::Beginning),
        module if module.live_patch => Err(Unjudged::LivePatch),
        // It may be past the breakpoint at its end.
        module if module.state != ModuleState::Live => Err(Unjudged::NotLive),
        _ if !loaded.is_watched => Err(Unjudged::Unwatched),
        _ => Ok(()),
    }
}

/// The texts that were asked about.
#[derive(Default)]
pub(crate) struct KnownTexts {
    core: Option<TextInfo>,
    modules: Vec<(Arc<Loaded>, Result<TextInfo, UnknownText>)>,
}

impl KnownTexts {
    /// Returns the facts about the text that `at` is in, with those that a jmp there depends on.
    pub(crate) fn learn(
        &mut self,
        text: GuestText<'_>,
        kernel: &Arc<Kernel>,
        at: Gva,
    ) -> Result<&TextInfo, Unjudged> {
        let info = match kernel.module_at(at) {
            None => self.core.get_or_insert_with(|| TextInfo::new(text, kernel)),
            Some(module) => self.of_module(text, kernel, module)?,
        };
        info.learn(text, at);
        Ok(info)
    }

    fn of_module(
        &mut self,
        text: GuestText<'_>,
        kernel: &Arc<Kernel>,
        module: &Arc<Loaded>,
    ) -> Result<&mut TextInfo, Unjudged> {
        let known = self.modules.iter().position(|(known, _)| known.is_as_read(module));
        let index = match known {
            Some(index) => index,
            None => {
                let all = self.modules.iter().map(|(known, _)| known).chain([module]);
                let len = |it: &Arc<Loaded>| it.module.text.end.0 - it.module.text.start.0;
                if all.map(len).sum::<u64>() > TEXT_MAX {
                    return Err(Unjudged::TooMuch);
                }
                let noted = self.modules.iter().flat_map(|(_, info)| info).map(TextInfo::branches);
                let left = BRANCHES_MAX.saturating_sub(noted.sum());
                let info = TextInfo::of_module(text, kernel, module, left);
                self.modules.push((Arc::clone(module), info));
                self.modules.len() - 1
            }
        };
        self.modules[index].1.as_mut().map_err(|why| Unjudged::Text(why.clone()))
    }

    /// Drops the modules that are no longer there as they were read.
    pub(crate) fn keep_modules_of(&mut self, kernel: &Kernel) {
        let is_there = |known: &Loaded| kernel.modules.iter().any(|it| it.is_as_read(known));
        self.modules.retain(|(known, _)| is_there(known));
    }
}
