//! The guest's serial ports: output is kept, input raises the port's interrupt.

use std::io;
use std::sync::Arc;

use kvm_ioctls::VmFd;
use vm_superio::Trigger;
use vm_superio::serial::{NoEvents, Serial as Uart};

/// An ISA interrupt line of KVM's interrupt chips.
pub(crate) struct Line(Arc<VmFd>, u32);

impl Trigger for Line {
    type E = kvm_ioctls::Error;

    fn trigger(&self) -> Result<(), Self::E> {
        self.0.set_irq_line(self.1, true)?;
        self.0.set_irq_line(self.1, false)
    }
}

/// A 16550 with the output that the guest has written so far.
pub(crate) struct Serial(Uart<Line, NoEvents, Vec<u8>>);

impl Serial {
    pub(crate) fn new(vm: Arc<VmFd>, irq: u32) -> Self {
        Self(Uart::new(Line(vm, irq), Vec::new()))
    }

    pub(crate) fn write(&mut self, offset: u8, byte: u8) -> io::Result<()> {
        self.0.write(offset, byte).map_err(|error| io::Error::other(format!("{error:?}")))
    }

    pub(crate) fn read(&mut self, offset: u8) -> u8 {
        self.0.read(offset)
    }

    /// Types a line, as long as the device's buffer.
    pub(crate) fn type_line(&mut self, line: &str) -> io::Result<()> {
        let typed = self.0.enqueue_raw_bytes(format!("{line}\n").as_bytes());
        typed.map(drop).map_err(|error| io::Error::other(format!("{error:?}")))
    }

    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(self.0.writer()).into_owned()
    }
}
