//! The program: HTTP, command line, messages, memory, attacks.

pub(super) mod adding;
pub(super) mod api;
pub(super) mod collecting;
pub(super) mod confinement;
pub(super) mod docs;
pub(super) mod events;
pub(super) mod hostile;
pub(super) mod jail;
pub(super) mod jail_users;
pub(super) mod live;
pub(super) mod messages;
pub(super) mod openapi;
pub(super) mod program;
pub(super) mod proxy;
pub(super) mod resident;
pub(super) mod script_commands;
pub(super) mod scripts;
pub(super) mod tools;
pub(super) mod unit;
