//! A PCI bus with one device of each kind, without a machine, whose driver does anything: for tests
//! and fuzz targets.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exoprobe_guest::addr::to_usize;
use exoprobe_guest::memory::RamRange;
use exoprobe_guest::{Gpa, GuestRam};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;

use super::kick::driven::Places;
use super::pci::{BAR_LEN, COMMON, NOTIFY, NOTIFY_STEP, STATUS, VirtioPci};
use crate::config::{DiskMode, NetConfig, NetLink, VsockConfig};
use crate::devices::console_watch::ConsoleWatch;
use crate::devices::pci::{CONFIG_ADDRESS, CONFIG_DATA, Message, PciBus, PciFunction, lock};
use crate::devices::virtio::blk::Blk;
use crate::devices::virtio::console::VirtioConsole;
use crate::devices::virtio::net::Net;
use crate::devices::virtio::rng::Rng;
use crate::devices::virtio::vsock::Vsock;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice};
use crate::layout::PCI_BARS;
use crate::mac::MacAddr;
use crate::threads::Threads;

/// Bytes of RAM, from 0 on.
pub(super) const RAM: u64 = 0x4_0000;
/// More RAM, which the drivers of tests do not name.
pub(super) const UNNAMED: RamRange = RamRange { start: Gpa(0x5555_0000), len: 0x1000 };
/// Bytes of the disk.
pub(super) const DISK: u64 = 64 * 512;
/// Descriptors of a queue that [`DrivenPci::set_up`] makes.
pub(super) const SIZE: u16 = 16;
/// Most messages that are kept.
const MESSAGES: usize = 64;

/// Where the parts of a queue are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

impl Place {
    /// Of the queue of this number: a page for each.
    pub(super) const fn of(queue: u64) -> Self {
        let at = queue * 0x1000;
        Self { descriptors: at, available: at + 0x400, used: at + 0x800 }
    }
}

/// A device that must not be started while it runs.
struct Once(Arc<dyn VirtioDevice>, AtomicBool);

impl VirtioDevice for Once {
    fn device_type(&self) -> u16 {
        self.0.device_type()
    }

    fn features(&self) -> u64 {
        self.0.features()
    }

    fn queue_sizes(&self) -> &[u16] {
        self.0.queue_sizes()
    }

    fn config_generation(&self) -> u8 {
        self.0.config_generation()
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        self.0.read_config(offset, data);
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        assert!(!self.1.swap(true, Ordering::SeqCst), "it runs already");
        self.0.start(activation)
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.1.store(false, Ordering::SeqCst);
        self.0.stop()
    }

    fn reset(&self) {
        self.0.reset();
    }

    fn restored(&self) {
        self.0.restored();
    }
}

/// The bus, with random numbers in slot 1, a disk in slot 2, a network interface in slot 3, a
/// console in slot 4 and a vsock device in slot 5; RAM of 256 KiB; the host's sides.
pub struct DrivenPci {
    pub(super) bus: PciBus,
    pub(super) ram: GuestRam,
    pub(super) disk: File,
    /// The network stack's end of the interface's socket.
    pub(super) peer: UnixStream,
    pub(super) console: Arc<VirtioConsole>,
    pub(super) messages: Arc<Mutex<Vec<Message>>>,
}

/// The rest of the bytes that a driver is made of.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        now
    }

    /// A number of so many bytes, of which those past the end are 0.
    fn number(&mut self, bytes: usize) -> u64 {
        let mut number = [0; 8];
        let found = self.take(bytes);
        number[..found.len()].copy_from_slice(found);
        u64::from_le_bytes(number)
    }

    fn slot(&mut self) -> u32 {
        u32::try_from(self.number(1) % 7).expect("below 7")
    }

    /// Bytes of an access, as KVM has them: a string instruction has many.
    fn data(&mut self) -> Vec<u8> {
        let lengths = [1, 1, 2, 2, 4, 4, 4, 8, 8, 3, 5, 7, 12, 33];
        let len = lengths[usize::try_from(self.number(1)).expect("a byte") % lengths.len()];
        let mut data = self.take(len).to_vec();
        data.resize(len, 0);
        data
    }
}

