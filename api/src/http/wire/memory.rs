//! The guest kernel's memory and code.

use std::fmt::Write;

use serde::Serialize;
use utoipa::ToSchema;

use super::Hex;

/// Bytes of the guest's kernel.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Memory {
    /// Address of the first.
    pub addr: Hex,
    /// The bytes, two hexadecimal digits each.
    #[schema(example = "554889e5")]
    pub bytes: String,
}

/// An instruction of the guest's kernel.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CodeLine {
    /// Its address.
    pub addr: Hex,
    /// Its bytes, as they are without probes.
    #[schema(example = "4889e5")]
    pub bytes: String,
    /// It as text, in Intel's order of operands; `(bad)` for a byte that begins none.
    #[schema(example = "mov rbp,rsp")]
    pub text: String,
    /// Where it branches to; null where its bytes do not say so.
    #[schema(example = "vfs_read+0x40")]
    pub target: Option<String>,
    /// Names of the probes there, with their groups.
    pub probes: Vec<String>,
    /// Its source file and line, where known and not those of the instruction before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "fs/read_write.c:460")]
    pub source: Option<String>,
}

impl Memory {
    /// These bytes from `addr` on.
    #[must_use]
    pub fn new(addr: u64, bytes: &[u8]) -> Self {
        Self { addr: Hex(addr), bytes: digits(bytes) }
    }
}

impl From<exoprobe_probes::CodeLine> for CodeLine {
    fn from(line: exoprobe_probes::CodeLine) -> Self {
        let exoprobe_probes::CodeLine { at, bytes, text, target, probes } = line;
        Self { addr: Hex(at.0), bytes: digits(&bytes), text, target, probes, source: None }
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
