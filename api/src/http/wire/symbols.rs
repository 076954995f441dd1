//! Symbols.

use exoprobe_introspect::{SourceLocation, SymbolKind};
use serde::{Deserialize, Serialize};
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
    /// Where the code at that address comes from; absent where no file has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// A line of the kernel's source, `FILE:LINE`. The file is a path from the folder that the kernel
/// was built in, or the end of one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(example = "kernel/sys.c:950", pattern = r"^[^:]{1,4095}:[1-9][0-9]{0,8}$")]
pub struct SourceLine(pub String);

impl SourceLine {
    /// The file and the line.
    pub(crate) fn parse(&self) -> Option<(&str, u32)> {
        let (file, line) = self.0.split_once(':')?;
        let digits = line.len() <= 9 && line.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = digits && !line.starts_with('0') && !line.is_empty();
        let is_file = (1..=4095).contains(&file.chars().count());
        (is_number && is_file).then_some((file, line.parse().ok()?))
    }
}

/// Where an instruction comes from.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Source {
    /// The source file, from the folder that the kernel was built in.
    #[schema(example = "kernel/sys.c")]
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, where the compiler recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The inlined calls that the instruction is in, innermost first.
    pub inlined: Vec<InlinedCall>,
}

/// A call in whose place the compiler put the called function's code.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct InlinedCall {
    /// The function that is called; null where that is not known.
    #[schema(example = "task_tgid_vnr")]
    pub function: Option<String>,
    /// The source file where it is called; null where that is not known.
    pub file: Option<String>,
    /// The line there.
    pub line: Option<u32>,
}

impl From<SourceLocation> for Source {
    fn from(location: SourceLocation) -> Self {
        let SourceLocation { place, inlined, .. } = location;
        let inlined = inlined.into_iter().map(|call| {
            let (file, line) = call.caller.map(|place| (place.file, place.line)).unzip();
            InlinedCall { function: call.function, file, line }
        });
        let inlined = inlined.collect();
        Self { file: place.file, line: place.line, column: place.column, inlined }
    }
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
            source: None,
        }
    }
}
