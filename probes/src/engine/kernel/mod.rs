//! Knowledge of the running kernel: its symbols, special text, modules, tasks and ORC tables.
//!
//! Changes when a kernel keeps something elsewhere. Reads the guest's memory, and knows no probe.

pub(crate) mod error;
pub(crate) mod mapped;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod orc;
pub(crate) mod own_kprobes;
pub(crate) mod patched;
pub(crate) mod reserved;
pub(crate) mod roots;
pub(crate) mod running;
pub(crate) mod state;
pub(crate) mod symbols;
pub(crate) mod tables;
pub(crate) mod tasks;
pub(crate) mod view;
