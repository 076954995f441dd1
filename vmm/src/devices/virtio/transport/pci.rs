//! The function of a virtio device: its capabilities, its memory, its interrupts.

use std::sync::{Arc, Mutex};

use exoprobe_guest::GuestRam;
use virtio_queue::{Queue, QueueT as _};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::common::{COMMON_LEN, CommonConfig, CommonSnapshot, Effect};
use super::kick::{Ioevents, Kicks};
use crate::devices::pci::{
    ConfigSpace, Delivery, Identity, InvalidState, MSIX_CAPABILITY, Message, MessageSink, Msix,
    PciFunction, lock,
};
use crate::devices::virtio::device::Interrupt;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice};
use crate::threads::Threads;

/// Vendor of virtio functions, and the first of their modern device numbers (4.1.2).
const VENDOR: u16 = 0x1af4;
const DEVICE_BASE: u16 = 0x1040;
/// Parts of base address 0, and its size.
pub(super) const COMMON: u64 = 0;
const ISR: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
pub(super) const NOTIFY: u64 = 0x3000;
pub(super) const MSIX_TABLE: u64 = 0x8000;
pub(super) const MSIX_PENDING: u64 = 0xc000;
pub(crate) const BAR_LEN: u64 = 0x1_0000;
const PART_LEN: u64 = 0x1000;
/// Offset of the device's status in the common configuration.
pub(super) const STATUS: u64 = 0x14;
/// Offset of the generation of the device's configuration.
const COMMON_GENERATION: u64 = COMMON + 0x15;
/// Bytes from one queue's notification address to the next.
pub(super) const NOTIFY_STEP: u64 = 4;
/// Vendor-specific capability (PCI), and the kinds of virtio's (4.1.4).
const VENDOR_CAPABILITY: u8 = 9;
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;
const CFG_ISR: u8 = 3;
const CFG_DEVICE: u8 = 4;

/// The vectors, and the way to the guest's interrupt controllers.
struct Interrupts {
    messages: MessageSink,
    msix: Mutex<Msix>,
}

impl Interrupts {
    fn send(&self, message: Message) {
        (self.messages)(message);
    }

    fn raise(&self, vector: u16) {
        if let Some(Delivery::Send(message)) = lock(&self.msix).raise(vector) {
            self.send(message);
        }
    }
}

/// The interrupt of one vector.
struct Vector(Arc<Interrupts>, u16);

impl Interrupt for Vector {
    fn raise(&self) {
        self.0.raise(self.1);
    }
}

/// The state of a function in a snapshot.
#[derive(serde::Serialize, serde::Deserialize)]
struct VirtioSnapshot {
    msix: Msix,
    common: CommonSnapshot,
}

/// The registers, and the driver's side of the queues in use.
struct Registers {
    common: CommonConfig,
    kicks: Kicks,
}

/// A virtio device on the PCI bus.
pub(crate) struct VirtioPci {
    config: Mutex<ConfigSpace>,
    /// As at power-on.
    initial: ConfigSpace,
    /// Offset of the MSI-X capability in the configuration space.
    msix_at: u8,
    registers: Mutex<Registers>,
    interrupts: Arc<Interrupts>,
    device: Arc<dyn VirtioDevice>,
    ram: GuestRam,
    threads: Threads,
}

/// `struct virtio_pci_cap` after its link: length, kind, base address, padding, offset, length.
fn capability(kind: u8, offset: u64, len: u64, more: &[u8]) -> Vec<u8> {
    let size = u8::try_from(16 + more.len()).expect("20 at most");
    let mut body = vec![size, kind, 0, 0, 0, 0];
    for number in [offset, len] {
        body.extend(u32::try_from(number).expect("below 64 KiB").to_le_bytes());
    }
    body.extend(more);
    body
}

