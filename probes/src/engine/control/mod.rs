//! Everything that registration changes, guarded by one lock.
//!
//! Changes when probes come, go or wait in a new way. Only this folder replaces the hit path's
//! table, and arms and disarms (`reconcile`). A site is in the table before its int3 is in the
//! guest's text. It leaves the table only after the byte is restored and every vCPU has been out of
//! the guest.

pub(crate) mod advance;
pub(crate) mod boot;
pub(crate) mod guest_patches;
pub(crate) mod instances;
pub(crate) mod lock;
pub(crate) mod marks;
pub(crate) mod modules;
pub(crate) mod optimize;
pub(crate) mod patrol;
pub(crate) mod place;
pub(crate) mod prepare;
pub(crate) mod reconcile;
pub(crate) mod register;
pub(crate) mod registry;
pub(crate) mod rehearse;
pub(crate) mod return_sites;
pub(crate) mod room;
pub(crate) mod siblings;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod synthetic;
pub(crate) mod triggered;
pub(crate) mod types;
