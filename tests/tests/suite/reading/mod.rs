//! The guest's memory read: tasks, types, lines, dead guests, dumps.

pub(super) mod dead;
pub(super) mod dump;
pub(super) mod source_lines;
pub(super) mod tasks;
pub(super) mod types;
