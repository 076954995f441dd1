//! A guest that reads and writes any port.

use std::sync::Arc;

use super::{PciBus, PortBus, PortEffect, PowerManagement, PowerSnapshot, SerialPort};
use crate::layout::{I8042_COMMAND, I8042_RESET, PM1_CONTROL, PM1_EVENT, SERIAL0};

fn bus() -> PortBus {
    let serial = || Arc::new(SerialPort::new(Arc::new(|| Ok(())), None, None).unwrap());
    let power = PowerManagement::new(PowerSnapshot::default(), |_| {});
    PortBus::new([serial(), serial()], PciBus::new(Vec::new()), power)
}

#[test]
fn every_port_is_read_and_written_in_every_width() {
    let bus = bus();
    for port in 0..=u16::MAX {
        // A string instruction has up to a page of bytes.
        for len in [1, 2, 4, 64, 4096] {
            bus.read(port, &mut vec![0; len]);
            for byte in [0, I8042_RESET, 0xff] {
                let effect = bus.write(port, &vec![byte; len]);
                let expected = match port {
                    I8042_COMMAND if byte == I8042_RESET => PortEffect::Reset,
                    _ => PortEffect::None,
                };
                assert_eq!(effect, expected, "{port:#x} {byte:#x}");
            }
        }
    }
    // Off is sleep type 5, and nothing else.
    for control in 0..=u16::MAX {
        let effect = bus.write(PM1_CONTROL, &control.to_le_bytes());
        let is_off = control >> 13 & 1 == 1 && control >> 10 & 7 == 5;
        assert_eq!(effect == PortEffect::PowerOff, is_off, "{control:#x}");
        assert_eq!(bus.write(PM1_EVENT, &control.to_le_bytes()), PortEffect::None);
    }
}

/// QEMU ("VENOM"): commands to a floppy controller that nothing on the machine uses.
#[test]
fn cve_2015_3456_ports_without_a_device_take_nothing_and_have_nothing() {
    let bus = bus();
    for port in 0x3f0..SERIAL0.0 {
        for command in [0x0a, 0x8e, 0xff] {
            assert_eq!(bus.write(port, &vec![command; 4096]), PortEffect::None);
        }
        let mut found = vec![0; 4096];
        bus.read(port, &mut found);
        assert!(found.iter().all(|byte| *byte == 0xff), "{port:#x}");
    }
}
