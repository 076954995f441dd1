//! The guest's devices.

pub(super) mod disks;
