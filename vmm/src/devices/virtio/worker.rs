//! The thread of a device: serves each of its queues when the driver kicks it.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use exoprobe_guest::GuestRam;
use virtio_queue::{DescriptorChain, QueueOwnedT as _, QueueT};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::device::{Activation, QueueHandle};
use crate::failures::Failures;
use crate::threads::ThreadKind;

/// A request of the driver.
pub(crate) type Chain<'a> = DescriptorChain<&'a GuestMemoryMmap>;

/// Why a queue is not served any more: the driver has damaged it.
pub(crate) type Damage = virtio_queue::Error;

/// Outcome of serving an event: an error is a queue's number and its damage.
pub(crate) type Served = Result<(), (usize, Damage)>;

/// Queues with their numbers.
pub(crate) type Queues = Vec<(usize, QueueHandle)>;

/// An event of a device's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The driver has kicked the queue of this number.
    Kick(usize),
    /// The device's own file has one of its events.
    Source,
}

/// A file of a device. Several are one: the file of an epoll that has them.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) fd: RawFd,
    /// Those that are [`Event::Source`].
    pub(crate) events: EventSet,
}

/// The work of a device's thread.
pub(crate) trait Service: Send + 'static {
    /// Serves the queues that the event concerns. Damage ends the service of the queue that it
    /// returns with it.
    fn serve(&mut self, event: Event, queues: &mut Queues, memory: &GuestMemoryMmap) -> Served;

    /// Ends: waits for all requests under way, and gives them back.
    fn finish(&mut self, _queues: &mut Queues) -> Served {
        Ok(())
    }
}

/// A device without a file of its own, which carries out each request alone: given the queue's
/// number and the request, returns the bytes that it wrote to the request's buffers.
pub(crate) struct Requests<F>(pub(crate) F);

