//! The device: its configuration, its queues, and the host's end of its port.

use std::io;
use std::sync::Arc;

use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use vmm_sys_util::epoll::EventSet;

use super::port::{Port, Transfer};
use super::size::{Size, TerminalSize};
use crate::devices::console_watch::ConsoleWatch;
use crate::devices::input::{InputFull, InputQueue};
use crate::devices::output::OutputLog;
use crate::devices::virtio::worker::Source;
use crate::devices::virtio::{Activation, QueueHandle, VirtioDevice, Worker};
use crate::threads::ThreadKind;

/// The device's configuration has the size of the terminal (5.3.3). virtio-bindings has no number
/// for it.
const VIRTIO_CONSOLE_F_SIZE: u32 = 0;
/// Descriptors of each queue, one to receive and one to transmit. Linux fills the first with pages.
const QUEUE_SIZES: [u16; 2] = [32, 32];

/// The virtio console of a guest, `/dev/hvc0`.
pub struct VirtioConsole {
    port: Arc<Port>,
    size: Size,
    worker: Worker,
}

/// The state in a snapshot, without the transport's.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct ConsoleSnapshot {
    size: TerminalSize,
    input: Vec<u8>,
}

impl VirtioConsole {
    /// A console as at power-on, or as it was in a snapshot. `watch` sees all output.
    ///
    /// # Errors
    /// The system's, when it has no file descriptor left.
    pub(crate) fn new(
        watch: Arc<ConsoleWatch>,
        from: Option<&ConsoleSnapshot>,
    ) -> io::Result<Self> {
        let size = from.map_or_else(TerminalSize::default, |saved| saved.size);
        let input =
            from.map_or_else(InputQueue::default, |saved| InputQueue::restored(&saved.input));
        let port = Arc::new(Port::new(watch, input)?);
        Ok(Self { port, size: Size::new(size), worker: Worker::default() })
    }

    /// The output of the guest.
    #[must_use]
    pub fn log(&self) -> &Arc<OutputLog> {
        self.port.log()
    }

    /// Sends bytes to the guest; they wait in a queue while its driver has no buffers for them.
    ///
    /// # Errors
    /// [`InputFull`]: nothing was queued.
    pub fn send(&self, bytes: &[u8]) -> Result<(), InputFull> {
        self.port.send(bytes)
    }

    /// The size of the terminal.
    #[must_use]
    pub fn size(&self) -> TerminalSize {
        self.size.get()
    }

    /// Sets the size of the terminal. The guest is notified if it does not have it already.
    pub fn set_size(&self, size: TerminalSize) {
        self.size.set(size);
    }

    /// Sets the function that is called when the text says that the guest has stopped for good.
    /// The device's thread calls it, after each request from then on.
    pub(crate) fn on_end(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.port.set_on_end(Box::new(notify));
    }

    /// Drops the input that waits: it was for the previous boot. The log stays, and the size, which
    /// is the host's terminal's.
    pub(crate) fn drop_input(&self) {
        *self.port.input() = InputQueue::default();
    }

    pub(crate) fn save(&self) -> ConsoleSnapshot {
        ConsoleSnapshot { size: self.size(), input: self.port.input().save() }
    }
}

impl VirtioDevice for VirtioConsole {
    fn device_type(&self) -> u16 {
        u16::try_from(VIRTIO_ID_CONSOLE).expect("3")
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_CONSOLE_F_SIZE
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config_generation(&self) -> u8 {
        self.size.generation()
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        self.size.read(offset, data);
    }

    fn start(&self, activation: Activation) -> io::Result<()> {
        let changed = Arc::clone(&activation.config_changed);
        let events = EventSet::IN | EventSet::EDGE_TRIGGERED;
        let source = Source { fd: self.port.fd(), events };
        let transfer = Transfer(Arc::clone(&self.port));
        self.worker.start(ThreadKind::Console, activation, Some(source), transfer)?;
        self.size.start(changed);
        Ok(())
    }

    fn stop(&self) -> Vec<(usize, QueueHandle)> {
        self.size.stop();
        self.worker.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::input::INPUT_MAX;

    const SIZE: TerminalSize = TerminalSize { columns: 120, rows: 40 };

    fn console(from: Option<&ConsoleSnapshot>) -> VirtioConsole {
        VirtioConsole::new(Arc::default(), from).unwrap()
    }

    #[test]
    fn a_snapshot_has_size_and_input_and_a_reboot_drops_the_input() {
        let first = console(None);
        assert_eq!(first.size(), TerminalSize::default());
        first.set_size(SIZE);
        first.send(b"ls\n").unwrap();
        let saved = serde_json::to_value(first.save()).unwrap();
        let second = console(Some(&serde_json::from_value(saved).unwrap()));
        assert_eq!(second.size(), SIZE);
        assert_eq!(second.port.input().waiting(), b"ls\n");
        let mut config = [0; 4];
        second.read_config(0, &mut config);
        assert_eq!(config, [120, 0, 40, 0]);
        let full = second.send(&vec![b'x'; INPUT_MAX]);
        assert_eq!(full, Err(InputFull { waiting: 3 }));
        second.drop_input();
        second.send(&vec![b'x'; INPUT_MAX]).unwrap();
        assert_eq!(second.size(), SIZE, "the host's terminal is the same");
    }
}
