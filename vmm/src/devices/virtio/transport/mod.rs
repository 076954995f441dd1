//! Virtio over PCI (Virtual I/O Device 1.2, 4.1): the function that a driver finds, for any device.

mod common;
#[cfg(any(test, feature = "testing"))]
mod driven;
#[cfg(test)]
mod hostile;
mod kick;
mod pci;

#[cfg(any(test, feature = "testing"))]
pub use driven::DrivenPci;
pub(crate) use kick::Ioevents;
pub(crate) use pci::{BAR_LEN, VirtioPci};
