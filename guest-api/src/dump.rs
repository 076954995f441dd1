//! The parts of a dump that only the engine knows.

use crate::addr::Gpa;

/// Parts of a dump besides memory and registers.
#[derive(Clone, Debug, Default)]
pub struct DumpNotes {
    /// The kernel's notes for dumps, lines `KEY=VALUE`.
    pub vmcoreinfo: Option<String>,
    /// Address at which the kernel maps all RAM (PAGE_OFFSET); `None` if it is not known.
    pub direct_map: Option<u64>,
    /// The guest's own bytes, where memory contains those of probes.
    pub original: Vec<(Gpa, u8)>,
}
