//! Probes as users see them.

use exoprobe_vmm::Gva;
use serde::{Deserialize, Serialize};

use crate::definition::{Flag, ProbeKind};

/// How a probe's instruction runs displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplacedBy {
    /// The VMM does what the instruction does: one exit a hit.
    Emulation,
    /// Its copy in hidden memory, a jmp back behind it: one exit a hit.
    Boost,
    /// Its copy in hidden memory, an int3 behind it: two exits a hit.
    Step,
}

/// A registered probe and its books: `hits = recorded + filtered + lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeStatus {
    /// Number of the probe, never used again.
    pub id: u32,
    /// Kind.
    pub kind: ProbeKind,
    /// Group of its event.
    pub group: String,
    /// Name of its event.
    pub event: String,
    /// Function; absent when the address is outside all symbols.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Address of the probed instruction.
    #[serde(serialize_with = "as_text")]
    pub addr: Gva,
    /// `DISABLED` when it is.
    pub flags: Vec<Flag>,
    /// Times the guest hit it while it was enabled.
    pub hits: u64,
    /// Hits whose handler could not run.
    pub nmissed: u64,
    /// Hits that became events.
    pub recorded: u64,
    /// Hits that its filter dropped.
    pub filtered: u64,
    /// Hits whose event found no room.
    pub lost: u64,
    /// The probed instruction.
    pub instruction: String,
    /// How it runs.
    pub displaced: DisplacedBy,
    /// The guest changed its text there, so the probe is not armed any more.
    pub clobbered: bool,
    /// The definition as a line of kprobe_events.
    pub definition: String,
}

fn as_text<S: serde::Serializer>(addr: &Gva, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(addr)
}

impl ProbeStatus {
    /// Its line in kprobes/list (kprobes.rst, "The kprobes debugfs interface"), with the blanks of
    /// the kernel's own file: two between columns, one where a module's name would be.
    #[must_use]
    pub fn list_line(&self) -> String {
        let flags = if self.flags.contains(&Flag::Disabled) { "[DISABLED]" } else { "" };
        match &self.symbol_name {
            Some(symbol) => {
                format!("{:016x}  k  {symbol}+{:#x}    {flags}\n", self.addr.0, self.offset)
            }
            None => format!("{:016x}  k  {} {flags}\n", self.addr.0, self.addr),
        }
    }
}
