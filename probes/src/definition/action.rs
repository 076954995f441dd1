//! Actions of a hit, as data: handlers without Rust.

use serde::{Deserialize, Serialize};

use super::fetch::Fetch;
use super::number::hex_number;
use super::register::Register;

/// One step of a handler. They run in the definition's order, before the probed instruction
/// (kprobes) or when the function has returned (return probes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Write an event with the definition's arguments.
    Record,
    /// Write an event that has the back-trace as well.
    Stack,
    /// Only count the hit: it counts as filtered.
    Count,
    /// Change a register.
    SetReg {
        /// The register; not `ip` (see `return`), nor `flags`.
        reg: Register,
        /// Its new value.
        #[serde(with = "hex_number")]
        value: u64,
    },
    /// Write guest memory. Nothing happens if none is mapped.
    WriteMem {
        /// The place that a fetch argument of this text would read: `@ADDR`, `+OFFS(BODY)`,
        /// `$stackN`.
        to: Fetch,
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
        /// The value, in the guest's byte order.
        #[serde(with = "hex_number")]
        value: u64,
    },
    /// Leave the function at once with this value, as if its code had returned it: error injection.
    /// Only at a function's entry, and last.
    Return(#[serde(with = "hex_number")] u64),
    /// Pause the machine at this hit, for inspection, until it is resumed.
    Stop,
}

impl Action {
    /// Writes an event.
    #[must_use]
    pub fn records(&self) -> bool {
        matches!(self, Self::Record | Self::Stack)
    }
}
