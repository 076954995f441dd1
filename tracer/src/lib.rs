//! The kprobe event tracer (kprobetrace.rst) for a guest: its files, as texts. The engine's probes
//! are its events, also those that were registered otherwise; what the engine has no place for is
//! here: error_log.

mod buffer;
mod commands;
mod error;
mod event;
mod fault;
mod files;
mod filter;
mod format;
mod hist;
mod instance;
mod kept;
mod kprobes;
mod lines;
mod listed;
mod log;
mod node;
mod numbers;
mod options;
mod pages;
mod readers;
mod record;
mod ring;
mod scope;
mod set_event;
mod synthetic;
mod trigger;

pub use error::TracerError;
pub use files::{Item, Tracer};
pub use kprobes::{blacklist_text, list_text};
pub use node::NodeKind;
pub use numbers::parse_switch;
pub use readers::{KeptEvents, LinesReader, Pipe, RawPipe};
