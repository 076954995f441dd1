//! The checker's state.

use super::map_types::Maps;
use super::own_types::OwnTypes;
use super::state::BodyState;
use crate::diagnostic::Diagnostic;
use crate::kernel::Kernel;
use crate::syntax::Script;
use crate::types::StackMode;

/// Settings of a check. A script's `config` block changes some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Allows `system()` and `override()`.
    pub allow_unsafe: bool,
    /// `system()` has a shell to run its commands.
    pub has_shell: bool,
    /// Bytes that `str()` reads at most if it names no length (`max_strlen`).
    pub text_max: u32,
    /// Frames of `kstack` and `ustack` if they name no number.
    pub stack_frames: u32,
    /// How `kstack` and `ustack` are shown if they name no mode.
    pub stack_mode: StackMode,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allow_unsafe: false,
            has_shell: false,
            text_max: 1024,
            stack_frames: 127,
            stack_mode: StackMode::Bpftrace,
        }
    }
}

/// An error was reported.
pub(super) struct Reported;

pub(super) type Checked<T> = Result<T, Reported>;

/// Checks one script.
pub(super) struct Checker<'a> {
    pub(super) script: &'a Script,
    pub(super) kernel: &'a dyn Kernel,
    pub(super) options: Options,
    pub(super) own: OwnTypes,
    pub(super) maps: Maps,
    pub(super) errors: Vec<Diagnostic>,
    /// Probes of lists that the kernel does not have, each with the reason.
    pub(super) missing: Vec<String>,
    /// Probes of the actions so far.
    pub(super) points: usize,
    /// All types that can be inferred are: what is still unknown is an error.
    pub(super) is_last_pass: bool,
    /// The body that is checked.
    pub(super) body: BodyState,
    /// Entries of a map (`max_map_keys`).
    pub(super) map_entries: Option<u32>,
    /// Maps are shown at the end (`print_maps_on_exit`).
    pub(super) print_maps: bool,
    /// Expressions that were checked, all macros and loops expanded.
    pub(super) work: usize,
}

impl Checker<'_> {
    /// Fails with an error.
    pub(super) fn fail<T>(&mut self, error: Diagnostic) -> Checked<T> {
        self.errors.push(error);
        Err(Reported)
    }
}
