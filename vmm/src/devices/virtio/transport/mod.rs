//! Virtio over PCI (Virtual I/O Device 1.2, 4.1): the function that a driver finds, for any device.

mod common;
mod pci;

pub(crate) use pci::{BAR_LEN, VirtioPci};
