//! Moves frames between the queues and the link.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use virtio_queue::{QueueT, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::link::Link;
use super::{FRAME_MAX, FRAME_MIN};
use crate::devices::virtio::worker::{
    self, Chain, Damage, Event, Queues, Service, await_more, complete,
};

/// Numbers of the queues.
pub(super) const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Bytes of `struct virtio_net_hdr_v1`, before each frame. No offload is offered, so all are 0 but
/// the number of buffers.
pub(super) const HEADER_LEN: usize = 12;
/// A received frame is in one chain of buffers.
const HEADER: [u8; HEADER_LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// The host's side, with a frame that no buffer was there for.
pub(super) struct Port {
    link: Box<dyn Link>,
    /// Set once the link is gone.
    is_lost: bool,
    frame: Vec<u8>,
    /// Length of the frame that waits.
    waiting: Option<usize>,
}

impl Port {
    pub(super) fn new(link: Box<dyn Link>) -> Self {
        Self { link, is_lost: false, frame: vec![0; FRAME_MAX], waiting: None }
    }

    pub(super) fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Gives frames to the driver until there are none, or no buffers.
    fn receive(&mut self, queues: &mut Queues, memory: &GuestMemoryMmap) -> Result<(), Damage> {
        let Some(handle) = worker::queue(queues, RECEIVE) else { return Ok(()) };
        handle.queue.disable_notification(memory)?;
        for _ in 0..handle.queue.size() {
            let Some(len) = self.next_frame() else { return Ok(()) };
            let Some(chain) = handle.queue.pop_descriptor_chain(memory) else {
                self.waiting = Some(len);
                return await_more(handle, memory);
            };
            let head = chain.head_index();
            let written = put(memory, chain, &self.frame[..len]);
            complete(handle, memory, head, written)?;
        }
        // More may be there, and no event will say so.
        drop(handle.kick.write(1));
        Ok(())
    }

    /// The length of the frame to be received next, which is in `self.frame`.
    fn next_frame(&mut self) -> Option<usize> {
        if let Some(len) = self.waiting.take() {
            return Some(len);
        }
        while !self.is_lost {
            match self.link.receive(&mut self.frame) {
                Ok(Some(len)) if len < FRAME_MIN => {}
                Ok(found) => return found,
                Err(error) => self.lose(&error),
            }
        }
        None
    }

    /// Sends the driver's frames until there are none, or the link takes no more.
    fn transmit(&mut self, queues: &mut Queues, memory: &GuestMemoryMmap) -> Result<(), Damage> {
        let Some(handle) = worker::queue(queues, TRANSMIT) else { return Ok(()) };
        handle.queue.disable_notification(memory)?;
        for _ in 0..handle.queue.size() {
            if !self.is_writable() {
                // It is an event when it is.
                return Ok(());
            }
            let Some(chain) = handle.queue.pop_descriptor_chain(memory) else { break };
            let head = chain.head_index();
            self.send(memory, chain);
            complete(handle, memory, head, 0)?;
        }
        await_more(handle, memory)
    }

    fn is_writable(&mut self) -> bool {
        if self.is_lost {
            // Frames go nowhere.
            return true;
        }
        self.link.flush().unwrap_or_else(|error| {
            self.lose(&error);
            true
        })
    }

    fn send(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) {
        let Some(frame) = take(memory, chain).filter(|_| !self.is_lost) else { return };
        if let Err(error) = self.link.send(&frame) {
            self.lose(&error);
        }
    }

    fn lose(&mut self, error: &std::io::Error) {
        tracing::warn!(%error, "a network interface has lost its host side");
        self.is_lost = true;
    }
}

/// Writes a frame to buffers. Returns the bytes; 0 for buffers that do not hold it.
fn put(memory: &GuestMemoryMmap, chain: Chain<'_>, frame: &[u8]) -> u32 {
    let Ok(mut writer) = Writer::new(memory, chain) else { return 0 };
    let len = HEADER_LEN + frame.len();
    if writer.available_bytes() < len {
        return 0;
    }
    let written = writer.write_all(&HEADER).and_then(|()| writer.write_all(frame));
    written.map_or(0, |()| u32::try_from(len).expect("a frame"))
}

/// Reads a frame from buffers; `None` if it is none.
fn take(memory: &GuestMemoryMmap, chain: Chain<'_>) -> Option<Vec<u8>> {
    let mut reader = Reader::new(memory, chain).ok()?;
    let len = reader.available_bytes().checked_sub(HEADER_LEN)?;
    if !(FRAME_MIN..=FRAME_MAX).contains(&len) {
        return None;
    }
    let (mut header, mut frame) = ([0; HEADER_LEN], vec![0; len]);
    reader.read_exact(&mut header).and_then(|()| reader.read_exact(&mut frame)).ok()?;
    Some(frame)
}

/// The work of the device's thread.
pub(super) struct Frames(pub(super) Arc<Mutex<Port>>);

impl Service for Frames {
    fn serve(
        &mut self,
        event: Event,
        queues: &mut Queues,
        memory: &GuestMemoryMmap,
    ) -> Result<(), (usize, Damage)> {
        // Nothing else locks it while the thread runs.
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if event != Event::Kick(RECEIVE) {
            port.transmit(queues, memory).map_err(|error| (TRANSMIT, error))?;
        }
        if event != Event::Kick(TRANSMIT) {
            port.receive(queues, memory).map_err(|error| (RECEIVE, error))?;
        }
        Ok(())
    }
}
