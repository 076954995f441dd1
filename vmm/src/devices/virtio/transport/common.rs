//! The common configuration of a device (Virtual I/O Device 1.2, 4.1.4.3): features, status and
//! queues, as the driver reads and writes them.

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_F_VERSION_1,
};
use virtio_queue::{Queue, QueueState, QueueT};

/// A vector that means none.
pub(crate) const NO_VECTOR: u16 = 0xffff;
/// Bytes of `struct virtio_pci_common_cfg`.
pub(crate) const COMMON_LEN: u64 = 0x38;

/// The effect of a write on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// To stop where it stands: the driver has given up.
    Stop,
    /// To stop, and to be as it was made.
    Reset,
    /// To serve its queues.
    Start,
}

/// The registers in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct CommonSnapshot {
    accepted: u64,
    offered_select: u32,
    accepted_select: u32,
    status: u8,
    config_vector: u16,
    queue_select: u16,
    queues: Vec<QueueSnapshot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct QueueSnapshot {
    vector: u16,
    size: u16,
    ready: bool,
    desc_table: u64,
    avail_ring: u64,
    used_ring: u64,
    next_avail: u16,
    next_used: u16,
}

impl QueueSnapshot {
    fn of(queue: &Queue, vector: u16) -> Self {
        let QueueState {
            next_avail,
            next_used,
            size,
            ready,
            desc_table,
            avail_ring,
            used_ring,
            ..
        } = queue.state();
        Self { vector, size, ready, desc_table, avail_ring, used_ring, next_avail, next_used }
    }

    /// The queue, of at most `max_size` descriptors; none if it cannot be one.
    fn queue(&self, max_size: u16) -> Option<Queue> {
        let Self { size, ready, desc_table, avail_ring, used_ring, next_avail, next_used, .. } =
            *self;
        let event_idx_enabled = false;
        let state = QueueState {
            max_size,
            next_avail,
            next_used,
            event_idx_enabled,
            size,
            ready,
            desc_table,
            avail_ring,
            used_ring,
        };
        Queue::try_from(state).ok()
    }
}

/// The registers.
#[derive(Debug)]
pub(crate) struct CommonConfig {
    offered: u64,
    accepted: u64,
    offered_select: u32,
    accepted_select: u32,
    status: u8,
    config_vector: u16,
    queue_select: u16,
    /// Vectors of the device: a driver cannot choose another.
    vectors: u16,
    queues: Vec<(Queue, u16)>,
}

impl CommonConfig {
    /// Of a device with these features and queues, each of at most so many descriptors.
    pub(crate) fn new(features: u64, queue_sizes: &[u16], vectors: u16) -> Self {
        let queue = |size: &u16| (Queue::new(*size).expect("a power of two"), NO_VECTOR);
        Self {
            offered: features | 1 << VIRTIO_F_VERSION_1,
            accepted: 0,
            offered_select: 0,
            accepted_select: 0,
            status: 0,
            config_vector: NO_VECTOR,
            queue_select: 0,
            vectors,
            queues: queue_sizes.iter().map(queue).collect(),
        }
    }

    /// The driver is ready, and has not given up.
    pub(crate) fn is_running(&self) -> bool {
        let is_ready = self.has(VIRTIO_CONFIG_S_DRIVER_OK) && self.has(VIRTIO_CONFIG_S_FEATURES_OK);
        is_ready && !self.has(VIRTIO_CONFIG_S_FAILED)
    }

    fn has(&self, bit: u32) -> bool {
        u32::from(self.status) & bit != 0
    }

    /// Queues that the driver has enabled, with their places and vectors.
    pub(crate) fn enabled_queues(&self) -> impl Iterator<Item = (usize, &Queue, u16)> {
        let all = self.queues.iter().enumerate();
        all.filter(|(_, (queue, _))| queue.ready())
            .map(|(at, (queue, vector))| (at, queue, *vector))
    }

    /// The vector of changes of the device's configuration.
    pub(crate) const fn config_vector(&self) -> u16 {
        self.config_vector
    }

    /// The device has stopped with its queues where these stand.
    pub(crate) fn set_positions(&mut self, queues: impl Iterator<Item = (usize, Queue)>) {
        for (at, queue) in queues {
            if let Some((own, _)) = self.queues.get_mut(at) {
                *own = queue;
            }
        }
    }

    pub(crate) fn save(&self) -> CommonSnapshot {
        let queue = |(queue, vector): &(Queue, u16)| QueueSnapshot::of(queue, *vector);
        CommonSnapshot {
            accepted: self.accepted,
            offered_select: self.offered_select,
            accepted_select: self.accepted_select,
            status: self.status,
            config_vector: self.config_vector,
            queue_select: self.queue_select,
            queues: self.queues.iter().map(queue).collect(),
        }
    }

