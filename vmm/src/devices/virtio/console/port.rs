//! Moves bytes between the queues, the input that waits, and the log.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use virtio_queue::{QueueT as _, Reader, Writer};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::PRINT_MAX;
use crate::devices::console_watch::{ConsoleWatch, Stream};
use crate::devices::input::{InputFull, InputQueue};
use crate::devices::output::OutputLog;
use crate::devices::virtio::worker::{
    self, Chain, Damage, Event, Queues, Served, Service, await_more, complete, drain,
};

/// Numbers of the queues.
pub(super) const RECEIVE: usize = 0;
pub(super) const TRANSMIT: usize = 1;
/// Bytes that are copied at once.
const PIECE: usize = 4096;

/// Called when the text says that the guest has stopped for good. It must not wait for the device.
type OnEnd = Box<dyn Fn() + Send + Sync>;

/// The host's side of the port.
pub(super) struct Port {
    input: Mutex<InputQueue>,
    /// Readable when there is input.
    filled: EventFd,
    log: Arc<OutputLog>,
    watch: Arc<ConsoleWatch>,
    on_end: OnceLock<OnEnd>,
}

impl Port {
    pub(super) fn new(watch: Arc<ConsoleWatch>, input: InputQueue) -> io::Result<Self> {
        let filled = EventFd::new(EFD_NONBLOCK)?;
        let (log, on_end) = (Arc::default(), OnceLock::new());
        Ok(Self { input: Mutex::new(input), filled, log, watch, on_end })
    }

    pub(super) fn log(&self) -> &Arc<OutputLog> {
        &self.log
    }

    pub(super) fn input(&self) -> MutexGuard<'_, InputQueue> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_on_end(&self, on_end: OnEnd) {
        drop(self.on_end.set(on_end));
    }

    /// The file that is readable when there is input.
    pub(super) fn fd(&self) -> RawFd {
        self.filled.as_raw_fd()
    }

    pub(super) fn send(&self, bytes: &[u8]) -> Result<(), InputFull> {
        self.input().push(bytes)?;
        // A counter that is full is readable, too.
        drop(self.filled.write(1));
        Ok(())
    }

    /// Gives input to the driver until there is none, or no buffers.
    fn receive(&self, queues: &mut Queues, memory: &GuestMemoryMmap) -> Result<(), Damage> {
        let Some(handle) = worker::queue(queues, RECEIVE) else { return Ok(()) };
        handle.queue.disable_notification(memory)?;
        for _ in 0..handle.queue.size() {
            let mut input = self.input();
            if input.is_empty() {
                // More is an event.
                return Ok(());
            }
            let Some(chain) = worker::next(handle, memory)? else {
                drop(input);
                return await_more(handle, memory);
            };
            let head = chain.head_index();
            let written = give(memory, chain, &mut input);
            drop(input);
            complete(handle, memory, head, written)?;
        }
        // More may be there, and no event will say so.
        drop(handle.kick.write(1));
        Ok(())
    }

    /// Prints what the driver sends.
    fn transmit(&self, queues: &mut Queues, memory: &GuestMemoryMmap) -> Result<(), Damage> {
        let Some(handle) = worker::queue(queues, TRANSMIT) else { return Ok(()) };
        drain(handle, memory, |chain| {
            if let Err(error) = self.print(memory, chain) {
                tracing::debug!(%error, "a request to print");
            }
            0
        })
    }

    fn print(&self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> io::Result<()> {
        let had_ended = self.watch.end().is_some();
        let mut reader = Reader::new(memory, chain).map_err(io::Error::other)?;
        let mut left = reader.available_bytes().min(PRINT_MAX);
        let mut piece = [0; PIECE];
        while left > 0 {
            let bytes = &mut piece[..left.min(PIECE)];
            reader.read_exact(bytes)?;
            self.log.append(bytes);
            self.watch.feed(Stream::Virtio, bytes);
            left -= bytes.len();
        }
        if !had_ended
            && self.watch.end().is_some()
            && let Some(on_end) = self.on_end.get()
        {
            on_end();
        }
        Ok(())
    }
}