impl<F> Service for Requests<F>
where
    F: FnMut(usize, &GuestMemoryMmap, Chain<'_>) -> u32 + Send + 'static,
{
    fn serve(&mut self, event: Event, queues: &mut Queues, memory: &GuestMemoryMmap) -> Served {
        let Event::Kick(number) = event else { return Ok(()) };
        let Some(handle) = queue(queues, number) else { return Ok(()) };
        drain(handle, memory, |chain| (self.0)(number, memory, chain)).map_err(|e| (number, e))
    }
}

/// The queue of a number, unless it is damaged.
pub(super) fn queue(queues: &mut Queues, number: usize) -> Option<&mut QueueHandle> {
    let found = queues.iter_mut().find(|(own, _)| *own == number);
    found.map(|(_, handle)| handle).filter(|handle| handle.queue.ready())
}

/// [`EpollEvent::data`] of the end; of a kick it is the queue's number.
const STOP: u64 = u64::MAX;
/// Of the device's own file.
const SOURCE: u64 = u64::MAX - 1;

/// The thread of a device, while there is one.
#[derive(Default)]
pub(crate) struct Worker(Mutex<Option<Running>>);

struct Running {
    thread: JoinHandle<Queues>,
    stop: EventFd,
}

impl Worker {
    /// Starts the thread. `source` is the device's own file: its service is called for the
    /// events of that.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(
        &self,
        kind: ThreadKind,
        activation: Activation,
        source: Option<Source>,
        service: impl Service,
    ) -> io::Result<()> {
        let stop = EventFd::new(EFD_NONBLOCK)?;
        let Activation { ram, queues, threads, .. } = activation;
        let epoll = Epoll::new()?;
        let add =
            |fd, events, data| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, data));
        add(stop.as_raw_fd(), EventSet::IN, STOP)?;
        for (number, handle) in &queues {
            let number = u64::try_from(*number).expect("a few");
            // Each kick is an event, also if the counter was not read since the one before.
            add(handle.kick.as_raw_fd(), EventSet::IN | EventSet::EDGE_TRIGGERED, number)?;
        }
        if let Some(Source { fd, events }) = source {
            add(fd, events, SOURCE)?;
        }
        let failures = threads.failures().clone();
        let body = move || run(queues, &ram, &epoll, service, kind.name(), &failures);
        let thread = threads.spawn(kind, body)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { thread, stop });
        Ok(())
    }

    /// Ends the thread. Returns its queues, where they stand; none if it has panicked at its end,
    /// which stops the machine.
    pub(crate) fn stop(&self) -> Queues {
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

/// Serves the queues until the end, which a failure may be: that stops the machine. Returns them.
fn run(
    mut queues: Queues,
    ram: &GuestRam,
    epoll: &Epoll,
    mut service: impl Service,
    name: &str,
    failures: &Failures,
) -> Queues {
    // A panic is reported here already: later, the service may wait for requests under way.
    match failures.watch(name, || serve(&mut queues, ram, epoll, &mut service)) {
        // The service may be half done with something.
        Err(_) => return queues,
        Ok(Err(error)) => failures.report(name, &error),
        Ok(Ok(())) => {}
    }
    let finished = service.finish(&mut queues);
    note_damage(&mut queues, finished);
    queues
}

/// Serves the queues until [`Worker::stop`].
fn serve(
    queues: &mut Queues,
    ram: &GuestRam,
    epoll: &Epoll,
    service: &mut impl Service,
) -> io::Result<()> {
    let mut events = [EpollEvent::default(); 8];
    loop {
        let count = match epoll.wait(-1, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if events[..count].iter().any(|event| event.data() == STOP) {
            return Ok(());
        }
        for event in &events[..count] {
            let event = event_of(event.data());
            let served = service.serve(event, queues, ram.as_memory());
            note_damage(queues, served);
        }
    }
}

/// Ends the service of a queue that is damaged.
fn note_damage(queues: &mut Queues, served: Served) {
    let Err((number, error)) = served else { return };
    tracing::warn!(%error, "a device's queue is damaged");
    if let Some(handle) = queue(queues, number) {
        handle.queue.set_ready(false);
    }
}

/// The event of an [`EpollEvent::data`].
fn event_of(data: u64) -> Event {
    match data {
        SOURCE => Event::Source,
        number => Event::Kick(usize::try_from(number).unwrap_or(usize::MAX)),
    }
}

/// The driver's next request, if there is one. A ring that says that it has more than it holds is
/// damage: to await more from it would be to wait no more.
pub(super) fn next<M>(
    handle: &mut QueueHandle,
    memory: M,
) -> Result<Option<DescriptorChain<M>>, Damage>
where
    M: Deref<Target = GuestMemoryMmap> + Clone,
{
    Ok(handle.queue.iter(memory)?.next())
}

/// Most requests between two looks at the end of the thread.
const AT_ONCE: usize = 16;

/// Carries out the requests that are there, a few at most, by [`drain_while`].
pub(super) fn drain(
    handle: &mut QueueHandle,
    memory: &GuestMemoryMmap,
    mut serve: impl FnMut(Chain<'_>) -> u32,
) -> Result<(), Damage> {
    drain_while(handle, memory, &mut serve, |_| true, |serve, chain| Some(serve(chain)))
}

/// Takes the requests that are there, a few at most: neither a driver that makes more all the time
/// nor one whose requests are long keeps the thread from its end. It is kicked for those that
/// remain. While `may_go_on` says no, none is taken and the driver does not kick: the device kicks
/// the queue when it may. `serve` returns the bytes that it wrote to the request's buffers, which
/// are then given back, or `None` for a request that is completed later.
pub(super) fn drain_while<S, M>(
    handle: &mut QueueHandle,
    memory: M,
    device: &mut S,
    mut may_go_on: impl FnMut(&mut S) -> bool,
    mut serve: impl FnMut(&mut S, DescriptorChain<M>) -> Option<u32>,
) -> Result<(), Damage>
where
    M: Deref<Target = GuestMemoryMmap> + Clone,
{
    handle.queue.disable_notification(&*memory)?;
    for _ in 0..AT_ONCE {
        if !may_go_on(device) {
            return Ok(());
        }
        let Some(chain) = next(handle, memory.clone())? else {
            return await_more(handle, &memory);
        };
        let head = chain.head_index();
        if let Some(written) = serve(device, chain) {
            complete(handle, &memory, head, written)?;
        }
    }
    // More may be there. A counter that is full is a kick, too.
    drop(handle.kick.write(1));
    Ok(())
}

/// Gives the buffers of a request back to the driver.
pub(super) fn complete(
    handle: &mut QueueHandle,
    memory: &GuestMemoryMmap,
    head: u16,
    written: u32,
) -> Result<(), Damage> {
    handle.queue.add_used(memory, head, written)?;
    if handle.queue.needs_notification(memory)? {
        handle.interrupt.raise();
    }
    Ok(())
}

/// Lets the driver kick, and sees to it that requests that are there already are a kick, too.
pub(super) fn await_more(handle: &mut QueueHandle, memory: &GuestMemoryMmap) -> Result<(), Damage> {
    if handle.queue.enable_notification(memory)? {
        // It counts up to 2^64 - 2: no driver gets there.
        drop(handle.kick.write(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Receiver;

    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vm_memory::{Bytes as _, GuestAddress};

    use super::super::bench::TestQueues;
    use super::super::raised::Raised;
    use super::*;
    use crate::failures::tests::PATIENCE;
    use crate::threads::Threads;

    #[test]
    fn a_queue_is_served_a_few_requests_at_a_time() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let mock = MockSplitQueue::new(&memory, 64);
        let requests = vec![RawDescriptor::from(Descriptor::new(0x8_0000, 16, 0, 0)); 40];
        mock.add_desc_chains(&requests, 0).unwrap();
        let queue = mock.create_queue().unwrap();
        let kick = EventFd::new(EFD_NONBLOCK).unwrap();
        let mut handle = QueueHandle { queue, kick, interrupt: Arc::<Raised>::default() };
        let (mut served, mut turns) = (0, Vec::new());
        loop {
            drain(&mut handle, &memory, |_| {
                served += 1;
                0
            })
            .unwrap();
            turns.push(served);
            let suppressed =
                memory.read_obj::<u16>(GuestAddress(handle.queue.used_ring())).unwrap();
            // The driver need not kick while the thread kicks itself.
            let is_kicked = handle.kick.read().is_ok();
            assert_eq!(is_kicked, suppressed == 1);
            if !is_kicked {
                break;
            }
        }
        assert_eq!(turns, [16, 32, 40]);
    }

    /// Panics at what it is told to, and counts its ends.
    struct Panics {
        at_kick: bool,
        at_end: bool,
        ends: Arc<AtomicUsize>,
    }

    impl Service for Panics {
        fn serve(&mut self, _: Event, _: &mut Queues, _: &GuestMemoryMmap) -> Served {
            assert!(!self.at_kick, "as a bug would");
            Ok(())
        }

        fn finish(&mut self, _: &mut Queues) -> Served {
            self.ends.fetch_add(1, Ordering::SeqCst);
            assert!(!self.at_end, "as a bug would");
            Ok(())
        }
    }

    /// Starts a thread with `service`, and kicks it. Returns the kick, and the failures' messages.
    fn start(worker: &Worker, service: Panics) -> (EventFd, Receiver<String>) {
        let (TestQueues { ram, queues, .. }, threads) =
            (TestQueues::new(1 << 20, 1, 16), Threads::default());
        let messages = threads.failures().messages();
        let kick = queues[0].1.kick.try_clone().unwrap();
        let config_changed = Arc::<Raised>::default();
        let activation = Activation { ram, queues, config_changed, threads };
        worker.start(ThreadKind::Network, activation, None, service).unwrap();
        kick.write(1).unwrap();
        (kick, messages)
    }

    #[test]
    fn a_device_whose_service_panics_is_a_failure() {
        let (worker, ends) = (Worker::default(), Arc::<AtomicUsize>::default());
        let service = Panics { at_kick: true, at_end: false, ends: Arc::clone(&ends) };
        let (_kick, messages) = start(&worker, service);
        assert_eq!(messages.recv_timeout(PATIENCE).unwrap(), "the thread `network` panicked");
        assert_eq!(worker.stop().len(), 1, "its queues are where they stood");
        assert_eq!(ends.load(Ordering::SeqCst), 0, "a service that is half done is not called");
        assert!(messages.try_recv().is_err(), "it is reported once");
    }

    #[test]
    fn a_device_that_panics_at_its_end_is_a_failure() {
        let (worker, ends) = (Worker::default(), Arc::<AtomicUsize>::default());
        let service = Panics { at_kick: false, at_end: true, ends: Arc::clone(&ends) };
        let (_kick, messages) = start(&worker, service);
        assert!(worker.stop().is_empty());
        assert_eq!(messages.try_recv().unwrap(), "the thread `network` panicked");
        assert_eq!(ends.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_device_that_cannot_wait_for_kicks_any_more_is_a_failure() {
        let (TestQueues { ram, queues, .. }, failures) =
            (TestQueues::new(1 << 20, 1, 16), Failures::default());
        let (messages, ends) = (failures.messages(), Arc::<AtomicUsize>::default());
        let service = Panics { at_kick: false, at_end: false, ends: Arc::clone(&ends) };
        let (epoll, other) = (Epoll::new().unwrap(), File::open("/dev/null").unwrap());
        // SAFETY: both are open, and only this test has the epoll's.
        let replaced = unsafe { libc::dup2(other.as_raw_fd(), epoll.as_raw_fd()) };
        assert_eq!(replaced, epoll.as_raw_fd());
        assert_eq!(run(queues, &ram, &epoll, service, "network", &failures).len(), 1);
        let message = messages.recv_timeout(PATIENCE).unwrap();
        assert!(message.starts_with("the thread `network` cannot go on: "), "{message}");
        assert_eq!(ends.load(Ordering::SeqCst), 1, "requests under way are given back");
    }
}
