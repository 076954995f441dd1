//! JSON as it goes over the wire, converted from and to the types of the crates below.

mod action;
mod events;
mod kprobes;
mod memory;
mod modules;
mod probes;
mod stack;
mod symbols;
mod tasks;
mod types;
mod vm;

pub use action::{Action, Number};
pub use events::{Event, Lost, StackFrame};
pub use kprobes::BlacklistEntry;
pub use memory::{CodeLine, Memory};
pub use modules::Module;
pub use probes::{
    Address, ProbeChange, ProbeRequest, ProbeRequests, ProbeStatus, Registered, Unregistered,
};
pub use stack::Frame;
pub use symbols::{InlinedCall, Source, Symbol};
pub use tasks::Process;
pub use types::{EnumValue, Member, Type, TypeName};
pub use vm::{
    DumpRequest, DumpWritten, Reason, Regs, Snapshot, SnapshotRequest, State, Stopped,
    VcpuRegisters, VmStatus,
};

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// A 64-bit number as hexadecimal text: a JSON number holds only 53 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, example = "0xffffffff81000000")]
pub struct Hex(pub u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}
