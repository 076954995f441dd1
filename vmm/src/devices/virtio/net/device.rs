//! The device: its configuration, and its queues.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MAC;

use super::NetError;
use super::frames::{Frames, Port};
use super::link::Link;
use super::stream::Stream;
use super::tap::Tap;
use crate::config::{NetConfig, NetLink};
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice, Worker};
use crate::mac::MacAddr;

/// Descriptors of each queue, one to receive and one to transmit.
const QUEUE_SIZES: [u16; 2] = [256, 256];

/// A network interface of the guest.
pub(crate) struct Net {
    mac: MacAddr,
    port: Arc<Mutex<Port>>,
    worker: Worker,
}

impl Net {
    /// The interface with its host side open.
    ///
    /// # Errors
    /// [`NetError`].
    pub(crate) fn open(config: &NetConfig) -> Result<Self, NetError> {
        let port = Arc::new(Mutex::new(Port::new(open(&config.link)?)));
        Ok(Self { mac: config.mac, port, worker: Worker::default() })
    }
}

/// Opens the host's side.
fn open(link: &NetLink) -> Result<Box<dyn Link>, NetError> {
    Ok(match link {
        NetLink::Tap(name) => Box::new(Tap::open(name)?),
        NetLink::Socket(path) => Box::new(Stream::connect(path)?),
    })
}

impl VirtioDevice for Net {
    fn device_type(&self) -> u16 {
        u16::try_from(VIRTIO_ID_NET).expect("1")
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_NET_F_MAC
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// Its address is all that it has.
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.mac.octets();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
        data.fill(0);
        for (to, from) in data.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let fd = self.port.lock().unwrap_or_else(PoisonError::into_inner).link().fd();
        self.worker.start("network", activation, Some(fd), Frames(Arc::clone(&self.port)))
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.worker.stop()
    }
}
