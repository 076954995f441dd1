//! The guest's devices.

pub(super) mod console;
pub(super) mod disks;
pub(super) mod net;
pub(super) mod reboots;
pub(super) mod vsock;
