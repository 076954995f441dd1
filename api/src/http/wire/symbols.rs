//! Symbols.

use exoprobe_introspect::SymbolKind;
use serde::Serialize;
use utoipa::ToSchema;

use super::Hex;

/// A symbol of the guest's kernel.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Symbol {
    /// Its name.
    #[schema(example = "vfs_read")]
    pub name: String,
    /// Where it is; of a per-CPU variable its offset.
    pub addr: Hex,
    /// Bytes; up to the next symbol where the kernel does not say.
    pub size: u64,
    /// `function` or `data`.
    #[schema(value_type = String, example = "function")]
    pub kind: &'static str,
    /// Seen outside its source file.
    pub global: bool,
    /// The module that has it; absent of the kernel's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Of a symbol that was asked for by an address: bytes from its start to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl From<exoprobe_introspect::Symbol<'_>> for Symbol {
    fn from(symbol: exoprobe_introspect::Symbol<'_>) -> Self {
        let kind = match symbol.kind {
            SymbolKind::Function => "function",
            SymbolKind::Data => "data",
        };
        Self {
            name: symbol.name.to_owned(),
            addr: Hex(symbol.address.0),
            size: symbol.size,
            kind,
            global: symbol.global,
            module: symbol.module.map(str::to_owned),
            offset: None,
        }
    }
}
