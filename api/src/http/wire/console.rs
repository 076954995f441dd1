//! The virtio console.

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The virtio console of the guest.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ConsoleStatus {
    /// Columns of its terminal; 0 until its size is set.
    pub columns: u16,
    /// Rows of its terminal; 0 until its size is set.
    pub rows: u16,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns, 1 to 65535.
    #[schema(value_type = u16, minimum = 1, example = 120)]
    pub columns: NonZeroU16,
    /// Rows, 1 to 65535.
    #[schema(value_type = u16, minimum = 1, example = 40)]
    pub rows: NonZeroU16,
}

impl From<TerminalSize> for exoprobe_vmm::TerminalSize {
    fn from(TerminalSize { columns, rows }: TerminalSize) -> Self {
        Self { columns: columns.get(), rows: rows.get() }
    }
}

impl From<exoprobe_vmm::TerminalSize> for ConsoleStatus {
    fn from(exoprobe_vmm::TerminalSize { columns, rows }: exoprobe_vmm::TerminalSize) -> Self {
        Self { columns, rows }
    }
}
