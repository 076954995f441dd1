//! Files of the kernel's kprobes folder of debugfs.

use exoprobe_probes::Reserved;
use serde::Serialize;
use utoipa::ToSchema;

use super::Hex;

/// A place where no probe may be, or no return probe.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BlacklistEntry {
    /// Its first address.
    pub start: Hex,
    /// The address after its last byte.
    pub end: Hex,
    /// The function, or what the range is called.
    #[schema(example = "asm_exc_nmi")]
    pub symbol: String,
    /// Kprobes may be there, and only return probes may not.
    pub returns_only: bool,
    /// Why, as it reads after "the instruction".
    #[schema(value_type = String)]
    pub reason: &'static str,
}

impl From<exoprobe_probes::BlacklistEntry> for BlacklistEntry {
    fn from(entry: exoprobe_probes::BlacklistEntry) -> Self {
        let exoprobe_probes::BlacklistEntry { start, end, symbol, reason } = entry;
        let returns_only = reason == Reserved::NoReturnAddress;
        Self { start: Hex(start.0), end: Hex(end.0), symbol, returns_only, reason: reason.why() }
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gva;

    use super::*;

    #[test]
    fn an_entry_has_its_range_and_reason() {
        let entry = exoprobe_probes::BlacklistEntry {
            start: Gva(0xffff_ffff_8100_0010),
            end: Gva(0xffff_ffff_8100_0080),
            symbol: "repeat_nmi".to_owned(),
            reason: Reserved::NmiEntry,
        };
        let entry = BlacklistEntry::from(entry);
        let json = serde_json::to_value(&entry).unwrap();
        assert_eq!(json["end"], "0xffffffff81000080");
        assert!(json["reason"].as_str().unwrap().contains("NMI"), "{json}");
    }
}
