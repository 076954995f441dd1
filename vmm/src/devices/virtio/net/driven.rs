//! A network interface without a machine, whose queues hold anything: for fuzz targets.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::frames::{Frames, Port};
use super::link::Link;
use super::{FRAME_MAX, FRAME_MIN};
use crate::devices::virtio::driven::DrivenRam;
use crate::devices::virtio::worker::{Event, Service as _};

/// Where the queue to transmit begins.
const TRANSMIT_AT: u32 = 0x400;
/// Frames that the link has for each run.
const FRAMES: [usize; 3] = [FRAME_MIN, 1514, FRAME_MAX];

/// The interface, and RAM of 64 KiB: of the queue to receive 16 descriptors at 0, the available
/// ring at 0x100, the used ring at 0x200; and of that to transmit 0x400 later.
pub struct DrivenNet(DrivenRam);

/// Has some frames, and takes frames as large as there may be.
struct Endless(usize);

impl Link for Endless {
    fn fd(&self) -> RawFd {
        -1
    }

    fn receive(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        let len = FRAMES.get(self.0).copied();
        self.0 += 1;
        if let Some(len) = len {
            frame[..len].fill(0xa5);
        }
        Ok(len)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        assert!((FRAME_MIN..=FRAME_MAX).contains(&frame.len()), "{}", frame.len());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

impl Default for DrivenNet {
    fn default() -> Self {
        Self(DrivenRam::new().expect("64 KiB"))
    }
}

impl DrivenNet {
    /// Puts `bytes`, of 64 KiB at most, at the beginning of RAM, and serves what they ask for.
    ///
    /// # Errors
    /// The queue's, when one is broken.
    ///
    /// # Panics
    /// When there are more bytes, or no descriptor of a file is left.
    pub fn drive(&self, bytes: &[u8]) -> Result<(), virtio_queue::Error> {
        let memory = self.0.fill(bytes);
        let mut queues = vec![(0, DrivenRam::queue(0)?), (1, DrivenRam::queue(TRANSMIT_AT)?)];
        let mut frames = Frames(Arc::new(Mutex::new(Port::new(
            Box::new(Endless(0)),
            Arc::new(AtomicBool::new(true)),
        ))));
        let served = frames.serve(Event::Source, &mut queues, memory);
        served.map_err(|(_, error)| error)
    }
}
