//! The device: its configuration, and its queues.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use vmm_sys_util::epoll::EventSet;

use super::VsockError;
use super::host::HostSocket;
use super::muxer::Muxer;
use super::queues::Packets;
use crate::config::VsockConfig;
use crate::devices::virtio::worker::Source;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice, Worker};
use crate::threads::ThreadKind;

/// Descriptors of each queue: to receive, to transmit, for events.
const QUEUE_SIZES: [u16; 3] = [128, 128, 16];

/// The guest's sockets to the host.
pub(crate) struct Vsock {
    cid: u32,
    muxer: Arc<Mutex<Muxer>>,
    worker: Worker,
}

impl Vsock {
    /// The device with its socket open.
    ///
    /// # Errors
    /// [`VsockError`].
    pub(crate) fn open(config: &VsockConfig) -> Result<Self, VsockError> {
        let host = Box::new(HostSocket::open(&config.socket)?);
        let failed = |source| VsockError::Socket { path: config.socket.clone(), source };
        let muxer = Arc::new(Mutex::new(Muxer::new(config.cid, host).map_err(failed)?));
        Ok(Self { cid: config.cid, muxer, worker: Worker::default() })
    }

    /// Connections, and clients that have not asked for one yet.
    pub(crate) fn connections(&self) -> usize {
        self.muxer().count()
    }

    /// The device's thread holds it while it moves packets, and waits for nothing meanwhile.
    fn muxer(&self) -> MutexGuard<'_, Muxer> {
        self.muxer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VirtioDevice for Vsock {
    fn device_type(&self) -> u16 {
        u16::try_from(VIRTIO_ID_VSOCK).expect("19")
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config_generation(&self) -> u8 {
        0
    }

    /// The guest's CID.
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = u64::from(self.cid).to_le_bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
        data.fill(0);
        for (to, from) in data.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let source = Source { fd: self.muxer().fd(), events: EventSet::IN };
        let packets = Packets::new(Arc::clone(&self.muxer));
        self.worker.start(ThreadKind::Vsock, activation, Some(source), packets)
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.worker.stop()
    }

    fn reset(&self) {
        self.muxer().clear();
    }

    fn restored(&self) {
        self.muxer().clear_and_notify();
    }
}
