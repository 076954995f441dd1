//! Modules of the guest.

use serde::Serialize;
use utoipa::ToSchema;

use super::Hex;

/// A loadable module of the guest.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Module {
    /// Its name.
    #[schema(example = "ext4")]
    pub name: String,
    /// As in /proc/modules: `Live`, `Loading` or `Unloading`.
    #[schema(value_type = String, example = "Live")]
    pub state: &'static str,
    /// Where its text is, without that for initialization.
    pub addr: Hex,
    /// Bytes of it.
    pub size: u64,
    /// How many symbols it has: functions and data.
    pub symbols: usize,
    /// Names of the probes in it, with their groups.
    #[schema(example = json!(["kprobes/read"]))]
    pub probes: Vec<String>,
}

impl From<exoprobe_probes::ModuleStatus> for Module {
    fn from(module: exoprobe_probes::ModuleStatus) -> Self {
        let exoprobe_probes::ModuleStatus { name, state, text, symbols, probes } = module;
        let size = text.end.0.saturating_sub(text.start.0);
        Self { name, state: state.name(), addr: Hex(text.start.0), size, symbols, probes }
    }
}
