//! Moves packets between the queues and the connections.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use virtio_queue::{QueueOwnedT as _, QueueT as _, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::muxer::Muxer;
use super::packet::{DATA_MAX, HEADER_LEN, Header, Op};
use crate::devices::virtio::worker::{
    self, Chain, Damage, Event, Queues, Served, Service, await_more, complete, drain_while,
};

/// Numbers of the queues.
pub(super) const RECEIVE: usize = 0;
pub(super) const TRANSMIT: usize = 1;
pub(super) const EVENT: usize = 2;
/// `struct virtio_vsock_event` of number 0: all connections are gone
/// (`VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`).
const TRANSPORT_RESET: [u8; 4] = [0; 4];

/// The work of the device's thread.
pub(super) struct Packets {
    muxer: Arc<Mutex<Muxer>>,
    /// Data of the packet that is read.
    data: Vec<u8>,
}

impl Packets {
    pub(super) fn new(muxer: Arc<Mutex<Muxer>>) -> Self {
        Self { muxer, data: vec![0; DATA_MAX] }
    }

    /// Reads the driver's packets until there are none, or too many wait for buffers to be
    /// answered: it is read on when answers have gone.
    fn transmit(
        &mut self,
        muxer: &mut Muxer,
        queues: &mut Queues,
        memory: &GuestMemoryMmap,
    ) -> Result<(), Damage> {
        let Some(handle) = worker::queue(queues, TRANSMIT) else { return Ok(()) };
        let data = &mut self.data;
        drain_while(
            handle,
            memory,
            muxer,
            |muxer| muxer.takes_packets(),
            |muxer, chain| {
                if let Some((header, data)) = take(memory, chain, data) {
                    muxer.receive(&header, data);
                }
                Some(0)
            },
        )
    }
}

/// Gives packets to the driver until there are none, or no buffers.
fn receive(muxer: &mut Muxer, queues: &mut Queues, memory: &GuestMemoryMmap) -> Result<(), Damage> {
    let Some(handle) = worker::queue(queues, RECEIVE) else { return Ok(()) };
    handle.queue.disable_notification(memory)?;
    for _ in 0..handle.queue.size() {
        if !muxer.may_have_packets() {
            return Ok(());
        }
        let Some(chain) = worker::next(handle, memory)? else {
            return await_more(handle, memory);
        };
        let head = chain.head_index();
        match put(memory, chain, muxer) {
            Some(written) => complete(handle, memory, head, written)?,
            None => handle.queue.go_to_previous_position(),
        }
    }
    // More may be there, and no event will say so.
    drop(handle.kick.write(1));
    Ok(())
}

/// Has the driver close all connections, once it has given a buffer for that.
fn send_event(
    muxer: &mut Muxer,
    queues: &mut Queues,
    memory: &GuestMemoryMmap,
) -> Result<(), Damage> {
    let Some(handle) = worker::queue(queues, EVENT) else { return Ok(()) };
    for _ in 0..handle.queue.size() {
        let Some(chain) = worker::next(handle, memory)? else { break };
        let head = chain.head_index();
        let writer = Writer::new(memory, chain).ok();
        let writer = writer.filter(|it| it.available_bytes() >= TRANSPORT_RESET.len());
        let is_written = writer.is_some_and(|mut it| it.write_all(&TRANSPORT_RESET).is_ok());
        let written = if is_written { TRANSPORT_RESET.len() } else { 0 };
        complete(handle, memory, head, u32::try_from(written).expect("4"))?;
        if is_written {
            muxer.reset_sent();
            break;
        }
    }
    // The next buffers follow once it has carried that out.
    await_more(handle, memory)
}

/// Reads a packet from buffers; `None` if it is none.
fn take<'a>(
    memory: &GuestMemoryMmap,
    chain: Chain<'_>,
    data: &'a mut [u8],
) -> Option<(Header, &'a [u8])> {
    let mut reader = Reader::new(memory, chain).ok()?;
    let mut header = [0; HEADER_LEN];
    reader.read_exact(&mut header).ok()?;
    let header = Header::decode(&header);
    // Only a packet of data has some, and then all that it says.
    let len = if header.op == Op::Data.number() { usize::try_from(header.len).ok()? } else { 0 };
    let data = data.get_mut(..len)?;
    reader.read_exact(data).ok()?;
    Some((header, data))
}

/// Writes the next packet to buffers. Returns the bytes; 0 for buffers that hold none, `None` if
/// there is no packet.
fn put(memory: &GuestMemoryMmap, chain: Chain<'_>, muxer: &mut Muxer) -> Option<u32> {
    let Ok(mut writer) = Writer::new(memory, chain) else { return Some(0) };
    let most = writer.available_bytes().saturating_sub(HEADER_LEN);
    if most == 0 {
        return Some(0);
    }
    let (header, data) = muxer.packet(most)?;
    let written = writer.write_all(&header.encode()).and_then(|()| writer.write_all(data));
    let len = HEADER_LEN + data.len();
    Some(written.map_or(0, |()| u32::try_from(len).expect("a header and DATA_MAX at most")))
}

impl Service for Packets {
    fn serve(&mut self, event: Event, queues: &mut Queues, memory: &GuestMemoryMmap) -> Served {
        let muxer = Arc::clone(&self.muxer);
        let mut muxer = muxer.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Source => muxer.poll(),
            Event::Kick(EVENT) => muxer.reset_done(),
            Event::Kick(_) => {}
        }
        if muxer.is_reset_due() {
            send_event(&mut muxer, queues, memory).map_err(|error| (EVENT, error))?;
        }
        let mut was_full = !muxer.takes_packets();
        if event == Event::Kick(TRANSMIT) {
            self.transmit(&mut muxer, queues, memory).map_err(|error| (TRANSMIT, error))?;
            was_full = !muxer.takes_packets();
        }
        receive(&mut muxer, queues, memory).map_err(|error| (RECEIVE, error))?;
        if was_full && muxer.takes_packets() {
            // The driver does not kick for what it has given before.
            let waiting = worker::queue(queues, TRANSMIT).map(|handle| handle.kick.write(1));
            drop(waiting);
        }
        muxer.accept();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