impl VirtioPci {
    /// The function of `device`, with its memory at `bar`, whose interrupts go to `messages`, and
    /// whose queues the machine kicks by `ioevents`; `threads` starts the device's.
    /// `class` is PCI's class and subclass.
    pub(crate) fn new(
        messages: MessageSink,
        ioevents: Arc<dyn Ioevents>,
        ram: GuestRam,
        device: Arc<dyn VirtioDevice>,
        class: [u8; 2],
        bar: u64,
        threads: Threads,
    ) -> Self {
        let queues = device.queue_sizes().len();
        let vectors = u16::try_from(queues + 1).expect("few queues");
        let kind = device.device_type();
        let mut config = ConfigSpace::new(Identity {
            vendor: VENDOR,
            device: DEVICE_BASE + kind,
            revision: 1,
            class: [class[0], class[1], 0],
            subsystem_vendor: VENDOR,
            subsystem: kind,
        });
        config.set_bar(bar, BAR_LEN);
        let step = u32::try_from(NOTIFY_STEP).expect("4").to_le_bytes();
        for (kind, offset, len, more) in [
            (CFG_COMMON, COMMON, COMMON_LEN, &[][..]),
            (CFG_ISR, ISR, 1, &[]),
            (CFG_DEVICE, DEVICE, PART_LEN, &[]),
            (CFG_NOTIFY, NOTIFY, PART_LEN, &step),
        ] {
            config.add_capability(VENDOR_CAPABILITY, &capability(kind, offset, len, more), &[]);
        }
        let msix = Msix::new(vectors);
        let at = |offset: u64| u32::try_from(offset).expect("below 64 KiB");
        let (body, writable) = msix.capability(at(MSIX_TABLE), at(MSIX_PENDING));
        let msix_at = config.add_capability(MSIX_CAPABILITY, &body, &writable);
        let common = CommonConfig::new(device.features(), device.queue_sizes(), vectors);
        let kicks = Kicks::new(ioevents, queues);
        Self {
            config: Mutex::new(config.clone()),
            initial: config,
            msix_at,
            registers: Mutex::new(Registers { common, kicks }),
            interrupts: Arc::new(Interrupts { messages, msix: Mutex::new(msix) }),
            device,
            ram,
            threads,
        }
    }

    fn start(&self, registers: &mut Registers) {
        let mut queues = Vec::new();
        for (at, queue, vector) in registers.common.enabled_queues() {
            // A driver's queue outside RAM is not served; nothing else of the device suffers.
            if !queue.is_valid(self.ram.as_memory()) {
                continue;
            }
            let made = EventFd::new(EFD_NONBLOCK).and_then(|kick| Ok((kick.try_clone()?, kick)));
            let Ok((ours, kick)) = made else { continue };
            let Ok(queue) = Queue::try_from(queue.state()) else { continue };
            // Requests may wait since a pause.
            drop(ours.write(1));
            registers.kicks.set(at, ours);
            let interrupt = Vector(Arc::clone(&self.interrupts), vector);
            queues.push((at, QueueHandle { queue, kick, interrupt: Arc::new(interrupt) }));
        }
        self.place_kicks(registers);
        let config_changed = Vector(Arc::clone(&self.interrupts), registers.common.config_vector());
        let config_changed = Arc::new(config_changed);
        let (ram, threads) = (self.ram.clone(), self.threads.clone());
        let activation = Activation { ram, queues, config_changed, threads };
        if let Err(error) = self.device.start(activation) {
            tracing::warn!(%error, "a device cannot start");
        }
    }

    /// Stops the device. Returns its queues where they stand.
    fn halt(&self, registers: &mut Registers) -> Vec<(usize, QueueHandle)> {
        registers.kicks.clear();
        self.device.stop()
    }

    fn stop(&self, registers: &mut Registers) {
        let queues = self.halt(registers);
        registers.common.set_positions(queues.into_iter().map(|(at, state)| (at, state.queue)));
    }

    /// Has the machine kick the queues where the device's memory is now.
    fn place_kicks(&self, registers: &mut Registers) {
        let memory = lock(&self.config).memory();
        registers.kicks.place(memory.map(|(bar, _)| bar + NOTIFY), NOTIFY_STEP);
    }

    fn notify(&self, offset: u64) {
        let queue = usize::try_from(offset / NOTIFY_STEP).unwrap_or(usize::MAX);
        lock(&self.registers).kicks.kick(queue);
    }
}

impl PciFunction for VirtioPci {
    fn config(&self) -> &Mutex<ConfigSpace> {
        &self.config
    }

    fn on_config_write(&self) {
        self.place_kicks(&mut lock(&self.registers));
        let mut control = [0; 2];
        lock(&self.config).read(self.msix_at + 2, &mut control);
        let sent = lock(&self.interrupts.msix).set_control(u16::from_le_bytes(control));
        sent.into_iter().for_each(|(_, message)| self.interrupts.send(message));
    }

    fn reset(&self) {
        let mut registers = lock(&self.registers);
        self.stop(&mut registers);
        self.device.reset();
        registers.common.write(STATUS, &[0]);
        *lock(&self.config) = self.initial.clone();
        lock(&self.interrupts.msix).reset();
    }

    fn pause(&self) {
        self.stop(&mut lock(&self.registers));
    }

    fn resume(&self) {
        let mut registers = lock(&self.registers);
        if registers.common.is_running() {
            self.start(&mut registers);
        }
    }

    fn save(&self) -> serde_json::Value {
        let msix = lock(&self.interrupts.msix).clone();
        let saved = VirtioSnapshot { msix, common: lock(&self.registers).common.save() };
        serde_json::to_value(saved).expect("numbers, and names as keys")
    }