impl Default for DrivenPci {
    fn default() -> Self {
        let ram = [RamRange { start: Gpa(0), len: RAM }, UNNAMED];
        let ram = GuestRam::anonymous(&ram).expect("some memory");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (path, socket) = (dir.path().join("disk"), dir.path().join("stack"));
        let disk = File::create_new(&path).expect("a file in it");
        disk.set_len(DISK).expect("some room");
        let stack = UnixListener::bind(&socket).expect("a socket in it");
        let blk = Blk::open(&path, DiskMode::ReadWrite, "disk0").expect("a disk");
        let mac: MacAddr = "02:00:00:00:00:01".parse().expect("an address");
        let link = NetLink::Socket(socket);
        let net = Net::open(&NetConfig { link, mac }).expect("a network stack");
        let (peer, _) = stack.accept().expect("a connection");
        peer.set_nonblocking(true).expect("a socket");
        let console = VirtioConsole::new(Arc::<ConsoleWatch>::default(), None);
        let console = Arc::new(console.expect("a descriptor"));
        let vsock = VsockConfig { socket: dir.path().join("vsock"), cid: 3 };
        let vsock = Vsock::open(&vsock).expect("a socket in it");
        let messages = Arc::new(Mutex::new(Vec::new()));
        let devices: [Arc<dyn VirtioDevice>; 5] = [
            Arc::new(Rng::default()),
            Arc::new(blk),
            Arc::new(net),
            Arc::clone(&console) as _,
            Arc::new(vsock),
        ];
        let function = |(slot, device)| {
            let device = Arc::new(Once(device, AtomicBool::new(false)));
            let kept = Arc::clone(&messages);
            let keep = move |message| {
                let mut kept = lock(&kept);
                if kept.len() < MESSAGES {
                    kept.push(message);
                }
            };
            let bar = bar(slot);
            let places = Arc::new(Places::default());
            let ram = ram.clone();
            let threads = Threads::default();
            let class = [0xff, 0];
            Arc::new(VirtioPci::new(Arc::new(keep), places, ram, device, class, bar, threads))
                as Arc<dyn PciFunction>
        };
        let bus = PciBus::new((1..).zip(devices).map(function).collect());
        Self { bus, ram, disk, peer, console, messages }
    }
}

/// Where the memory of a slot is at power-on.
pub(super) fn bar(slot: u32) -> u64 {
    PCI_BARS.0 + u64::from(slot) * BAR_LEN
}

impl DrivenPci {
    /// Has the driver do what `bytes` say, from power-on on.
    ///
    /// # Panics
    /// When a device does what none may.
    pub fn drive(&self, bytes: &[u8]) {
        self.ram.write(Gpa(0), &vec![0; to_usize(RAM)]).expect("RAM");
        lock(&self.messages).clear();
        let mut input = Input(bytes);
        while let [choice, rest @ ..] = input.0 {
            input.0 = rest;
            self.step(*choice, &mut input);
        }
        self.restore_itself();
        self.bus.reset();
        assert_eq!(self.disk.metadata().expect("a file").len(), DISK);
    }

    fn restore_itself(&self) {
        self.bus.pause();
        let saved = self.bus.save();
        self.bus.restore(&saved).expect("what is saved can be restored");
        self.bus.resume();
    }

    fn step(&self, choice: u8, input: &mut Input<'_>) {
        match choice % 16 {
            0 | 1 => {
                let (slot, offset) = (input.slot(), input.number(1));
                self.write_config(slot, u8::try_from(offset).expect("a byte"), &input.data());
            }
            2 => {
                let (slot, offset) = (input.slot(), input.number(1));
                let mut data = input.data();
                self.read_config(slot, u8::try_from(offset).expect("a byte"), &mut data);
            }
            3..=5 => {
                let (slot, offset) = (input.slot(), input.number(1) % 0x40);
                self.write(slot, COMMON + offset, &input.data());
            }
            6 => {
                let (slot, queue) = (input.slot(), input.number(1) % 4);
                self.write(slot, NOTIFY + queue * NOTIFY_STEP, &input.data());
            }
            7 => {
                let (slot, offset) = (input.slot(), input.number(2));
                self.write(slot, offset, &input.data());
            }
            8 => {
                let (slot, offset) = (input.slot(), input.number(2));
                self.read(slot, offset, &mut input.data());
            }
            9 | 10 => {
                let at = input.number(3) % (RAM - 64);
                let data = input.data();
                self.ram.write(Gpa(at), &data).expect("RAM");
            }
            11 => {
                let (port, mut data) = (input.number(2), input.data());
                let port = u16::try_from(port).expect("two bytes");
                self.bus.write_port(port, &data);
                self.bus.read_port(port, &mut data);
            }
            12 => {
                let (gpa, mut data) = (input.number(8), input.data());
                self.bus.write_memory(gpa, &data);
                self.bus.read_memory(gpa, &mut data);
            }
            13 | 14 => self.set_up(input.slot(), &[0, 1, 2].map(Place::of)),
            _ => self.step_of_the_host(input.number(1), input),
        }
    }