    /// Takes over the registers of a snapshot; false if this device cannot have them.
    pub(crate) fn restore(&mut self, from: &CommonSnapshot) -> bool {
        let restored = |((own, _), saved): (&(Queue, u16), &QueueSnapshot)| {
            Some((saved.queue(own.max_size())?, self.vector(saved.vector.into())))
        };
        let queues = self.queues.iter().zip(&from.queues).map(restored);
        let queues: Option<Vec<_>> = queues.collect();
        let Some(queues) = queues.filter(|_| from.queues.len() == self.queues.len()) else {
            return false;
        };
        let is_settled = u32::from(from.status) & VIRTIO_CONFIG_S_FEATURES_OK != 0;
        if is_settled && from.accepted & !self.offered != 0 {
            return false;
        }
        self.queues = queues;
        (self.accepted, self.status) = (from.accepted, from.status);
        self.config_vector = self.vector(from.config_vector.into());
        self.offered_select = from.offered_select;
        self.accepted_select = from.accepted_select;
        self.queue_select = from.queue_select;
        true
    }

    fn reset(&mut self) {
        for (queue, vector) in &mut self.queues {
            queue.reset();
            *vector = NO_VECTOR;
        }
        (self.accepted, self.status, self.config_vector) = (0, 0, NO_VECTOR);
        (self.offered_select, self.accepted_select, self.queue_select) = (0, 0, 0);
    }

    /// A read; fields may be read as a whole, or a 64-bit one by its halves. Elsewhere 0, as at the
    /// generation of the device's own configuration, which is not here.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        let value = self.field(offset);
        data.fill(0);
        for (to, from) in data.iter_mut().zip(value.to_le_bytes()) {
            *to = from;
        }
    }

    fn field(&self, offset: u64) -> u64 {
        let half = |bits: u64, select: u32| match select {
            0 => bits & 0xffff_ffff,
            1 => bits >> 32,
            _ => 0,
        };
        match offset {
            0x00 => self.offered_select.into(),
            0x04 => half(self.offered, self.offered_select),
            0x08 => self.accepted_select.into(),
            0x0c => half(self.accepted, self.accepted_select),
            0x10 => self.config_vector.into(),
            0x12 => self.queues.len() as u64,
            0x14 => self.status.into(),
            0x16 => self.queue_select.into(),
            _ => self.queue_field(offset).unwrap_or(0),
        }
    }

    fn queue_field(&self, offset: u64) -> Option<u64> {
        let (queue, vector) = self.queues.get(usize::from(self.queue_select))?;
        Some(match offset {
            0x18 => queue.size().into(),
            0x1a => (*vector).into(),
            0x1c => queue.ready().into(),
            // Each queue has a notification address of its own, by its number.
            0x1e => self.queue_select.into(),
            0x20 => queue.desc_table(),
            0x24 => queue.desc_table() >> 32,
            0x28 => queue.avail_ring(),
            0x2c => queue.avail_ring() >> 32,
            0x30 => queue.used_ring(),
            0x34 => queue.used_ring() >> 32,
            _ => return None,
        })
    }

    /// A write. Those that the specification does not allow change nothing.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        if data.len() == 8 && matches!(offset, 0x20 | 0x28 | 0x30) {
            self.write(offset, &data[..4]);
            return self.write(offset + 4, &data[4..]);
        }
        let mut bytes = [0; 4];
        let Some(part) = bytes.get_mut(..data.len()) else { return Effect::None };
        part.copy_from_slice(data);
        let value = u32::from_le_bytes(bytes);
        match (offset, data.len()) {
            (0x00, 4) => self.offered_select = value,
            (0x08, 4) => self.accepted_select = value,
            (0x0c, 4) => self.accept(value),
            (0x10, 2) => self.config_vector = self.vector(value),
            (0x14, 1) => return self.set_status(data[0]),
            (0x16, 2) => self.queue_select = low16(value),
            (0x18..0x38, 2 | 4) => self.write_queue(offset, value, data.len()),
            _ => {}
        }
        Effect::None
    }

    fn vector(&self, value: u32) -> u16 {
        Some(low16(value)).filter(|vector| *vector < self.vectors).unwrap_or(NO_VECTOR)
    }

    fn accept(&mut self, value: u32) {
        // Settled by FEATURES_OK.
        if self.has(VIRTIO_CONFIG_S_FEATURES_OK) {
            return;
        }
        let (value, shift) = match self.accepted_select {
            0 => (u64::from(value), 0),
            1 => (u64::from(value), 32),
            _ => return,
        };
        self.accepted = self.accepted & !(0xffff_ffff << shift) | value << shift;
    }

    fn set_status(&mut self, status: u8) -> Effect {
        if status == 0 {
            self.reset();
            return Effect::Reset;
        }
        let was_running = self.is_running();
        // A driver clears bits by a reset only (2.1.1): between two of them a device starts once.
        self.status |= status;
        let needed = 1 << VIRTIO_F_VERSION_1;
        let agreed = self.accepted & !self.offered == 0 && self.accepted & needed != 0;
        if !agreed {
            // The driver reads it back, and gives up.
            self.status &= !u8::try_from(VIRTIO_CONFIG_S_FEATURES_OK).expect("a byte");
        }
        match (was_running, self.is_running()) {
            (false, true) => Effect::Start,
            (true, false) => Effect::Stop,
            _ => Effect::None,
        }
    }

    fn write_queue(&mut self, offset: u64, value: u32, len: usize) {
        let vector = self.vector(value);
        let started = self.has(VIRTIO_CONFIG_S_DRIVER_OK);
        let Some((queue, of_queue)) = self.queues.get_mut(usize::from(self.queue_select)) else {
            return;
        };
        if (offset, len) == (0x1a, 2) {
            *of_queue = vector;
            return;
        }
        // A queue in use stays where it is.
        if queue.ready() || started {
            return;
        }
        match (offset, len) {
            (0x18, 2) => queue.set_size(low16(value)),
            (0x1c, 2) => queue.set_ready(value == 1),
            (0x20, 4) => queue.set_desc_table_address(Some(value), None),
            (0x24, 4) => queue.set_desc_table_address(None, Some(value)),
            (0x28, 4) => queue.set_avail_ring_address(Some(value), None),
            (0x2c, 4) => queue.set_avail_ring_address(None, Some(value)),
            (0x30, 4) => queue.set_used_ring_address(Some(value), None),
            (0x34, 4) => queue.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }
}

