//! RAM and queues of a device under test, whose driver is the test.

use std::sync::Arc;

use exoprobe_guest::memory::RamRange;
use exoprobe_guest::{Gpa, GuestRam};
use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::QueueHandle;
use super::device::Interrupt;
use super::raised::Raised;
use super::worker::Queues;

/// A buffer of a request: address, length, the device may write to it.
pub(super) type Buffer = (u64, u32, bool);

/// Where the parts of a queue are, from its beginning.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x4000;
/// Bytes from one queue to the next; the first is at 0.
const QUEUE: u64 = 0x1_0000;

/// The queues, and how much the driver has put into each.
pub(super) struct TestQueues {
    pub(super) ram: GuestRam,
    pub(super) queues: Queues,
    raised: Arc<Raised>,
    /// Descriptors and chains given so far.
    given: Vec<(u16, u16)>,
}

impl TestQueues {
    /// So many queues of `size` descriptors, in RAM of `ram` bytes.
    pub(super) fn new(ram: u64, count: usize, size: u16) -> Self {
        let ram = GuestRam::anonymous(&[RamRange { start: Gpa(0), len: ram }]).unwrap();
        let raised = Arc::new(Raised::default());
        let queue = |number: usize| {
            let start = u32::try_from(QUEUE).unwrap() * u32::try_from(number).unwrap();
            let at = |part: u64| Some(start + u32::try_from(part).unwrap());
            let mut queue = Queue::new(size).unwrap();
            queue.set_desc_table_address(at(DESCRIPTORS), Some(0));
            queue.set_avail_ring_address(at(AVAILABLE), Some(0));
            queue.set_used_ring_address(at(USED), Some(0));
            queue.set_ready(true);
            let kick = EventFd::new(EFD_NONBLOCK).unwrap();
            let interrupt = Arc::clone(&raised) as Arc<dyn Interrupt>;
            (number, QueueHandle { queue, kick, interrupt })
        };
        let queues = (0..count).map(queue).collect();
        Self { ram, queues, raised, given: vec![(0, 0); count] }
    }

    pub(super) fn memory(&self) -> &GuestMemoryMmap {
        self.ram.as_memory()
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        self.memory().write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub(super) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory().read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    /// Descriptors given so far.
    pub(super) fn given(&self, queue: usize) -> u16 {
        self.given[queue].0
    }

    /// Gives a request. Returns its first descriptor.
    pub(super) fn give(&mut self, queue: usize, buffers: &[Buffer]) -> u16 {
        let start = QUEUE * queue as u64;
        let (first, chains) = self.given[queue];
        let mut place = first;
        for (number, (at, len, is_written)) in buffers.iter().enumerate() {
            let more = if number + 1 < buffers.len() { VRING_DESC_F_NEXT } else { 0 };
            let flags = more | if *is_written { VRING_DESC_F_WRITE } else { 0 };
            let descriptor = [
                &at.to_le_bytes()[..],
                &len.to_le_bytes(),
                &u16::try_from(flags).unwrap().to_le_bytes(),
                &(place + 1).to_le_bytes(),
            ];
            self.write(start + 16 * u64::from(place), &descriptor.concat());
            place += 1;
        }
        self.write(start + AVAILABLE + 4 + 2 * u64::from(chains), &first.to_le_bytes());
        self.write(start + AVAILABLE + 2, &(chains + 1).to_le_bytes());
        self.given[queue] = (place, chains + 1);
        first
    }

    /// Sets the count of requests given, without a request.
    pub(super) fn jump(&self, queue: usize, chains: u16) {
        self.write(QUEUE * queue as u64 + AVAILABLE + 2, &chains.to_le_bytes());
    }

    /// Requests that were given back: the first descriptor of each, and the bytes written to it.
    pub(super) fn used(&self, queue: usize) -> Vec<(u32, u32)> {
        let start = QUEUE * queue as u64 + USED;
        let number = |at: u64| self.memory().read_obj::<u32>(GuestAddress(start + at)).unwrap();
        let count = u64::from(number(0) >> 16);
        (0..count).map(|entry| (number(4 + 8 * entry), number(8 + 8 * entry))).collect()
    }

    /// Bytes written to each of these.
    pub(super) fn written(&self, queue: usize) -> Vec<u32> {
        self.used(queue).into_iter().map(|(_, written)| written).collect()
    }

    /// Returns whether the queue was kicked since the last call.
    pub(super) fn is_kicked(&self, queue: usize) -> bool {
        self.queues[queue].1.kick.read().is_ok()
    }

    pub(super) fn interrupts(&self) -> usize {
        self.raised.count()
    }
}
