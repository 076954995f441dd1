//! Everything that registration changes, behind one lock.
//!
//! Changes when probes come, go or wait in a new way. It alone replaces the hit path's table, and
//! arms and disarms (`reconcile`): a site is in the table before its int3 is in the guest's text,
//! and leaves it only after the byte is back and every vCPU has been out of the guest.

pub(crate) mod advance;
pub(crate) mod boot;
pub(crate) mod marks;
pub(crate) mod modules;
pub(crate) mod optimize;
pub(crate) mod patrol;
pub(crate) mod place;
pub(crate) mod prepare;
pub(crate) mod reconcile;
pub(crate) mod register;
pub(crate) mod registry;
pub(crate) mod return_sites;
pub(crate) mod room;
pub(crate) mod siblings;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod types;