fn low16(value: u32) -> u16 {
    u16::try_from(value & 0xffff).expect("16 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACKNOWLEDGE_DRIVER: u8 = 3;
    const FEATURES_OK: u8 = 8;
    const DRIVER_OK: u8 = 4;

    fn read(config: &CommonConfig, offset: u64, len: usize) -> u64 {
        let mut bytes = [0; 8];
        config.read(offset, &mut bytes[..len]);
        u64::from_le_bytes(bytes)
    }

    fn agree(config: &mut CommonConfig, features: u64) -> u64 {
        config.write(0x14, &[ACKNOWLEDGE_DRIVER]);
        for (select, half) in [(0_u32, features), (1, features >> 32)] {
            config.write(0x08, &select.to_le_bytes());
            config.write(0x0c, &half.to_le_bytes()[..4]);
        }
        config.write(0x14, &[ACKNOWLEDGE_DRIVER | FEATURES_OK]);
        read(config, 0x14, 1) & u64::from(FEATURES_OK)
    }

    #[test]
    fn features_are_agreed_on_or_refused() {
        let mut config = CommonConfig::new(0b10, &[256], 2);
        assert_eq!(read(&config, 0x04, 4), 0b10);
        config.write(0x00, &1_u32.to_le_bytes());
        assert_eq!(read(&config, 0x04, 4), 1, "VERSION_1");
        assert_eq!(agree(&mut config, 1 << 32 | 0b100), 0, "not offered");
        assert_eq!(config.write(0x14, &[0]), Effect::Reset);
        assert_eq!(agree(&mut config, 0b10), 0, "not of version 1");
        assert_eq!(
            config.write(0x14, &[ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK]),
            Effect::None
        );
        config.write(0x14, &[0]);
        assert_ne!(agree(&mut config, 1 << 32 | 0b10), 0);
        config.write(0x0c, &0_u32.to_le_bytes());
        assert_eq!(config.accepted, 1 << 32 | 0b10, "settled");
        assert_eq!(config.write(0x14, &[15]), Effect::Start);
        assert_eq!(config.write(0x14, &[15]), Effect::None, "once");
        assert!(config.is_running());
        assert_eq!(config.write(0x14, &[15 | 128]), Effect::Stop);
        assert!(!config.is_running());
    }

    #[test]
    fn a_device_starts_once_between_two_resets() {
        let mut config = CommonConfig::new(0, &[256], 2);
        agree(&mut config, 1 << 32);
        assert_eq!(config.write(0x14, &[15]), Effect::Start);
        for status in [1, 11, 15, 4, 8, 15] {
            assert_eq!(config.write(0x14, &[status]), Effect::None, "{status}");
            assert_eq!(read(&config, 0x14, 1), 15, "bits are set, not cleared");
        }
        config.write(0x0c, &0_u32.to_le_bytes());
        assert_eq!(config.accepted, 1 << 32, "settled");
        assert_eq!(config.write(0x14, &[128]), Effect::Stop);
        assert_eq!(config.write(0x14, &[15]), Effect::None, "it has given up");
        assert_eq!(config.write(0x14, &[0]), Effect::Reset);
        agree(&mut config, 1 << 32);
        assert_eq!(config.write(0x14, &[15]), Effect::Start);
    }

    #[test]
    fn queues_are_set_up_one_by_one() {
        let mut config = CommonConfig::new(0, &[256, 64], 2);
        assert_eq!(read(&config, 0x12, 2), 2);
        config.write(0x16, &1_u16.to_le_bytes());
        assert_eq!((read(&config, 0x18, 2), read(&config, 0x1e, 2)), (64, 1));
        config.write(0x18, &16_u16.to_le_bytes());
        config.write(0x1a, &1_u16.to_le_bytes());
        config.write(0x20, &0x1_0000_1000_u64.to_le_bytes());
        config.write(0x28, &0x2000_u32.to_le_bytes());
        config.write(0x30, &0x3000_u32.to_le_bytes());
        config.write(0x1c, &1_u16.to_le_bytes());
        config.write(0x28, &0x5000_u32.to_le_bytes());
        assert_eq!((read(&config, 0x20, 8), read(&config, 0x28, 8)), (0x1_0000_1000, 0x2000));
        assert_eq!(read(&config, 0x24, 4), 1);
        let found: Vec<_> =
            config.enabled_queues().map(|(at, queue, vector)| (at, queue.size(), vector)).collect();
        assert_eq!(found, [(1, 16, 1)]);
        config.write(0x1a, &2_u16.to_le_bytes());
        assert_eq!(read(&config, 0x1a, 2), u64::from(NO_VECTOR), "there is no such vector");
        config.write(0x16, &7_u16.to_le_bytes());
        config.write(0x1c, &1_u16.to_le_bytes());
        assert_eq!((read(&config, 0x18, 2), read(&config, 0x1c, 2)), (0, 0), "no such queue");
        config.write(0x14, &[0]);
        assert_eq!(config.enabled_queues().count(), 0);
    }

    #[test]
    fn a_snapshot_has_all_that_the_driver_has_set() {
        let mut config = CommonConfig::new(0b10, &[256, 64], 2);
        agree(&mut config, 1 << 32 | 0b10);
        config.write(0x16, &1_u16.to_le_bytes());
        config.write(0x18, &16_u16.to_le_bytes());
        config.write(0x1a, &1_u16.to_le_bytes());
        config.write(0x20, &0x1000_u64.to_le_bytes());
        config.write(0x1c, &1_u16.to_le_bytes());
        config.write(0x14, &[15]);
        let mut moved = Queue::try_from(config.queues[1].0.state()).unwrap();
        moved.set_next_avail(7);
        config.set_positions([(1, moved), (2, Queue::new(2).unwrap())].into_iter());
        let saved = config.save();
        let mut restored = CommonConfig::new(0b10, &[256, 64], 2);
        assert!(restored.restore(&saved) && restored.is_running());
        assert_eq!(restored.save(), saved);
        assert_eq!(restored.queues[1].0.next_avail(), 7);
        for other in [
            CommonConfig::new(0b10, &[256], 2),
            CommonConfig::new(0b10, &[256, 8], 2),
            CommonConfig::new(0, &[256, 64], 2),
        ] {
            let mut other = other;
            assert!(!other.restore(&saved));
            assert!(!other.is_running());
        }
    }

    proptest! {
        /// Whatever a driver writes: no panic, and what is saved can be restored.
        #[test]
        fn any_accesses_are_survived(
            accesses in prop::collection::vec((0..0x50_u64, prop::collection::vec(any::<u8>(), 1..=8)), 0..60),
        ) {
            let mut config = CommonConfig::new(0b110, &[256, 64], 3);
            for (offset, data) in accesses {
                config.write(offset, &data);
                config.read(offset, &mut data.clone());
                prop_assert!(!config.is_running() || config.accepted & !config.offered == 0);
            }
            let saved = config.save();
            let mut restored = CommonConfig::new(0b110, &[256, 64], 3);
            prop_assert!(restored.restore(&saved));
            prop_assert_eq!(restored.save(), saved);
        }
    }
}
