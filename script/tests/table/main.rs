//! The rows of the tables of docs/bpftrace.md that no other test has.

#[path = "../common/mod.rs"]
mod common;

mod builtins;
mod config;
mod functions;
mod language;
mod printf;
mod probes;
mod random;
mod refused;
mod types;
