//! A console without a machine, whose queues hold anything: for fuzz targets.

use std::sync::Arc;

use super::PRINT_MAX;
use super::port::{Port, RECEIVE, TRANSMIT, Transfer};
use crate::devices::input::InputQueue;
use crate::devices::virtio::driven::DrivenRam;
use crate::devices::virtio::worker::{Event, Service as _};

/// Where the queue to transmit begins.
const TRANSMIT_AT: u32 = 0x400;
/// Input that waits for each run.
const INPUT: [u8; 9000] = [0xa5; 9000];

/// The console, and RAM of 64 KiB: of the queue to receive 16 descriptors at 0, the available ring
/// at 0x100, the used ring at 0x200; and of that to transmit 0x400 later.
pub struct DrivenConsole(DrivenRam);

impl Default for DrivenConsole {
    fn default() -> Self {
        Self(DrivenRam::new().expect("64 KiB"))
    }
}

impl DrivenConsole {
    /// Puts `bytes`, of 64 KiB at most, at the beginning of RAM, and serves what they ask for.
    ///
    /// # Errors
    /// The queue's, when one is broken.
    ///
    /// # Panics
    /// When there are more bytes, no descriptor of a file is left, input is lost, or the log grows
    /// beyond its bound.
    pub fn drive(&self, bytes: &[u8]) -> Result<(), virtio_queue::Error> {
        let memory = self.0.fill(bytes);
        let mut queues = vec![(0, DrivenRam::queue(0)?), (1, DrivenRam::queue(TRANSMIT_AT)?)];
        let port = Port::new(Arc::default(), InputQueue::restored(&INPUT)).expect("a descriptor");
        let port = Arc::new(port);
        let mut transfer = Transfer(Arc::clone(&port));
        let served = [Event::Kick(TRANSMIT), Event::Source, Event::Kick(RECEIVE)]
            .map(|event| transfer.serve(event, &mut queues, memory));
        let kept = port.log().read(0);
        assert!(kept.bytes.len() <= PRINT_MAX, "{}", kept.bytes.len());
        assert!(port.input().waiting().len() <= INPUT.len());
        served.into_iter().collect::<Result<(), _>>().map_err(|(_, error)| error)
    }
}
