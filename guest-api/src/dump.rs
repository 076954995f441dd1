//! A dump's parts that only the engine knows.

use crate::addr::Gpa;

/// Parts of a dump besides memory and registers.
#[derive(Clone, Debug, Default)]
pub struct DumpNotes {
    /// The kernel's notes for dumps, lines `KEY=VALUE`.
    pub vmcoreinfo: Option<String>,
    /// Where the kernel maps all RAM (PAGE_OFFSET); `None` where it is not known.
    pub direct_map: Option<u64>,
    /// Bytes of the guest's own, where memory holds those of probes.
    pub original: Vec<(Gpa, u8)>,
}
