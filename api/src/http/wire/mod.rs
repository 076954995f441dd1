//! JSON as it goes over the wire, converted from and to the types of the crates below.

mod action;
mod console;
mod events;
mod histograms;
mod kprobes;
mod memory;
mod modules;
mod probes;
mod scripts;
mod symbols;
mod tasks;
mod types;
mod vm;

pub use action::{Action, GivenAction, Number, NumberText, Width};
pub use console::{ConsoleStatus, TerminalSize};
pub use events::{EventLine, EventName, Lost, ServerSentEvent};
pub use histograms::{Histogram, HistogramEntry, HistogramKey, HistogramNumber};
pub use kprobes::BlacklistEntry;
pub use memory::{CodeLine, Memory};
pub use modules::Module;
pub use probes::{
    Address, AddressText, Changed, ProbeChange, ProbeReport, ProbeRequest, ProbeRequests,
    ProbesChange, RefusedProbe, Registered, Unregistered,
};
pub use scripts::{
    ArmedBy, NewScript, OutputFormat, Script, ScriptArming, ScriptCommand, ScriptCommands,
    ScriptEvent, ScriptProbe, ScriptState,
};
pub use symbols::{InlinedCall, Source, SourceLine, Symbol};
pub use tasks::Process;
pub use types::{EnumValue, Member, Type, TypeName};
pub use vm::{
    DumpRequest, DumpWritten, Reason, Regs, Snapshot, SnapshotRequest, State, Stopped,
    VcpuRegisters, VmStatus,
};

use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

/// A place in the guest's kernel: an address, or `SYMBOL[+OFFSET]`, of a module also as
/// `MODULE:SYMBOL`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(
    example = "jiffies",
    pattern = r"^(0x0*[0-9a-fA-F]{1,16}|[1-9][0-9]{0,18}|([A-Za-z_][A-Za-z0-9_]*:)?[A-Za-z_.][A-Za-z0-9_.$]*(\+(0x0*[0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18}))?)$"
)]
pub struct Place(pub String);

/// A place in the guest's memory: as [`Place`], or a register of a vCPU, `%REG[+OFFSET]`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(
    example = "jiffies",
    pattern = r"^(%([a-d]x|[sd]i|[bs]p|r[89]|r1[0-5]|ip|flags)(\+(0x0*[0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18}))?|0x0*[0-9a-fA-F]{1,16}|[1-9][0-9]{0,18}|([A-Za-z_][A-Za-z0-9_]*:)?[A-Za-z_.][A-Za-z0-9_.$]*(\+(0x0*[0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18}))?)$"
)]
pub struct DataPlace(pub String);

/// A switch's state, in any case of letters.
#[derive(Clone, Debug, ToSchema)]
#[schema(
    example = "0",
    pattern = r"^[ \t\n\f\r]*([01yYnNtTfF]|[oO][nN]|[oO][fF][fF]|[yY][eE][sS]|[nN][oO]|[tT][rR][uU][eE]|[fF][aA][lL][sS][eE])[ \t\n\f\r]*$"
)]
pub struct Switch(pub String);

/// A 64-bit number as hexadecimal text: a JSON number holds only 53 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, example = "0xffffffff81000000")]
pub struct Hex(pub u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}
