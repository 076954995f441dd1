//! The device: its configuration, and the thread that serves its queue.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use exoprobe_guest::GuestRam;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_queue::QueueT;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::disk::{DiskIdentity, SECTOR};
use super::request::{SEG_MAX, SEGMENT_SECTORS_MAX, SEGMENTS_MAX, SIZE_MAX, serve};
use super::{Disk, DiskError};
use crate::config::DiskMode;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice};

/// Descriptors of the queue.
const QUEUE_SIZE: u16 = 256;
/// Bytes of `struct virtio_blk_config` that this device has.
const CONFIG_LEN: usize = 60;

/// A disk of the guest.
pub(crate) struct Blk {
    disk: Arc<Disk>,
    id: String,
    worker: Mutex<Option<Worker>>,
}

/// The thread of a running device.
struct Worker {
    thread: JoinHandle<QueueHandle>,
    stop: EventFd,
}

impl Blk {
    /// Checks that the disk, of the file `path`, is as a snapshot has it.
    ///
    /// # Errors
    /// [`DiskError::Changed`].
    pub(crate) fn check(&self, path: &Path, saved: Option<&DiskIdentity>) -> Result<(), DiskError> {
        let failed = |source| DiskError::Open { path: path.to_owned(), source };
        let is_same = saved == Some(&self.disk.identity().map_err(failed)?);
        if is_same { Ok(()) } else { Err(DiskError::Changed(path.to_owned())) }
    }

    /// The disk as a snapshot knows it, with all that was written on the medium.
    ///
    /// # Errors
    /// The system's, of the flush.
    pub(crate) fn identity(&self) -> io::Result<DiskIdentity> {
        self.disk.flush()?;
        self.disk.identity()
    }

    /// The device of the file `path`, under `id` in the guest's `/sys/block/*/serial`: at most 20
    /// bytes of it.
    ///
    /// # Errors
    /// [`DiskError`].
    pub(crate) fn open(path: &Path, mode: DiskMode, id: &str) -> Result<Self, DiskError> {
        let disk = Arc::new(Disk::open(path, mode)?);
        Ok(Self { disk, id: id.to_owned(), worker: Mutex::default() })
    }

    fn config(&self) -> [u8; CONFIG_LEN] {
        let mut config = [0; CONFIG_LEN];
        let mut set = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        set(0, &self.disk.sectors().to_le_bytes());
        set(8, &SIZE_MAX.to_le_bytes());
        set(12, &SEG_MAX.to_le_bytes());
        set(20, &u32::try_from(SECTOR).expect("512").to_le_bytes());
        // One queue.
        set(34, &1_u16.to_le_bytes());
        for limits in [36, 48] {
            set(limits, &SEGMENT_SECTORS_MAX.to_le_bytes());
            set(limits + 4, &SEGMENTS_MAX.to_le_bytes());
        }
        // Discards of single sectors are as good as any.
        set(44, &1_u32.to_le_bytes());
        // Zeroes may give up the space.
        set(56, &[1]);
        config
    }
}

impl VirtioDevice for Blk {
    fn device_type(&self) -> u16 {
        u16::try_from(VIRTIO_ID_BLOCK).expect("2")
    }

    fn features(&self) -> u64 {
        let always = [
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
        ];
        let by_kind: &[u32] = match self.disk.is_read_only() {
            true => &[VIRTIO_BLK_F_RO],
            false => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
        };
        always.iter().chain(by_kind).fold(0, |features, bit| features | 1 << bit)
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.config();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(CONFIG_LEN);
        data.fill(0);
        for (to, from) in data.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let Some((_, queue)) = activation.queues.into_iter().next() else { return Ok(()) };
        let stop = EventFd::new(EFD_NONBLOCK)?;
        let (disk, id) = (Arc::clone(&self.disk), self.id.clone());
        let (ram, wakeups) = (activation.ram, Wakeups::new(&queue.kick, &stop)?);
        let thread = std::thread::Builder::new().name("disk".to_owned());
        let thread = thread.spawn(move || run(queue, &ram, &disk, &id, &wakeups))?;
        let worker = Worker { thread, stop };
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
        Ok(())
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let queue = worker.and_then(|Worker { thread, stop }| {
            drop(stop.write(1));
            thread.join().ok()
        });
        queue.into_iter().map(|queue| (0, queue)).collect()
    }
}

impl Drop for Blk {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for kicks of the driver, and for the end.
struct Wakeups(Epoll);

/// [`EpollEvent::data`] of the end.
const STOP: u64 = 1;

impl Wakeups {
    fn new(kick: &EventFd, stop: &EventFd) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for (fd, data) in [(kick, 0), (stop, STOP)] {
            let event = EpollEvent::new(EventSet::IN, data);
            epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)?;
        }
        Ok(Self(epoll))
    }

    /// Returns true if the driver kicked, false at the end.
    fn wait(&self) -> io::Result<bool> {
        let mut events = [EpollEvent::default(); 2];
        loop {
            match self.0.wait(-1, &mut events) {
                Ok(count) => return Ok(events[..count].iter().all(|event| event.data() != STOP)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Serves the queue until the end, and returns it.
fn run(
    mut handle: QueueHandle,
    ram: &GuestRam,
    disk: &Disk,
    id: &str,
    wakeups: &Wakeups,
) -> QueueHandle {
    loop {
        match wakeups.wait() {
            Ok(true) => {}
            Ok(false) => return handle,
            Err(error) => {
                tracing::error!(%error, "a disk's thread ends");
                return handle;
            }
        }
        drop(handle.kick.read());
        if let Err(error) = drain(&mut handle, ram, disk, id) {
            // The driver's queue is broken: it is not served any more.
            tracing::warn!(%error, "a disk's queue is damaged");
            return handle;
        }
    }
}

/// Carries out the requests that are there, at most as many as the queue holds: a driver that makes
/// more all the time does not keep the thread from its end. It is kicked for those that remain.
pub(super) fn drain(
    handle: &mut QueueHandle,
    ram: &GuestRam,
    disk: &Disk,
    id: &str,
) -> Result<(), virtio_queue::Error> {
    let memory = ram.as_memory();
    let QueueHandle { queue, interrupt, kick } = handle;
    queue.disable_notification(memory)?;
    for _ in 0..queue.size() {
        let Some(chain) = queue.pop_descriptor_chain(memory) else { break };
        let head = chain.head_index();
        let written = serve(disk, id, memory, chain);
        queue.add_used(memory, head, written)?;
        if queue.needs_notification(memory)? {
            interrupt.raise();
        }
    }
    if queue.enable_notification(memory)? {
        // A counter that is full is a kick, too.
        drop(kick.write(1));
    }
    Ok(())
}
