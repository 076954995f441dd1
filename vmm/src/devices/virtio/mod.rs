//! Virtio devices (Virtual I/O Device 1.2), a folder each, over PCI: stock kernels find them
//! without words on the command line and without ACPI.

#[cfg(test)]
mod bench;
pub(crate) mod blk;
pub(crate) mod console;
mod device;
#[cfg(feature = "testing")]
mod driven;
pub(crate) mod net;
#[cfg(test)]
mod raised;
pub(crate) mod rng;
mod transport;
mod unix;
pub(crate) mod vsock;
mod worker;

pub(crate) use device::{Activation, QueueHandle, VirtioDevice};
#[cfg(any(test, feature = "testing"))]
pub use transport::DrivenPci;
pub(crate) use transport::{BAR_LEN, Ioevents, VirtioPci};
pub(crate) use worker::Worker;