    fn restore(&self, state: &serde_json::Value) -> Result<(), InvalidState> {
        use serde::Deserialize as _;
        let VirtioSnapshot { msix, common } =
            VirtioSnapshot::deserialize(state).map_err(|error| InvalidState(error.to_string()))?;
        let fits = lock(&self.interrupts.msix).restore(&msix)
            && lock(&self.registers).common.restore(&common);
        if !fits {
            return Err(InvalidState("its queues or vectors".to_owned()));
        }
        self.device.restored();
        Ok(())
    }

    fn read(&self, offset: u64, data: &mut [u8]) {
        match offset {
            COMMON_GENERATION if data.len() == 1 => data[0] = self.device.config_generation(),
            COMMON..ISR => lock(&self.registers).common.read(offset, data),
            DEVICE..NOTIFY => self.device.read_config(offset - DEVICE, data),
            MSIX_TABLE..MSIX_PENDING => {
                lock(&self.interrupts.msix).read_table(offset - MSIX_TABLE, data);
            }
            MSIX_PENDING.. => lock(&self.interrupts.msix).read_pending(offset - MSIX_PENDING, data),
            // Interrupts are messages: the status of a pin is never set.
            _ => data.fill(0),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        match offset {
            COMMON..ISR => {
                let mut registers = lock(&self.registers);
                match registers.common.write(offset, data) {
                    Effect::None => {}
                    Effect::Stop => self.stop(&mut registers),
                    Effect::Reset => {
                        // Its queues have been reset, too.
                        drop(self.halt(&mut registers));
                        self.device.reset();
                    }
                    Effect::Start => self.start(&mut registers),
                }
            }
            NOTIFY..MSIX_TABLE => self.notify(offset - NOTIFY),
            MSIX_TABLE..MSIX_PENDING => {
                let offset = offset - MSIX_TABLE;
                let sent = lock(&self.interrupts.msix).write_table(offset, data);
                sent.into_iter().for_each(|(_, message)| self.interrupts.send(message));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gpa;
    use exoprobe_guest::memory::RamRange;

    use super::super::kick::driven::Places;
    use super::*;
    use crate::devices::Rng;

    const BAR: u64 = 0xd000_0000;
    const MOVED: u64 = 0xe000_0000;

    #[test]
    fn a_capability_says_where_its_part_is() {
        let body = capability(CFG_NOTIFY, NOTIFY, PART_LEN, &4_u32.to_le_bytes());
        assert_eq!(body.len() + 2, 20);
        assert_eq!(body[..6], [20, CFG_NOTIFY, 0, 0, 0, 0]);
        assert_eq!(body[6..10], 0x3000_u32.to_le_bytes());
    }

    /// A device whose driver has started it.
    fn running(places: &Arc<Places>) -> VirtioPci {
        let ram = GuestRam::anonymous(&[RamRange { start: Gpa(0), len: 1 << 20 }]).unwrap();
        let (device, places) = (Arc::new(Rng::default()), Arc::clone(places));
        let (class, threads) = ([0xff, 0], Threads::default());
        let function = VirtioPci::new(Arc::new(|_| {}), places, ram, device, class, BAR, threads);
        for (offset, value) in [(0x08, 1_u32), (0x0c, 1)] {
            function.write(offset, &value.to_le_bytes());
        }
        function.write(STATUS, &[3]);
        function.write(STATUS, &[3 | 8]);
        for (offset, address) in [(0x20, 0x1000_u32), (0x28, 0x2000), (0x30, 0x3000)] {
            function.write(offset, &address.to_le_bytes());
        }
        function.write(0x1c, &1_u16.to_le_bytes());
        function.write(STATUS, &[3 | 8 | 4]);
        function
    }

    fn set(function: &VirtioPci, offset: u8, value: u32) {
        lock(&function.config).write(offset, &value.to_le_bytes());
        function.on_config_write();
    }

    #[test]
    fn kicks_are_wherever_the_driver_puts_the_memory() {
        let places = Arc::new(Places::default());
        let is = |expected: &[u64]| {
            let found: Vec<u64> = lock(&places.0).keys().copied().collect();
            assert_eq!(found, expected);
        };
        let function = running(&places);
        is(&[]);
        set(&function, 4, 2);
        is(&[BAR + NOTIFY]);
        set(&function, 0x10, u32::try_from(MOVED).unwrap());
        is(&[MOVED + NOTIFY]);
        let other = running(&places);
        set(&other, 4, 2);
        is(&[BAR + NOTIFY, MOVED + NOTIFY]);
        // Where another is already, user space kicks.
        set(&other, 0x10, u32::try_from(MOVED).unwrap());
        is(&[MOVED + NOTIFY]);
        function.pause();
        is(&[]);
        function.resume();
        is(&[MOVED + NOTIFY]);
        set(&function, 4, 0);
        is(&[]);
        set(&other, 4, 0);
        set(&other, 4, 2);
        is(&[MOVED + NOTIFY]);
        other.reset();
        is(&[]);
    }
}
