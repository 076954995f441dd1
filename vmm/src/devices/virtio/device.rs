//! The interface between a device and its transport.

use std::sync::Arc;

use exoprobe_guest::GuestRam;
use virtio_queue::Queue;
use vmm_sys_util::eventfd::EventFd;

use crate::threads::Threads;

/// The way to interrupt the guest for one queue.
pub(crate) trait Interrupt: Send + Sync {
    /// Notifies the driver of used buffers of the queue.
    fn raise(&self);
}

/// A queue in the hands of its device.
pub(crate) struct QueueHandle {
    pub(crate) queue: Queue,
    /// Readable when the driver has made buffers available.
    pub(crate) kick: EventFd,
    pub(crate) interrupt: Arc<dyn Interrupt>,
}

/// Memory and queues of a device that starts.
pub(crate) struct Activation {
    pub(crate) ram: GuestRam,
    /// Those that the driver has enabled, by number.
    pub(crate) queues: Vec<(usize, QueueHandle)>,
    /// Notifies the driver of a change of the device's configuration.
    pub(crate) config_changed: Arc<dyn Interrupt>,
    /// Starts its threads.
    pub(crate) threads: Threads,
}

/// A device without its transport.
pub(crate) trait VirtioDevice: Send + Sync {
    /// Its number (5, Device Types).
    fn device_type(&self) -> u16;
    /// Features beside those of the transport.
    fn features(&self) -> u64;
    /// Most descriptors of each queue, powers of two.
    fn queue_sizes(&self) -> &[u16];
    /// Differs when its configuration has changed.
    fn config_generation(&self) -> u8;
    /// A read of its configuration; beyond its end 0.
    fn read_config(&self, offset: u64, data: &mut [u8]);
    /// Serves its queues from now on.
    ///
    /// # Errors
    /// The system's, when a thread cannot be started.
    fn start(&self, activation: Activation) -> std::io::Result<()>;
    /// Stops. Returns its queues where they stand, when nothing of it touches the guest's memory
    /// any more; none if it did not run.
    fn stop(&self) -> Vec<(usize, QueueHandle)>;
    /// Forgets all that was under way with the driver, which has reset it. It does not run.
    fn reset(&self) {}
    /// The driver is one of a snapshot: it goes on with a device that was another. It does not run.
    fn restored(&self) {}
}
