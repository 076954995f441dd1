//! The driver's side of a queue, honest or not.

use std::io::Write as _;
use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use exoprobe_guest::Gpa;

use super::super::driven::{DISK, DrivenPci, Place, SIZE, UNNAMED};
use super::super::pci::{COMMON, NOTIFY, NOTIFY_STEP, STATUS};

pub(super) use super::super::driven::{RAM, bar};

/// Slots of the devices.
pub(super) const RNG: u32 = 1;
pub(super) const BLK: u32 = 2;
pub(super) const NET: u32 = 3;
pub(super) const CONSOLE: u32 = 4;
pub(super) const VSOCK: u32 = 5;
/// All of them.
pub(super) const SLOTS: [u32; 5] = [RNG, BLK, NET, CONSOLE, VSOCK];

/// Queues of a device.
pub(super) const fn queues(slot: u32) -> u16 {
    match slot {
        RNG | BLK => 1,
        NET | CONSOLE => 2,
        _ => 3,
    }
}

/// Queues of which a device takes what there is, when the host has sent something.
pub(super) fn served(slot: u32) -> Range<u16> {
    if slot == VSOCK { 1..2 } else { 0..queues(slot) }
}

/// Flags of descriptors (2.7.5).
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;
/// Addresses for buffers.
pub(super) const BUFFERS: u64 = 0x1_0000;
/// The queue of requests of a disk, and of random numbers.
pub(super) const QUEUE: Place = Place::of(0);
/// Only a hang takes so long: a test, and a state in it.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_OF_A_STATE: Duration = Duration::from_secs(60);
const PATTERN: [u8; 0x1000] = [0xc5; 0x1000];

/// Runs a test on a bus of its own. Fails when the test hangs, when its devices do not serve an
/// honest driver afterwards, or when they wrote where nothing may be written.
pub(super) fn with_bus(test: impl FnOnce(&DrivenPci) + Send + 'static) {
    let (end, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let bus = DrivenPci::default();
        bus.ram.write(UNNAMED.start, &PATTERN).unwrap();
        test(&bus);
        bus.assert_intact();
        bus.assert_serves();
        end.send(()).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        // The test's own failure.
        _ => thread.join().unwrap(),
    }
}

/// Waits for a state.
pub(super) fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..PATIENCE_OF_A_STATE.as_millis() {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: never");
}

/// A descriptor: address, length, flags, next.
pub(super) type Descriptor = (u64, u32, u16, u16);

