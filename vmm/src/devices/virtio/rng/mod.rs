//! Random numbers: virtio entropy device (Virtual I/O Device 1.2, 5.4), from the host's.

use std::io::{self, Write as _};

use rustix::rand::{GetRandomFlags, getrandom};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::Writer;
use vm_memory::GuestMemoryMmap;

use super::worker::{Chain, Requests};
use super::{Activation, QueueHandle, VirtioDevice, Worker};
use crate::threads::ThreadKind;

/// Descriptors of the queue.
const QUEUE_SIZE: u16 = 64;
/// Most bytes of a request that are filled: more than drivers ask for.
const BYTES_MAX: usize = 4096;

/// The device.
#[derive(Default)]
pub(crate) struct Rng(Worker);

impl VirtioDevice for Rng {
    fn device_type(&self) -> u16 {
        u16::try_from(VIRTIO_ID_RNG).expect("4")
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn config_generation(&self) -> u8 {
        0
    }

    /// It has none.
    fn read_config(&self, _: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let serve = |_, memory: &GuestMemoryMmap, chain: Chain<'_>| {
            fill(memory, chain).unwrap_or_else(|error| {
                tracing::debug!(%error, "random numbers");
                0
            })
        };
        self.0.start(ThreadKind::Random, activation, None, Requests(serve))
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.0.stop()
    }
}

/// Fills the buffers of a request. Returns the bytes.
fn fill(memory: &GuestMemoryMmap, chain: Chain<'_>) -> io::Result<u32> {
    let mut writer = Writer::new(memory, chain).map_err(io::Error::other)?;
    let mut bytes = vec![0; writer.available_bytes().min(BYTES_MAX)];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    writer.write_all(&bytes)?;
    Ok(u32::try_from(bytes.len()).expect("4096 at most"))
}

#[cfg(test)]
mod tests {
    use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    const RAM: usize = 1 << 20;
    const BUFFERS: u64 = 0x8_0000;

    fn filled(parts: &[(u64, u32, bool)]) -> (io::Result<u32>, Vec<u8>) {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)]).unwrap();
        let queue = MockSplitQueue::new(&memory, 16);
        let flags = u16::try_from(VRING_DESC_F_WRITE).unwrap();
        let descriptors: Vec<RawDescriptor> = parts
            .iter()
            .map(|(at, len, written)| {
                Descriptor::new(*at, *len, if *written { flags } else { 0 }, 0).into()
            })
            .collect();
        let result = fill(&memory, queue.build_desc_chain(&descriptors).unwrap());
        let mut found = vec![0; 8192];
        memory.read_slice(&mut found, GuestAddress(BUFFERS)).unwrap();
        (result, found)
    }

    #[test]
    fn buffers_are_filled_and_nothing_else() {
        let (result, found) = filled(&[(BUFFERS, 64, true), (BUFFERS + 100, 64, true)]);
        assert_eq!(result.unwrap(), 128);
        assert!(found[..64].iter().any(|byte| *byte != 0));
        assert!(found[100..164].iter().any(|byte| *byte != 0));
        assert!(found[64..100].iter().chain(&found[164..]).all(|byte| *byte == 0));
    }

    #[test]
    fn a_request_has_a_bound_and_must_be_in_ram() {
        let (result, found) = filled(&[(BUFFERS, 8192, true)]);
        assert_eq!(result.unwrap(), 4096);
        assert!(found[4096..].iter().all(|byte| *byte == 0));
        assert!(filled(&[(RAM as u64 - 8, 64, true)]).0.is_err());
        assert_eq!(filled(&[(BUFFERS, 64, false)]).0.unwrap(), 0, "nothing to fill");
    }
}
