//! A vsock device without a machine, whose queues hold anything: for fuzz targets.

use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use super::host::Host;
use super::muxer::Muxer;
use super::queues::{EVENT, Packets, RECEIVE, TRANSMIT};
use crate::devices::virtio::driven::DrivenRam;
use crate::devices::virtio::worker::{Event, Service as _};

/// The guest's CID.
const CID: u32 = 3;
/// Where the queues begin.
const QUEUES: [u32; 3] = [0, 0x400, 0x800];
/// Sent by each of the host's processes.
const DATA: [u8; 5000] = [0xa5; 5000];

/// The device, and RAM of 64 KiB: of the queue to receive 16 descriptors at 0, the available ring
/// at 0x100, the used ring at 0x200; those of the queue to transmit 0x400 later, and of that for
/// events 0x800. One client has asked for port 5 of the guest's, and a process listens at each of
/// the host's even ports.
pub struct DrivenVsock(DrivenRam);

/// Its clients, and the ends of the processes.
struct Processes {
    listener: UnixStream,
    clients: Vec<UnixStream>,
    ends: Vec<UnixStream>,
}

impl Processes {
    fn new() -> io::Result<Self> {
        let (mut client, end) = UnixStream::pair()?;
        client.write_all(b"CONNECT 5\n")?;
        end.set_nonblocking(true)?;
        // Its event is that a client is there.
        let (listener, mut other) = UnixStream::pair()?;
        other.write_all(b"x")?;
        Ok(Self { listener, clients: vec![end], ends: vec![client, other] })
    }
}

impl Host for Processes {
    fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    fn accept(&mut self) -> io::Result<UnixStream> {
        self.clients.pop().ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn connect(&mut self, port: u32) -> io::Result<UnixStream> {
        if port % 2 == 1 {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (mut end, own) = UnixStream::pair()?;
        end.write_all(&DATA)?;
        own.set_nonblocking(true)?;
        self.ends.push(end);
        Ok(own)
    }
}

impl Default for DrivenVsock {
    fn default() -> Self {
        Self(DrivenRam::new().expect("64 KiB"))
    }
}

impl DrivenVsock {
    /// Puts `bytes`, of 64 KiB at most, at the beginning of RAM, and serves what they ask for.
    ///
    /// # Errors
    /// The queue's, when one is broken.
    ///
    /// # Panics
    /// When there are more bytes, or no descriptor of a file is left.
    pub fn drive(&self, bytes: &[u8]) -> Result<(), virtio_queue::Error> {
        let memory = self.0.fill(bytes);
        let mut queues = Vec::new();
        for (number, start) in QUEUES.into_iter().enumerate() {
            queues.push((number, DrivenRam::queue(start)?));
        }
        let processes = Box::new(Processes::new().expect("descriptors"));
        let muxer = Muxer::new(CID, processes).expect("a descriptor");
        let muxer = Arc::new(Mutex::new(muxer));
        muxer.lock().unwrap_or_else(PoisonError::into_inner).clear_and_notify();
        let mut packets = Packets::new(Arc::clone(&muxer));
        // The client asks once the driver has its event; then come the driver's packets.
        for event in [
            Event::Kick(EVENT),
            Event::Kick(EVENT),
            Event::Source,
            Event::Kick(RECEIVE),
            Event::Kick(TRANSMIT),
            Event::Source,
            Event::Kick(TRANSMIT),
            Event::Source,
        ] {
            packets.serve(event, &mut queues, memory).map_err(|(_, error)| error)?;
        }
        Ok(())
    }
}
