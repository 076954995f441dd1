//! The bpftrace language: parser, checker and evaluator. Nothing here probes: a script becomes a
//! [`Program`], whose probes another crate arms, and a [`Runtime`] that runs its bodies over hits.
//!
//! A body is split by data flow. [`Body::reads`] are the values that depend on nothing but the
//! hit; the rest is computed from them at any later time. A body with [`Body::needs_exit`] reads
//! the guest's memory at addresses that it computes, so it must run at the hit itself.

mod aggregate;
mod btf;
mod check;
mod diagnostic;
mod eval;
mod host;
mod ir;
mod kernel;
mod limits;
mod maps;
mod nearest;
mod print;
mod program;
mod syntax;
mod types;
mod value;

pub use btf::BtfTypes;
pub use check::{Options, check};
pub use diagnostic::{Diagnostic, Diagnostics, Span};
pub use eval::{Flow, Outcome, Runtime};
pub use host::{Collected, Host, Memory, NoHost, Output, SymbolOffset};
pub use kernel::{Kernel, NoKernel};
pub use limits::{LimitError, Limits};
pub use maps::MapBudget;
pub use print::Format;
pub use program::{
    Attachment, AttachmentKind, Base, Body, Chain, Datum, Hit, MemoryKind, OwnedDatum, Program,
    Read, Reason,
};
pub use syntax::{SCRIPT_MAX, Script};
pub use types::{
    Aggregate, Member, Parameter, Prototype, Record, RecordRef, StackMode, TseriesBy, Type,
};
