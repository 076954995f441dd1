//! The bus: which function an access of the configuration ports or of memory is for.

use std::sync::{Arc, Mutex};

use super::config::{ConfigSpace, Identity};
use super::shared::lock;
use super::snapshot::{FunctionSnapshot, InvalidState, PciSnapshot};

/// Port of the address of an access.
pub(crate) const CONFIG_ADDRESS: u16 = 0xcf8;
/// First of the four ports of its data.
pub(crate) const CONFIG_DATA: u16 = 0xcfc;
/// Address bit: the data ports are the register's.
const ENABLE: u32 = 1 << 31;
/// Slots of a bus.
const SLOTS: usize = 32;
/// A host bridge, which Linux looks for before it trusts the ports.
const HOST_BRIDGE: Identity = Identity {
    vendor: 0x8086,
    device: 0x1237,
    revision: 2,
    class: [6, 0, 0],
    subsystem_vendor: 0,
    subsystem: 0,
};

/// A device of the bus. Its memory is accessed by vCPU threads.
pub(crate) trait PciFunction: Send + Sync {
    fn config(&self) -> &Mutex<ConfigSpace>;
    /// A read of its memory; `offset` is below the size of the base address.
    fn read(&self, offset: u64, data: &mut [u8]);
    fn write(&self, offset: u64, data: &[u8]);
    /// After a write of its configuration space.
    fn on_config_write(&self) {}
    /// As at power-on, for a guest that boots again. Touches the guest's memory no more.
    fn reset(&self);
    /// Stops work until [`Self::resume`]: nothing of it touches the guest's memory meanwhile. No
    /// vCPU is in the guest.
    fn pause(&self) {}
    fn resume(&self) {}
    /// Its state beside its configuration space; it is paused.
    fn save(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    /// Takes over a state that [`Self::save`] returned, paused.
    ///
    /// # Errors
    /// [`InvalidState`]: it is not a state of this device.
    fn restore(&self, _state: &serde_json::Value) -> Result<(), InvalidState> {
        Ok(())
    }
}

struct HostBridge(Mutex<ConfigSpace>);

impl PciFunction for HostBridge {
    fn config(&self) -> &Mutex<ConfigSpace> {
        &self.0
    }
    fn read(&self, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn write(&self, _: u64, _: &[u8]) {}
    fn reset(&self) {
        *lock(&self.0) = ConfigSpace::new(HOST_BRIDGE);
    }
}

/// The bus. Slot 0 is the host bridge.
pub(crate) struct PciBus {
    functions: Vec<Arc<dyn PciFunction>>,
    address: Mutex<u32>,
}

impl PciBus {
    /// A bus with these devices in slots 1 and up; at most 31.
    pub(crate) fn new(devices: Vec<Arc<dyn PciFunction>>) -> Self {
        let bridge: Arc<dyn PciFunction> =
            Arc::new(HostBridge(Mutex::new(ConfigSpace::new(HOST_BRIDGE))));
        let functions: Vec<_> = std::iter::once(bridge).chain(devices).collect();
        assert!(functions.len() <= SLOTS, "a bus has {SLOTS} slots");
        Self { functions, address: Mutex::new(0) }
    }

    /// All functions as at power-on.
    pub(crate) fn reset(&self) {
        *lock(&self.address) = 0;
        self.functions.iter().for_each(|function| function.reset());
    }

    /// Stops the work of all functions until [`Self::resume`]. No vCPU is in the guest.
    pub(crate) fn pause(&self) {
        self.functions.iter().for_each(|function| function.pause());
    }

    pub(crate) fn resume(&self) {
        self.functions.iter().for_each(|function| function.resume());
    }

    /// The state of the bus, which is paused.
    pub(crate) fn save(&self) -> PciSnapshot {
        let saved = |function: &Arc<dyn PciFunction>| FunctionSnapshot {
            registers: lock(function.config()).registers().to_vec(),
            state: function.save(),
        };
        PciSnapshot {
            address: *lock(&self.address),
            functions: self.functions.iter().map(saved).collect(),
        }
    }

    /// Takes over a state of a bus with the same functions.
    ///
    /// # Errors
    /// [`InvalidState`].
    pub(crate) fn restore(&self, from: &PciSnapshot) -> Result<(), InvalidState> {
        if from.functions.len() != self.functions.len() {
            return Err(InvalidState("another number of devices".to_owned()));
        }
        *lock(&self.address) = from.address;
        for (function, saved) in self.functions.iter().zip(&from.functions) {
            lock(function.config()).restore(&saved.registers);
            function.restore(&saved.state)?;
        }
        Ok(())
    }

    /// The function and the byte of its configuration space that an access of a data port is for.
    fn selected(&self, port: u16) -> Option<(&dyn PciFunction, u8)> {
        let address = *lock(&self.address);
        let [register, function, bus, _] = address.to_le_bytes();
        // Three bits of function: each device has the first only.
        let is_there = address & ENABLE != 0 && bus == 0 && function & 7 == 0;
        let device = self.functions.get(usize::from(function >> 3)).filter(|_| is_there)?;
        let byte = u8::try_from(port - CONFIG_DATA).expect("below 4");
        Some((device.as_ref(), register & 0xfc | byte))
    }

