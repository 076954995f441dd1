//! A PCI bus without bridges (PCI Local Bus 3.0): configuration by the ports 0xcf8 and 0xcfc, which
//! Linux finds without ACPI and without words on its command line.

mod bus;
mod config;
mod msix;
mod shared;
mod snapshot;

#[cfg(any(test, feature = "testing"))]
pub(crate) use bus::{CONFIG_ADDRESS, CONFIG_DATA};
pub(crate) use bus::{PciBus, PciFunction};
pub(crate) use config::{ConfigSpace, Identity};
pub(crate) use msix::{Delivery, MSIX_CAPABILITY, Message, MessageSink, Msix};
pub(crate) use shared::lock;
pub(crate) use snapshot::{InvalidState, PciSnapshot};
