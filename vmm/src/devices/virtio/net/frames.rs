//! Moves frames between the queues and the link.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use virtio_queue::{QueueT, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::link::Link;
use super::{FRAME_MAX, FRAME_MIN};
use crate::devices::virtio::device::Interrupt;
use crate::devices::virtio::worker::{
    self, Chain, Damage, Event, Queues, Served, Service, await_more, complete, drain_while,
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
    /// Reset once the link is gone.
    is_up: Arc<AtomicBool>,
    /// Notifies the driver of that.
    changed: Option<Arc<dyn Interrupt>>,
    frame: Vec<u8>,
    /// Length of the frame that waits.
    waiting: Option<usize>,
}

impl Port {
    pub(super) fn new(link: Box<dyn Link>, is_up: Arc<AtomicBool>) -> Self {
        Self { link, is_up, changed: None, frame: vec![0; FRAME_MAX], waiting: None }
    }

    /// Sets the interrupt that notifies the driver of a link that is gone.
    pub(super) fn notify(&mut self, changed: Arc<dyn Interrupt>) {
        self.changed = Some(changed);
    }

    fn is_lost(&self) -> bool {
        !self.is_up.load(Ordering::SeqCst)
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
            if len < FRAME_MIN {
                // No frame; a host that sends no other does not keep the thread from its end.
                continue;
            }
            let Some(chain) = worker::next(handle, memory)? else {
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

    /// The length of what is received next, which is in `self.frame`.
    fn next_frame(&mut self) -> Option<usize> {
        if let Some(len) = self.waiting.take() {
            return Some(len);
        }
        if self.is_lost() {
            return None;
        }
        self.link.receive(&mut self.frame).unwrap_or_else(|error| {
            self.lose(&error);
            None
        })
    }

    /// Sends the driver's frames until there are none, or the link takes no more: it is an event
    /// when it does.
    fn transmit(&mut self, queues: &mut Queues, memory: &GuestMemoryMmap) -> Result<(), Damage> {
        let Some(handle) = worker::queue(queues, TRANSMIT) else { return Ok(()) };
        drain_while(handle, memory, self, Self::is_writable, |port, chain| {
            port.send(memory, chain);
            Some(0)
        })
    }

    fn is_writable(&mut self) -> bool {
        if self.is_lost() {
            // Frames go nowhere.
            return true;
        }
        self.link.flush().unwrap_or_else(|error| {
            self.lose(&error);
            true
        })
    }

    fn send(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) {
        let Some(frame) = take(memory, chain).filter(|_| !self.is_lost()) else { return };
        if let Err(error) = self.link.send(&frame) {
            self.lose(&error);
        }
    }

    fn lose(&mut self, error: &std::io::Error) {
        tracing::warn!(%error, "a network interface has lost its host side");
        self.is_up.store(false, Ordering::SeqCst);
        if let Some(changed) = &self.changed {
            changed.raise();
        }
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
    fn serve(&mut self, event: Event, queues: &mut Queues, memory: &GuestMemoryMmap) -> Served {
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::os::fd::RawFd;

    use super::*;
    use crate::devices::virtio::bench::{Buffer, TestQueues};
    use crate::devices::virtio::raised::Raised;

    const RAM: u64 = 1 << 20;
    /// Descriptors of each queue.
    const SIZE: u16 = 16;
    const BUFFERS: u64 = 0x8_0000;
    const BUFFER: u32 = 2048;

    /// Frames to receive, then an error; the frames sent, of which it takes so many.
    #[derive(Default)]
    struct Wire {
        received: VecDeque<Vec<u8>>,
        ends: bool,
        sent: Vec<Vec<u8>>,
        room: usize,
    }

    struct Shared(Arc<Mutex<Wire>>);

    impl Link for Shared {
        fn fd(&self) -> RawFd {
            -1
        }

        fn receive(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>> {
            let mut wire = self.0.lock().unwrap();
            let Some(next) = wire.received.pop_front() else {
                return if wire.ends { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
            };
            frame[..next.len()].copy_from_slice(&next);
            Ok(Some(next.len()))
        }

        fn send(&mut self, frame: &[u8]) -> io::Result<()> {
            let mut wire = self.0.lock().unwrap();
            wire.sent.push(frame.to_vec());
            wire.room -= 1;
            Ok(())
        }

        fn flush(&mut self) -> io::Result<bool> {
            Ok(self.0.lock().unwrap().room > 0)
        }
    }

    /// An interface whose driver has given these buffers, as (address, length).
    struct Bench {
        rings: TestQueues,
        frames: Frames,
        wire: Arc<Mutex<Wire>>,
        changed: Arc<Raised>,
    }

    impl Bench {
        fn new(wire: Wire, to_receive: &[&[(u64, u32)]], to_send: &[&[(u64, u32)]]) -> Self {
            let mut rings = TestQueues::new(RAM, 2, SIZE);
            for (number, chains) in [to_receive, to_send].into_iter().enumerate() {
                for chain in chains {
                    let buffer = |(at, len): &(u64, u32)| (*at, *len, number == RECEIVE);
                    let chain: Vec<Buffer> = chain.iter().map(buffer).collect();
                    rings.give(number, &chain);
                }
            }
            let wire = Arc::new(Mutex::new(wire));
            let is_up = Arc::new(AtomicBool::new(true));
            let mut port = Port::new(Box::new(Shared(Arc::clone(&wire))), is_up);
            let changed = Arc::new(Raised::default());
            port.notify(Arc::clone(&changed) as Arc<dyn Interrupt>);
            let frames = Frames(Arc::new(Mutex::new(port)));
            Self { rings, frames, wire, changed }
        }

        fn serve(&mut self, event: Event) {
            let TestQueues { ram, queues, .. } = &mut self.rings;
            self.frames.serve(event, queues, ram.as_memory()).unwrap();
        }
    }

    #[test]
    fn frames_wait_for_buffers_and_are_in_them_after_a_header() {
        let received = VecDeque::from([vec![7; 60], vec![1; 5], vec![8; 70], vec![9; 80]]);
        let wire = Wire { received, room: 9, ..Wire::default() };
        let chains: [&[(u64, u32)]; 2] =
            [&[(BUFFERS, BUFFER)], &[(BUFFERS + 4096, 20), (BUFFERS + 8192, BUFFER)]];
        let mut bench = Bench::new(wire, &chains, &[]);
        bench.serve(Event::Source);
        assert_eq!(bench.rings.bytes(BUFFERS, 13), [&HEADER[..], &[7]].concat());
        // One of 5 bytes is no frame. The next one is in two buffers, the last one waits.
        assert_eq!(bench.rings.bytes(BUFFERS + 4096, 20), [&HEADER[..], &[8; 8]].concat());
        assert_eq!(bench.rings.bytes(BUFFERS + 8192, 63), [&[8; 62][..], &[0]].concat());
        assert_eq!(bench.rings.interrupts(), 2);
        let waiting = bench.frames.0.lock().unwrap().waiting;
        assert_eq!((waiting, bench.wire.lock().unwrap().received.len()), (Some(80), 0));
        bench.serve(Event::Kick(RECEIVE));
        assert_eq!(bench.frames.0.lock().unwrap().waiting, Some(80), "until there is a buffer");
    }

    #[test]
    fn a_host_that_sends_no_frames_but_bytes_is_left_for_others() {
        let received = VecDeque::from(vec![vec![1; FRAME_MIN - 1]; 100]);
        let wire = Wire { received, room: 9, ..Wire::default() };
        let mut bench = Bench::new(wire, &[&[(BUFFERS, BUFFER)]], &[]);
        let mut left = 100_usize;
        while left > 0 {
            bench.serve(Event::Kick(RECEIVE));
            let now = bench.wire.lock().unwrap().received.len();
            assert_eq!(now, left.saturating_sub(16), "as many as the queue holds");
            left = now;
            // More may be there, and no event of the link will say so.
            assert_eq!(bench.rings.is_kicked(RECEIVE), left > 0);
        }
        assert_eq!(bench.rings.interrupts(), 0);
    }

    #[test]
    fn frames_are_sent_while_the_link_takes_them() {
        let wire = Wire { room: 1, ..Wire::default() };
        let chains: [&[(u64, u32)]; 2] =
            [&[(BUFFERS, 12), (BUFFERS + 4096, 60)], &[(BUFFERS + 8192, 72)]];
        let mut bench = Bench::new(wire, &[], &chains);
        bench.rings.write(BUFFERS + 4096, &[5; 60]);
        bench.serve(Event::Kick(TRANSMIT));
        assert_eq!(bench.wire.lock().unwrap().sent, [vec![5; 60]]);
        assert_eq!(bench.rings.interrupts(), 1);
        bench.wire.lock().unwrap().room = 5;
        bench.serve(Event::Source);
        assert_eq!(bench.wire.lock().unwrap().sent, [vec![5; 60], vec![0; 60]]);
    }

    #[test]
    fn what_is_no_frame_is_dropped_and_given_back() {
        let wire = Wire { received: VecDeque::from([vec![7; 60]]), room: 9, ..Wire::default() };
        let too_long = u32::try_from(FRAME_MAX + HEADER_LEN + 1).unwrap();
        let chains: [&[(u64, u32)]; 4] =
            [&[(BUFFERS, 11)], &[(BUFFERS, 25)], &[(BUFFERS, too_long)], &[(RAM - 8, 100)]];
        let small: [&[(u64, u32)]; 1] = [&[(BUFFERS, 71)]];
        let mut bench = Bench::new(wire, &small, &chains);
        bench.serve(Event::Source);
        assert_eq!(bench.wire.lock().unwrap().sent, [] as [Vec<u8>; 0]);
        assert_eq!(bench.rings.interrupts(), 5, "four to send, and one to receive");
        assert!(
            bench.rings.bytes(BUFFERS, 71).iter().all(|byte| *byte == 0),
            "it does not hold it"
        );
    }

    #[test]
    fn a_link_that_is_gone_takes_all_frames_and_has_none() {
        let wire = Wire { ends: true, room: 9, ..Wire::default() };
        let chain: [&[(u64, u32)]; 1] = [&[(BUFFERS, 72)]];
        let mut bench = Bench::new(wire, &chain, &chain);
        bench.serve(Event::Kick(RECEIVE));
        bench.serve(Event::Source);
        assert_eq!(bench.wire.lock().unwrap().sent, [] as [Vec<u8>; 0]);
        assert_eq!(bench.rings.interrupts(), 1, "its buffer is given back");
        assert_eq!(bench.changed.count(), 1, "its link is down");
    }
}