    /// An `in` from a configuration port; `false` if the port is not one.
    pub(crate) fn read_port(&self, port: u16, data: &mut [u8]) -> bool {
        if port == CONFIG_ADDRESS && data.len() == 4 {
            data.copy_from_slice(&lock(&self.address).to_le_bytes());
            return true;
        }
        if !(CONFIG_DATA..CONFIG_DATA + 4).contains(&port) {
            return false;
        }
        data.fill(0xff);
        if let Some((function, offset)) = self.selected(port) {
            lock(function.config()).read(offset, data);
        }
        true
    }

    /// An `out` to a configuration port; `false` if the port is not one.
    pub(crate) fn write_port(&self, port: u16, data: &[u8]) -> bool {
        if let (CONFIG_ADDRESS, Ok(bytes)) = (port, <[u8; 4]>::try_from(data)) {
            *lock(&self.address) = u32::from_le_bytes(bytes);
            return true;
        }
        if !(CONFIG_DATA..CONFIG_DATA + 4).contains(&port) {
            return false;
        }
        if let Some((function, offset)) = self.selected(port) {
            lock(function.config()).write(offset, data);
            function.on_config_write();
        }
        true
    }

    /// The function whose memory has this guest-physical address, and the offset in it.
    fn at(&self, gpa: u64) -> Option<(&dyn PciFunction, u64)> {
        self.functions.iter().find_map(|function| {
            let (bar, size) = lock(function.config()).memory()?;
            let offset = gpa.checked_sub(bar).filter(|offset| *offset < size)?;
            Some((function.as_ref(), offset))
        })
    }

    /// A read of memory; `false` if no function has it.
    pub(crate) fn read_memory(&self, gpa: u64, data: &mut [u8]) -> bool {
        let Some((function, offset)) = self.at(gpa) else { return false };
        function.read(offset, data);
        true
    }

    /// A write of memory; `false` if no function has it.
    pub(crate) fn write_memory(&self, gpa: u64, data: &[u8]) -> bool {
        let Some((function, offset)) = self.at(gpa) else { return false };
        function.write(offset, data);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of one page that repeats the last write.
    struct Echo(Mutex<ConfigSpace>, Mutex<Vec<u8>>);

    impl PciFunction for Echo {
        fn config(&self) -> &Mutex<ConfigSpace> {
            &self.0
        }
        fn read(&self, offset: u64, data: &mut [u8]) {
            let last = lock(&self.1);
            data.iter_mut().enumerate().for_each(|(at, byte)| {
                *byte = last.get(usize::try_from(offset).unwrap() + at).copied().unwrap_or(0);
            });
        }
        fn write(&self, _: u64, data: &[u8]) {
            *lock(&self.1) = data.to_vec();
        }
        fn reset(&self) {
            lock(&self.1).clear();
        }
    }

    fn bus() -> PciBus {
        let mut config = ConfigSpace::new(Identity { device: 0x1042, ..HOST_BRIDGE });
        config.set_bar(0xd000_0000, 0x1000);
        PciBus::new(vec![Arc::new(Echo(Mutex::new(config), Mutex::default()))])
    }

    fn select(bus: &PciBus, slot: u32, register: u32) {
        let address = 1_u32 << 31 | slot << 11 | register;
        assert!(bus.write_port(CONFIG_ADDRESS, &address.to_le_bytes()));
    }

    fn word(bus: &PciBus) -> u32 {
        let mut data = [0; 4];
        assert!(bus.read_port(CONFIG_DATA, &mut data));
        u32::from_le_bytes(data)
    }

    #[test]
    fn functions_are_found_by_slot() {
        let bus = bus();
        for (slot, expected) in [(0, 0x1237_8086), (1, 0x1042_8086), (2, u32::MAX), (31, u32::MAX)]
        {
            select(&bus, slot, 0);
            assert_eq!(word(&bus), expected, "slot {slot}");
        }
        select(&bus, 1, 1 << 8);
        assert_eq!(word(&bus), u32::MAX, "another function of the slot");
        select(&bus, 1, 1 << 16);
        assert_eq!(word(&bus), u32::MAX, "another bus");
        assert!(bus.write_port(CONFIG_ADDRESS, &[0; 4]));
        assert_eq!(word(&bus), u32::MAX, "not enabled");
        let mut half = [0; 2];
        select(&bus, 1, 0);
        assert!(bus.read_port(CONFIG_DATA + 2, &mut half));
        assert_eq!(u16::from_le_bytes(half), 0x1042);
        assert!(!bus.read_port(0x60, &mut half) && !bus.write_port(CONFIG_ADDRESS, &[1]));
    }

    #[test]
    fn memory_answers_where_the_driver_puts_it() {
        let bus = bus();
        let mut data = [0; 2];
        assert!(!bus.write_memory(0xd000_0000, &[1, 2]), "memory space is off");
        select(&bus, 1, 4);
        assert!(bus.write_port(CONFIG_DATA, &[2, 0]));
        assert!(bus.write_memory(0xd000_0010, &[1, 2]));
        assert!(bus.read_memory(0xd000_0000, &mut data) && data == [1, 2]);
        assert!(
            !bus.read_memory(0xd000_1000, &mut data) && !bus.read_memory(0xcfff_ffff, &mut data)
        );
        select(&bus, 1, 0x10);
        assert!(bus.write_port(CONFIG_DATA, &0xe000_0000_u32.to_le_bytes()));
        assert!(
            bus.read_memory(0xe000_0fff, &mut data) && !bus.read_memory(0xd000_0000, &mut data)
        );
    }
}