/// Moves input to buffers, as much as they hold. Returns the bytes.
fn give(memory: &GuestMemoryMmap, chain: Chain<'_>, input: &mut InputQueue) -> u32 {
    let Ok(mut writer) = Writer::new(memory, chain) else { return 0 };
    let waiting = input.waiting();
    let count = waiting.len().min(writer.available_bytes());
    if writer.write_all(&waiting[..count]).is_err() {
        return 0;
    }
    input.consume(count);
    u32::try_from(count).expect("64 KiB at most")
}

/// The work of the device's thread.
pub(super) struct Transfer(pub(super) Arc<Port>);

impl Service for Transfer {
    fn serve(&mut self, event: Event, queues: &mut Queues, memory: &GuestMemoryMmap) -> Served {
        if event == Event::Kick(TRANSMIT) {
            return self.0.transmit(queues, memory).map_err(|error| (TRANSMIT, error));
        }
        drop(self.0.filled.read());
        self.0.receive(queues, memory).map_err(|error| (RECEIVE, error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::devices::input::INPUT_MAX;
    use crate::devices::virtio::bench::{Buffer, TestQueues};
    use proptest::prelude::*;

    const RAM: u64 = 1 << 20;
    const BUFFERS: u64 = 0x8_0000;
    const QUEUE_SIZE: u16 = 16;

    type Request<'a> = &'a [Buffer];

    /// A console whose driver has made these requests.
    struct Bench {
        rings: TestQueues,
        transfer: Transfer,
    }

    impl Bench {
        fn new(input: &[u8], to_receive: &[Request<'_>], to_print: &[Request<'_>]) -> Self {
            let mut rings = TestQueues::new(RAM, 2, QUEUE_SIZE);
            for (number, requests) in [to_receive, to_print].into_iter().enumerate() {
                for request in requests {
                    rings.give(number, request);
                }
            }
            let port = Port::new(Arc::default(), InputQueue::restored(input)).unwrap();
            Self { rings, transfer: Transfer(Arc::new(port)) }
        }

        fn port(&self) -> &Port {
            &self.transfer.0
        }

        fn serve(&mut self, event: Event) {
            let TestQueues { ram, queues, .. } = &mut self.rings;
            self.transfer.serve(event, queues, ram.as_memory()).unwrap();
        }

        fn printed(&self) -> Vec<u8> {
            self.port().log().read(0).bytes
        }
    }

    #[test]
    fn input_fills_buffers_in_order_and_waits_for_more() {
        let requests: [Request<'_>; 2] =
            [&[(BUFFERS, 3, true), (BUFFERS + 0x1000, 2, true)], &[(BUFFERS + 0x2000, 4, true)]];
        let mut bench = Bench::new(b"0123456789ab", &requests, &[]);
        bench.serve(Event::Source);
        assert_eq!(bench.rings.bytes(BUFFERS, 4), b"012\0");
        assert_eq!(bench.rings.bytes(BUFFERS + 0x1000, 3), b"34\0");
        assert_eq!(bench.rings.bytes(BUFFERS + 0x2000, 5), b"5678\0");
        assert_eq!((bench.rings.written(RECEIVE), bench.rings.interrupts()), (vec![5, 4], 2));
        assert_eq!(bench.port().input().waiting(), b"9ab");
        bench.serve(Event::Kick(RECEIVE));
        assert_eq!(bench.port().input().waiting(), b"9ab", "until there is a buffer");
    }

    #[test]
    fn a_driver_without_input_keeps_its_buffers() {
        let request: [Request<'_>; 1] = [&[(BUFFERS, 8, true)]];
        let mut bench = Bench::new(b"", &request, &[]);
        bench.serve(Event::Kick(RECEIVE));
        assert_eq!((bench.rings.written(RECEIVE), bench.rings.interrupts()), (vec![], 0));
        bench.port().send(b"ls\n").unwrap();
        assert!(bench.port().filled.read().is_ok(), "an event");
        bench.serve(Event::Source);
        assert_eq!(
            (bench.rings.bytes(BUFFERS, 4), bench.rings.written(RECEIVE)),
            (b"ls\n\0".to_vec(), vec![3])
        );
    }

    #[test]
    fn buffers_that_cannot_be_written_to_are_given_back_and_no_input_is_lost() {
        let requests: [Request<'_>; 4] = [
            &[(BUFFERS, 8, false)],
            &[(RAM - 4, 8, true)],
            &[(u64::MAX - 2, 8, true)],
            &[(BUFFERS, 0, true)],
        ];
        let mut bench = Bench::new(b"input", &requests, &[]);
        bench.serve(Event::Source);
        assert_eq!(bench.rings.written(RECEIVE), [0; 4]);
        assert_eq!(bench.port().input().waiting(), b"input");
        assert_eq!(bench.rings.bytes(BUFFERS, 8), [0; 8]);
    }

    #[test]
    fn input_has_a_bound_when_nothing_takes_it() {
        let mut bench = Bench::new(b"", &[], &[]);
        bench.port().send(&vec![b'x'; INPUT_MAX]).unwrap();
        bench.serve(Event::Source);
        assert_eq!(bench.port().send(b"y"), Err(InputFull { waiting: INPUT_MAX }));
    }

    #[test]
    fn the_drivers_bytes_are_printed_as_they_are() {
        let requests: [Request<'_>; 2] =
            [&[(BUFFERS, 2, false), (BUFFERS + 0x1000, 9000, false)], &[(BUFFERS, 1, false)]];
        let mut bench = Bench::new(b"", &[], &requests);
        bench.rings.write(BUFFERS, b"\x1b[");
        bench.rings.write(BUFFERS + 0x1000, &[7; 9000]);
        bench.serve(Event::Kick(TRANSMIT));
        assert_eq!(bench.printed(), [b"\x1b[", &[7; 9000][..], b"\x1b"].concat());
        assert_eq!((bench.rings.written(TRANSMIT), bench.rings.interrupts()), (vec![0, 0], 2));
    }

    #[test]
    fn requests_that_print_nothing_or_too_much_are_given_back() {
        let whole = u32::try_from(RAM).unwrap();
        let requests: [Request<'_>; 4] = [
            &[(RAM - 4, 8, false)],
            &[(BUFFERS, 8, true)],
            &[(BUFFERS, 0, false)],
            &[(0, whole, false), (0, whole, false), (0, whole, false)],
        ];
        let mut bench = Bench::new(b"", &[], &requests);
        bench.serve(Event::Kick(TRANSMIT));
        assert_eq!(bench.rings.written(TRANSMIT), [0; 4]);
        assert_eq!(bench.port().log().end(), PRINT_MAX as u64, "the rest is dropped");
    }

    #[test]
    fn a_panic_is_noticed_once() {
        const END: &[u8] = b"Kernel panic - not syncing: a\n---[ end Kernel panic - ]---\n";
        let len = u32::try_from(END.len()).unwrap();
        let requests: [Request<'_>; 3] =
            [&[(BUFFERS, 5, false)], &[(BUFFERS + 5, len - 5, false)], &[(BUFFERS, len, false)]];
        let mut bench = Bench::new(b"", &[], &requests);
        bench.rings.write(BUFFERS, END);
        let ended = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ended);
        bench.port().set_on_end(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        bench.serve(Event::Kick(TRANSMIT));
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    }

    proptest! {
        /// Whatever a driver's buffers are: no panic, no input lost or given twice, and each
        /// request is given back.
        #[test]
        fn any_buffers_are_survived(
            buffers in prop::collection::vec(
                prop_oneof![
                    (BUFFERS..BUFFERS + 0x4000, 0..0x2000_u32, any::<bool>()),
                    (any::<u64>(), any::<u32>(), any::<bool>()),
                ],
                1..8,
            ),
            len in 0..20_000_usize,
        ) {
            let requests: Vec<Request<'_>> = buffers.chunks(2).collect();
            let input = vec![b'i'; len];
            let mut bench = Bench::new(&input, &requests, &requests);
            bench.serve(Event::Source);
            bench.serve(Event::Kick(TRANSMIT));
            let written = bench.rings.written(RECEIVE);
            let given: u32 = written.iter().sum();
            prop_assert_eq!(given as usize + bench.port().input().waiting().len(), len);
            prop_assert!(written.len() == requests.len() || bench.port().input().is_empty());
            prop_assert_eq!(bench.rings.written(TRANSMIT), vec![0; requests.len()]);
        }
    }
}
