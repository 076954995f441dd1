//! The device: its configuration, and its queues.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP};
use vmm_sys_util::epoll::EventSet;

use super::NetError;
use super::frames::{Frames, Port};
use super::link::Link;
use super::stream::Stream;
use super::tap::Tap;
use crate::config::{NetConfig, NetLink};
use crate::devices::virtio::worker::Source;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice, Worker};
use crate::mac::MacAddr;
use crate::threads::ThreadKind;

/// Descriptors of each queue, one to receive and one to transmit.
const QUEUE_SIZES: [u16; 2] = [256, 256];

/// A network interface of the guest.
pub(crate) struct Net {
    mac: MacAddr,
    is_up: Arc<AtomicBool>,
    /// The driver knows the link of another interface, in the machine of the snapshot.
    is_stale: AtomicBool,
    port: Arc<Mutex<Port>>,
    worker: Worker,
}

impl Net {
    /// The interface with its host side open.
    ///
    /// # Errors
    /// [`NetError`].
    pub(crate) fn open(config: &NetConfig) -> Result<Self, NetError> {
        let is_up = Arc::new(AtomicBool::new(true));
        let port = Port::new(open(&config.link)?, Arc::clone(&is_up));
        let port = Arc::new(Mutex::new(port));
        let is_stale = AtomicBool::new(false);
        Ok(Self { mac: config.mac, is_up, is_stale, port, worker: Worker::default() })
    }

    /// Returns true while its host side is there.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
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
        1 << VIRTIO_NET_F_MAC | 1 << VIRTIO_NET_F_STATUS
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// It changes once, when the link is gone.
    fn config_generation(&self) -> u8 {
        u8::from(!self.is_up())
    }

    /// Its address, and whether its link is up.
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let [a, b, c, d, e, f] = self.mac.octets();
        let status = if self.is_up() { VIRTIO_NET_S_LINK_UP } else { 0 };
        let config = [a, b, c, d, e, f, u8::try_from(status).expect("1"), 0];
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
        data.fill(0);
        for (to, from) in data.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let fd = {
            let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
            port.notify(Arc::clone(&activation.config_changed));
            port.link().fd()
        };
        // One event for each change: the link is read and written until it takes no more.
        let events = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        let source = Source { fd, events };
        let config_changed = Arc::clone(&activation.config_changed);
        let frames = Frames(Arc::clone(&self.port));
        self.worker.start(ThreadKind::Network, activation, Some(source), frames)?;
        if self.is_stale.swap(false, Ordering::SeqCst) {
            config_changed.raise();
        }
        Ok(())
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.worker.stop()
    }

    fn reset(&self) {
        self.is_stale.store(false, Ordering::SeqCst);
    }

    /// Its link may have been down in the snapshot, and is up now.
    fn restored(&self) {
        self.is_stale.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::devices::virtio::bench::TestQueues;
    use crate::devices::virtio::device::Interrupt;
    use crate::devices::virtio::raised::Raised;
    use crate::threads::Threads;

    #[test]
    fn the_driver_of_a_snapshot_reads_the_link_again() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("stack");
        let _stack = UnixListener::bind(&socket).unwrap();
        let mac = "02:00:00:00:00:01".parse().unwrap();
        let net = Net::open(&NetConfig { link: NetLink::Socket(socket), mac }).unwrap();
        let changed = Arc::<Raised>::default();
        let start = || {
            let TestQueues { ram, queues, .. } = TestQueues::new(1 << 20, 2, 16);
            let config_changed = Arc::clone(&changed) as Arc<dyn Interrupt>;
            let threads = Threads::default();
            net.start(Activation { ram, queues, config_changed, threads }).unwrap();
            net.stop();
            changed.count()
        };
        assert_eq!(start(), 0, "a driver that starts reads it by itself");
        net.restored();
        assert_eq!(start(), 1);
        assert_eq!(start(), 1, "after a pause it knows the link");
        net.restored();
        net.reset();
        assert_eq!(start(), 1, "another driver");
    }
}