    /// The host does something meanwhile.
    fn step_of_the_host(&self, choice: u64, input: &mut Input<'_>) {
        match choice % 9 {
            0 => {
                self.bus.pause();
                self.bus.resume();
            }
            1 => self.bus.reset(),
            2 => self.restore_itself(),
            3 | 4 => {
                // A stack whose peer takes nothing waits; here its frame is lost.
                let frame = input.data();
                let len = u32::try_from(frame.len()).expect("a few");
                drop((&self.peer).write_all(&[&len.to_be_bytes()[..], &frame].concat()));
            }
            5 => drop((&self.peer).read(&mut [0; 1 << 16])),
            // Input that waits already may be all that there is room for.
            6 => drop(self.console.send(&input.data())),
            // The devices' threads have their turn.
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    fn select(&self, slot: u32, offset: u8) -> u16 {
        let address = 1 << 31 | slot << 11 | u32::from(offset & 0xfc);
        self.bus.write_port(CONFIG_ADDRESS, &address.to_le_bytes());
        CONFIG_DATA + u16::from(offset % 4)
    }

    pub(super) fn write_config(&self, slot: u32, offset: u8, data: &[u8]) {
        let port = self.select(slot, offset);
        self.bus.write_port(port, data);
    }

    pub(super) fn read_config(&self, slot: u32, offset: u8, data: &mut [u8]) {
        let port = self.select(slot, offset);
        self.bus.read_port(port, data);
    }

    /// Writes to the memory of a slot, where it is at power-on.
    pub(super) fn write(&self, slot: u32, offset: u64, data: &[u8]) {
        self.bus.write_memory(bar(slot) + offset, data);
    }

    pub(super) fn read(&self, slot: u32, offset: u64, data: &mut [u8]) {
        self.bus.read_memory(bar(slot) + offset, data);
    }

    /// Resets a device, and agrees on `features` beside version 1.
    pub(super) fn agree(&self, slot: u32, features: u64) {
        // Memory space and bus master.
        self.write_config(slot, 4, &[6, 0]);
        for status in [0, 1, 3] {
            self.write(slot, STATUS, &[status]);
        }
        let features = features | 1 << VIRTIO_F_VERSION_1;
        for (select, half) in [(0_u32, features), (1, features >> 32)] {
            self.write(slot, COMMON + 0x08, &select.to_le_bytes());
            self.write(slot, COMMON + 0x0c, &half.to_le_bytes()[..4]);
        }
        self.write(slot, STATUS, &[0xb]);
    }

    /// Describes a queue of `size` descriptors, and enables it.
    pub(super) fn enable(&self, slot: u32, queue: u16, size: u16, place: Place) {
        self.write(slot, COMMON + 0x16, &queue.to_le_bytes());
        self.write(slot, COMMON + 0x18, &size.to_le_bytes());
        self.write(slot, COMMON + 0x1a, &queue.to_le_bytes());
        self.write(slot, COMMON + 0x20, &place.descriptors.to_le_bytes());
        self.write(slot, COMMON + 0x28, &place.available.to_le_bytes());
        self.write(slot, COMMON + 0x30, &place.used.to_le_bytes());
        self.write(slot, COMMON + 0x1c, &1_u16.to_le_bytes());
    }

    /// Starts a device as an honest driver does, with queues at these places.
    pub(super) fn set_up(&self, slot: u32, places: &[Place]) {
        self.agree(slot, 0);
        for (queue, place) in (0..).zip(places) {
            self.enable(slot, queue, SIZE, *place);
        }
        self.write(slot, STATUS, &[0xf]);
    }
}
