//! The guest's devices outside KVM: two 16550 serial ports, the reset line of an i8042 and ACPI's
//! fixed registers on port I/O, and virtio devices on a PCI bus.

mod console_watch;
mod effect;
mod input;
mod output;
mod pci;
mod power;
mod serial;
#[cfg(test)]
mod tests;
mod virtio;

pub(crate) use console_watch::ConsoleWatch;
pub(crate) use effect::PortEffect;
pub use input::InputFull;
pub use output::OutputLog;
pub(crate) use pci::{InvalidState, Message, MessageSink, PciBus, PciFunction, PciSnapshot};
pub(crate) use power::{PowerManagement, PowerSnapshot};
pub use serial::SerialPort;
pub(crate) use serial::{EdgeLine, SerialSnapshot};
#[cfg(any(test, feature = "testing"))]
pub use virtio::DrivenPci;
pub(crate) use virtio::blk::Blk;
pub use virtio::blk::DiskError;
pub(crate) use virtio::blk::DiskIdentity;
#[cfg(feature = "testing")]
pub use virtio::blk::DrivenBlk;
pub(crate) use virtio::console::ConsoleSnapshot;
#[cfg(feature = "testing")]
pub use virtio::console::DrivenConsole;
pub use virtio::console::{TerminalSize, VirtioConsole};
#[cfg(feature = "testing")]
pub use virtio::net::DrivenNet;
pub(crate) use virtio::net::Net;
pub use virtio::net::NetError;
pub(crate) use virtio::rng::Rng;
#[cfg(feature = "testing")]
pub use virtio::vsock::DrivenVsock;
pub(crate) use virtio::vsock::Vsock;
pub use virtio::vsock::VsockError;
pub(crate) use virtio::{BAR_LEN, Ioevents, VirtioDevice, VirtioPci};

use std::cell::Cell;
use std::sync::Arc;

use vm_superio::{I8042Device, Trigger};

use crate::layout::{I8042_COMMAND, I8042_DATA, SERIAL_LEN, SERIAL0, SERIAL1};

/// Catches the i8042's reset request within one access.
#[derive(Default)]
struct ResetLine(Cell<bool>);

impl Trigger for &ResetLine {
    type E = std::convert::Infallible;
    fn trigger(&self) -> Result<(), Self::E> {
        self.0.set(true);
        Ok(())
    }
}

/// The buses: ports, and what is on PCI.
pub(crate) struct PortBus {
    serial: [Arc<SerialPort>; 2],
    pci: PciBus,
    power: PowerManagement,
}

impl PortBus {
    pub(crate) fn new(serial: [Arc<SerialPort>; 2], pci: PciBus, power: PowerManagement) -> Self {
        Self { serial, pci, power }
    }

    /// The power button.
    pub(crate) fn power(&self) -> &PowerManagement {
        &self.power
    }

    /// The functions on PCI, whose memory is guest-physical.
    pub(crate) fn pci(&self) -> &PciBus {
        &self.pci
    }

    fn serial_at(&self, port: u16) -> Option<(&SerialPort, u8)> {
        let bases = [SERIAL0.0, SERIAL1.0];
        bases.iter().zip(&self.serial).find_map(|(base, serial)| {
            let offset = port.checked_sub(*base).filter(|o| *o < SERIAL_LEN)?;
            Some((serial.as_ref(), u8::try_from(offset).expect("below 8")))
        })
    }

    /// One `out`; string forms come as several bytes for the same port.
    pub(crate) fn write(&self, port: u16, data: &[u8]) -> PortEffect {
        if let Some((serial, offset)) = self.serial_at(port) {
            for byte in data {
                serial.write_register(offset, *byte);
            }
        } else if self.pci.write_port(port, data) {
            return PortEffect::None;
        } else if let Some(effect) = self.power.write(port, data) {
            return effect;
        } else if (I8042_DATA..=I8042_COMMAND).contains(&port) {
            let line = ResetLine::default();
            let mut i8042 = I8042Device::new(&line);
            let offset = u8::try_from(port - I8042_DATA).expect("below 5");
            for byte in data {
                let Ok(()) = i8042.write(offset, *byte);
            }
            if line.0.get() {
                return PortEffect::Reset;
            }
        }
        PortEffect::None
    }

    /// One `in`; a port without a device reads as all ones, an empty bus.
    pub(crate) fn read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if let Some((serial, offset)) = self.serial_at(port) {
            for byte in data {
                *byte = serial.read_register(offset);
            }
        } else if self.pci.read_port(port, data) || self.power.read(port, data) {
        } else if port == I8042_DATA || port == I8042_COMMAND {
            data.fill(I8042Device::new(&ResetLine::default()).read(0));
        }
    }
}
