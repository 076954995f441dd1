//! The program: HTTP, command line, messages, memory, attacks.

pub(super) mod adding;
pub(super) mod api;
pub(super) mod collecting;
pub(super) mod docs;
pub(super) mod events;
pub(super) mod hostile;
pub(super) mod messages;
pub(super) mod openapi;
pub(super) mod program;
pub(super) mod resident;
