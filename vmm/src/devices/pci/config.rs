//! The configuration space of one function (PCI Local Bus 3.0, chapter 6): 64 registers of four
//! bytes, of which the guest may write some bits.

use super::shared::low;

/// Registers of a function.
const REGISTERS: usize = 64;
/// Register of the command and the status.
const COMMAND: usize = 1;
/// Command bit: the function answers to its memory.
const MEMORY_SPACE: u32 = 1 << 1;
/// Command bits that a driver may set: memory space, bus master, no interrupts by pin.
const COMMAND_WRITABLE: u32 = MEMORY_SPACE | 1 << 2 | 1 << 10;
/// Status bit: there is a list of capabilities.
const STATUS_CAPABILITIES: u32 = 1 << 20;
/// Register of the first base address.
const BAR0: usize = 4;
/// Base address type: 64 bits, memory, not prefetchable.
const BAR_MEMORY_64: u32 = 0b100;
/// Register of the pointer to the first capability.
const CAPABILITIES: usize = 13;
/// Offset of the first capability: the first byte after the header.
const FIRST_CAPABILITY: u8 = 0x40;

/// The identity of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) revision: u8,
    /// Class, subclass, programming interface.
    pub(crate) class: [u8; 3],
    pub(crate) subsystem_vendor: u16,
    pub(crate) subsystem: u16,
}

/// The configuration space.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    registers: [u32; REGISTERS],
    writable: [u32; REGISTERS],
    /// Bytes of the memory at base address 0; 0 if there is none.
    bar_size: u64,
    /// Offset after the last capability, and of the pointer to the next.
    end: u8,
    link: u8,
}

impl ConfigSpace {
    pub(crate) fn new(identity: Identity) -> Self {
        let Identity { vendor, device, revision, class, subsystem_vendor, subsystem } = identity;
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        let mut registers = [0; REGISTERS];
        registers[0] = pair(vendor, device);
        registers[2] = u32::from_be_bytes([class[0], class[1], class[2], revision]);
        registers[11] = pair(subsystem_vendor, subsystem);
        let mut writable = [0; REGISTERS];
        writable[COMMAND] = COMMAND_WRITABLE;
        // The interrupt line is for the firmware and the system to agree on.
        writable[15] = 0xff;
        let link = 4 * u8::try_from(CAPABILITIES).expect("a byte");
        Self { registers, writable, bar_size: 0, end: FIRST_CAPABILITY, link }
    }

    /// Sets the base address 0: `size` bytes of memory, a power of two of at least a page, at
    /// `address`.
    pub(crate) fn set_bar(&mut self, address: u64, size: u64) {
        assert!(size.is_power_of_two() && size >= 0x1000 && address.is_multiple_of(size));
        self.bar_size = size;
        self.registers[BAR0] = low(address) | BAR_MEMORY_64;
        self.registers[BAR0 + 1] = low(address >> 32);
        // The bits of an address below its size stay 0: so a driver learns the size.
        (self.writable[BAR0], self.writable[BAR0 + 1]) = (low(!(size - 1)), low(!(size - 1) >> 32));
    }

    /// Guest-physical address and bytes of the function's memory; `None` while it does not answer
    /// to it.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        let is_on = self.registers[COMMAND] & MEMORY_SPACE != 0 && self.bar_size > 0;
        let [low, high] = [self.registers[BAR0], self.registers[BAR0 + 1]];
        is_on.then(|| (u64::from(low & !0xf) | u64::from(high) << 32, self.bar_size))
    }

    /// Adds a capability: its number, and the bytes after the pointer to the next. Returns its
    /// offset. Bytes of `writable` are those that the guest may write.
    pub(crate) fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> u8 {
        let at = self.end;
        self.set_byte(self.link, at);
        self.set_byte(at, id);
        for (offset, byte) in (at + 2..).zip(body) {
            self.set_byte(offset, *byte);
        }
        for (offset, byte) in (at + 2..).zip(writable) {
            let (register, shift) = place(offset);
            self.writable[register] |= u32::from(*byte) << shift;
        }
        self.registers[COMMAND] |= STATUS_CAPABILITIES;
        let len = u8::try_from(body.len()).expect("below 192 bytes") + 2;
        self.end = (at + len).next_multiple_of(4);
        self.link = at + 1;
        at
    }

    /// All registers, for a snapshot.
    pub(crate) fn registers(&self) -> &[u32] {
        &self.registers
    }

    /// Sets the bits that the guest may write, as a snapshot has them.
    pub(crate) fn restore(&mut self, registers: &[u32]) {
        let own = self.registers.iter_mut().zip(&self.writable);
        for ((own, writable), saved) in own.zip(registers) {
            *own = *own & !writable | saved & writable;
        }
    }

    fn set_byte(&mut self, offset: u8, byte: u8) {
        let (register, shift) = place(offset);
        self.registers[register] &= !(0xff << shift);
        self.registers[register] |= u32::from(byte) << shift;
    }

    /// A read of up to four bytes that do not cross a register.
    pub(crate) fn read(&self, offset: u8, data: &mut [u8]) {
        let (register, shift) = place(offset);
        let bytes = (self.registers[register] >> shift).to_le_bytes();
        for (to, from) in data.iter_mut().zip(bytes) {
            *to = from;
        }
    }

    /// A write of up to four bytes that do not cross a register; bits that are only read stay.
    pub(crate) fn write(&mut self, offset: u8, data: &[u8]) {
        let (register, shift) = place(offset);
        let bytes = data.iter().take(4 - shift as usize / 8).enumerate();
        let (mut value, mut mask) = (0, 0);
        for (index, byte) in bytes {
            let shift = shift + 8 * u32::try_from(index).expect("below 4");
            value |= u32::from(*byte) << shift;
            mask |= 0xff << shift;
        }
        let mask = mask & self.writable[register];
        self.registers[register] = self.registers[register] & !mask | value & mask;
    }
}

