//! The kernel tracer's files.

pub(super) mod documentation;
pub(super) mod event_files;
pub(super) mod instance_triggers;
pub(super) mod instances;
pub(super) mod oracle;
pub(super) mod perf;
pub(super) mod readers;
pub(super) mod shell;
pub(super) mod trace_cmd;
pub(super) mod trace_files;
pub(super) mod tracefs;
pub(super) mod triggers;
