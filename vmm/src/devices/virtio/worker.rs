//! The thread of a device: serves each of its queues when the driver kicks it.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use exoprobe_guest::GuestRam;
use virtio_queue::{DescriptorChain, QueueT};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::device::{Activation, QueueHandle};

/// A request of the driver.
pub(crate) type Chain<'a> = DescriptorChain<&'a GuestMemoryMmap>;

/// [`EpollEvent::data`] of the end; of a kick it is the queue's place.
const STOP: u64 = u64::MAX;

/// The thread of a device, while there is one.
#[derive(Default)]
pub(crate) struct Worker(Mutex<Option<Running>>);

struct Running {
    thread: JoinHandle<Vec<(usize, QueueHandle)>>,
    stop: EventFd,
}

impl Worker {
    /// Starts the thread `name`. `serve` carries out a request of the queue with this number, and
    /// returns the bytes that it wrote to the request's buffers.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(
        &self,
        name: &str,
        activation: Activation,
        serve: impl FnMut(usize, &GuestMemoryMmap, Chain<'_>) -> u32 + Send + 'static,
    ) -> io::Result<()> {
        let stop = EventFd::new(EFD_NONBLOCK)?;
        let Activation { ram, queues } = activation;
        let epoll = Epoll::new()?;
        let kicks = queues.iter().map(|(_, handle)| &handle.kick);
        for (fd, data) in (0..).zip(kicks).map(|(at, kick)| (kick, at)).chain([(&stop, STOP)]) {
            let event = EpollEvent::new(EventSet::IN, data);
            epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)?;
        }
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || run(queues, &ram, &epoll, serve))?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { thread, stop });
        Ok(())
    }

    /// Ends the thread. Returns its queues, where they stand.
    pub(crate) fn stop(&self) -> Vec<(usize, QueueHandle)> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let queues = running.and_then(|Running { thread, stop }| {
            drop(stop.write(1));
            thread.join().ok()
        });
        queues.unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves the queues until the end, and returns them.
fn run(
    mut queues: Vec<(usize, QueueHandle)>,
    ram: &GuestRam,
    epoll: &Epoll,
    mut serve: impl FnMut(usize, &GuestMemoryMmap, Chain<'_>) -> u32,
) -> Vec<(usize, QueueHandle)> {
    let mut events = [EpollEvent::default(); 8];
    loop {
        let count = match epoll.wait(-1, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::error!(%error, "a device's thread ends");
                return queues;
            }
        };
        if events[..count].iter().any(|event| event.data() == STOP) {
            return queues;
        }
        for event in &events[..count] {
            let at = usize::try_from(event.data()).unwrap_or(usize::MAX);
            let Some((number, handle)) = queues.get_mut(at) else { continue };
            drop(handle.kick.read());
            let memory = ram.as_memory();
            let served = drain(handle, memory, |chain| serve(*number, memory, chain));
            if let Err(error) = served {
                // The driver's queue is broken: it is not served any more.
                tracing::warn!(%error, "a device's queue is damaged");
                let event = EpollEvent::default();
                drop(epoll.ctl(ControlOperation::Delete, handle.kick.as_raw_fd(), event));
            }
        }
    }
}

/// Carries out the requests that are there, at most as many as the queue holds: a driver that makes
/// more all the time does not keep the thread from its end. It is kicked for those that remain.
pub(super) fn drain(
    handle: &mut QueueHandle,
    memory: &GuestMemoryMmap,
    mut serve: impl FnMut(Chain<'_>) -> u32,
) -> Result<(), virtio_queue::Error> {
    let QueueHandle { queue, interrupt, kick } = handle;
    queue.disable_notification(memory)?;
    for _ in 0..queue.size() {
        let Some(chain) = queue.pop_descriptor_chain(memory) else { break };
        let head = chain.head_index();
        let written = serve(chain);
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