/// The register of a byte, and the byte's shift in it.
fn place(offset: u8) -> (usize, u32) {
    (usize::from(offset / 4), 8 * u32::from(offset % 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        vendor: 0x1af4,
        device: 0x1042,
        revision: 1,
        class: [1, 0x80, 0],
        subsystem_vendor: 0x1af4,
        subsystem: 2,
    };

    fn read(space: &ConfigSpace, offset: u8) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_identity_is_only_read() {
        let mut space = ConfigSpace::new(IDENTITY);
        space.write(0, &[0xff; 4]);
        space.write(8, &[0; 4]);
        assert_eq!(read(&space, 0), 0x1042_1af4);
        assert_eq!(read(&space, 8), 0x0180_0001);
        assert_eq!(read(&space, 0x2c), 0x0002_1af4);
        let mut byte = [0];
        space.read(0x0b, &mut byte);
        assert_eq!(byte, [1]);
    }

    #[test]
    fn a_driver_learns_the_size_of_the_memory_and_moves_it() {
        let mut space = ConfigSpace::new(IDENTITY);
        space.set_bar(0xd000_0000, 0x1_0000);
        assert_eq!(space.memory(), None, "memory space is off");
        space.write(4, &[2, 0]);
        assert_eq!(space.memory(), Some((0xd000_0000, 0x1_0000)));
        space.write(0x10, &[0xff; 4]);
        space.write(0x14, &[0xff; 4]);
        assert_eq!((read(&space, 0x10), read(&space, 0x14)), (0xffff_0004, 0xffff_ffff));
        space.write(0x10, &0xe000_1234_u32.to_le_bytes());
        space.write(0x14, &1_u32.to_le_bytes());
        assert_eq!(space.memory(), Some((0x1_e000_0000, 0x1_0000)));
    }

    #[test]
    fn a_snapshot_restores_what_the_guest_may_write() {
        let mut space = ConfigSpace::new(IDENTITY);
        space.set_bar(0xd000_0000, 0x1_0000);
        let registers = [u32::MAX; 64];
        space.restore(&registers);
        assert_eq!(space.memory(), Some((0xffff_ffff_ffff_0000, 0x1_0000)));
        assert_eq!(read(&space, 0), 0x1042_1af4);
        let mut other = ConfigSpace::new(IDENTITY);
        other.set_bar(0xd000_0000, 0x1_0000);
        other.restore(space.registers());
        assert_eq!(other.registers(), space.registers());
        other.restore(&[]);
        assert_eq!(other.registers(), space.registers());
    }

    #[test]
    fn capabilities_are_a_list() {
        let mut space = ConfigSpace::new(IDENTITY);
        assert_eq!(read(&space, 4) >> 20 & 1, 0);
        let first = space.add_capability(9, &[16, 1, 0, 0], &[]);
        let second = space.add_capability(0x11, &[3, 0], &[0, 0xc0]);
        assert_eq!((first, second, read(&space, 4) >> 20 & 1), (0x40, 0x48, 1));
        assert_eq!(read(&space, 0x34), 0x40);
        assert_eq!((read(&space, 0x40), read(&space, 0x48)), (0x0110_4809, 0x0003_0011));
        space.write(0x4a, &[0xff, 0xff]);
        assert_eq!(read(&space, 0x48), 0xc003_0011, "only the bits that may be written");
    }
}