impl DrivenPci {
    pub(super) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut found = vec![0; len];
        self.ram.read(Gpa(at), &mut found).unwrap();
        found
    }

    pub(super) fn half(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.bytes(at, 2).try_into().unwrap())
    }

    pub(super) fn set(&self, at: u64, bytes: &[u8]) {
        self.ram.write(Gpa(at), bytes).unwrap();
    }

    /// Writes a table of descriptors.
    pub(super) fn describe(&self, table: u64, descriptors: &[Descriptor]) {
        for (at, (address, len, flags, next)) in (0..).zip(descriptors) {
            let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes()].concat();
            let rest = [flags.to_le_bytes(), next.to_le_bytes()].concat();
            self.set(table + 16 * at, &[bytes, rest].concat());
        }
    }

    /// Makes a chain available.
    pub(super) fn offer(&self, place: Place, head: u16) {
        let index = self.half(place.available + 2);
        self.set(place.available + 4 + 2 * u64::from(index % SIZE), &head.to_le_bytes());
        self.set(place.available + 2, &index.wrapping_add(1).to_le_bytes());
    }

    pub(super) fn notify(&self, slot: u32, queue: u16) {
        self.write(slot, NOTIFY + u64::from(queue) * NOTIFY_STEP, &queue.to_le_bytes());
    }

    /// Chains that came back.
    pub(super) fn used(&self, place: Place) -> u16 {
        self.half(place.used + 2)
    }

    /// Head and length of the chain that came back after `at` others.
    pub(super) fn used_element(&self, place: Place, at: u16) -> (u16, u16) {
        let element = place.used + 4 + 8 * u64::from(at % SIZE);
        (self.half(element), self.half(element + 4))
    }

    /// Forgets all that the rings of a queue hold.
    pub(super) fn clear(&self, place: Place) {
        for (start, len) in [(place.descriptors, 256), (place.available, 38), (place.used, 134)] {
            self.set(start, &vec![0; len]);
        }
    }

    pub(super) fn status(&self, slot: u32) -> u8 {
        let mut status = [0];
        self.read(slot, STATUS, &mut status);
        status[0]
    }

    /// Sets a device up with empty queues.
    pub(super) fn start(&self, slot: u32) {
        let places: Vec<_> = (0..queues(slot)).map(|queue| Place::of(queue.into())).collect();
        // Nothing of it touches its queues any more.
        self.write(slot, STATUS, &[0]);
        places.iter().for_each(|place| self.clear(*place));
        self.set_up(slot, &places);
    }

    pub(super) fn is_enabled(&self, slot: u32, queue: u16) -> bool {
        let mut found = [0; 2];
        self.write(slot, COMMON + 0x16, &queue.to_le_bytes());
        self.read(slot, COMMON + 0x1c, &mut found);
        found == [1, 0]
    }

    /// Waits until a chain came back, or the device serves the queue no more.
    pub(super) fn settle(&self, slot: u32, queue: u16, place: Place) {
        until("it comes back, or ends the queue", || {
            // The registers have where the queue stands when the device is paused.
            self.bus.pause();
            let is_settled = self.used(place) != 0 || !self.is_enabled(slot, queue);
            self.bus.resume();
            is_settled
        });
    }

    /// Starts a device, and gives it one request of these descriptors, the first of which is its
    /// head. Returns the length that came back with it.
    pub(super) fn request(&self, slot: u32, descriptors: &[Descriptor]) -> u16 {
        self.start(slot);
        self.describe(QUEUE.descriptors, descriptors);
        self.offer(QUEUE, 0);
        self.notify(slot, 0);
        until("the request comes back", || self.used(QUEUE) == 1);
        self.used_element(QUEUE, 0).1
    }

    /// Writes the header of a request of a disk.
    pub(super) fn blk_header(&self, kind: u32, sector: u64) {
        let kind = [kind.to_le_bytes(), [0; 4]].concat();
        self.set(BUFFERS, &[kind, sector.to_le_bytes().to_vec()].concat());
    }

    /// The network stack sends a frame.
    pub(super) fn frame_from_the_host(&self, frame: &[u8]) {
        self.frames_from_the_host(&[frame]);
    }

    /// The host sends something to each device that receives.
    pub(super) fn something_from_the_host(&self) {
        self.frame_from_the_host(&[7; 60]);
        self.console.send(b"input").unwrap();
    }

    pub(super) fn frames_from_the_host(&self, frames: &[&[u8]]) {
        let len = |frame: &[u8]| u32::try_from(frame.len()).unwrap().to_be_bytes();
        let stream: Vec<u8> =
            frames.iter().flat_map(|frame| [&len(frame)[..], frame].concat()).collect();
        (&self.peer).write_all(&stream).unwrap();
    }

    /// Nothing was written where nothing may be.
    fn assert_intact(&self) {
        self.bus.pause();
        let found = self.bytes(UNNAMED.start.0, PATTERN.len());
        assert!(found == PATTERN, "RAM that the driver has not named");
        assert_eq!(self.disk.metadata().unwrap().len(), DISK);
        self.bus.resume();
    }

    /// An honest driver, after all: random numbers, and a sector.
    pub(super) fn assert_serves(&self) {
        self.bus.reset();
        self.set(BUFFERS, &[0; 0x1000]);
        assert_eq!(self.request(RNG, &[(BUFFERS, 64, WRITE, 0)]), 64);
        assert_ne!(self.bytes(BUFFERS, 64), [0; 64]);
        self.blk_header(0, 1);
        self.set(BUFFERS + 16 + 512, &[0xee]);
        let read = [(BUFFERS, 16, NEXT, 1), (BUFFERS + 16, 513, WRITE, 0)];
        assert_eq!(self.request(BLK, &read), 513);
        assert_eq!(self.bytes(BUFFERS + 16 + 512, 1), [0], "its outcome");
    }
}
