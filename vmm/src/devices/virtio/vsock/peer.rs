//! A connection with the host's socket of it.

use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::connection::{Connection, End, Outgoing};

/// A connection, and its socket.
pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) stream: UnixStream,
    /// The socket may have bytes, until a read finds none; it may take some, until a write finds
    /// that it does not.
    readable: bool,
    writable: bool,
    /// The directions in which the socket is shut down, as the guest has asked for.
    shut_write: bool,
    shut_read: bool,
    /// It is in the list of those that have packets for the guest.
    pub(super) is_listed: bool,
}

impl Peer {
    pub(super) fn new(connection: Connection, stream: UnixStream) -> Self {
        Self {
            connection,
            stream,
            // Not known yet; the first read or write finds out.
            readable: true,
            writable: true,
            shut_write: false,
            shut_read: false,
            is_listed: false,
        }
    }

    /// The socket has changed; `is_hung_up` if its peer is gone.
    pub(super) fn changed(&mut self, readable: bool, writable: bool, is_hung_up: bool) {
        self.readable |= readable;
        self.writable |= writable;
        if is_hung_up {
            self.connection.drop_for_host();
        }
    }

    /// Returns true if there may be a packet for the guest.
    pub(super) fn may_have_packet(&self) -> bool {
        self.connection.has_due(self.readable) || (self.readable && self.connection.takes() > 0)
    }

    /// The next packet for the guest, with at most as many bytes of data as `data` holds.
    pub(super) fn packet(&mut self, data: &mut [u8]) -> Option<Outgoing> {
        while self.may_have_packet() {
            if let Some(packet) = self.connection.next(self.readable) {
                return Some(packet);
            }
            let len = self.connection.takes().min(data.len());
            match self.stream.read(&mut data[..len]) {
                Ok(0) => self.end(),
                Ok(len) => return Some(self.connection.send(len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.connection.drop_for_host();
                    self.end();
                }
            }
        }
        None
    }

    fn end(&mut self) {
        self.readable = false;
        self.connection.end_of_host();
    }

    /// Sends the host what it takes, and shuts the socket down where the guest has. Returns the
    /// connection's end, once it is there.
    pub(super) fn flush(&mut self) -> Option<End> {
        while self.writable && !self.connection.to_host().is_empty() {
            match send(&self.stream, self.connection.to_host(), SendFlags::NOSIGNAL) {
                Ok(len) => self.connection.forward(len),
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => self.connection.drop_for_host(),
            }
        }
        // A socket whose peer is gone has nothing to be shut down.
        if self.connection.is_sent_out() && !self.shut_write {
            self.shut_write = true;
            drop(self.stream.shutdown(Shutdown::Write));
        }
        if self.connection.is_refused() && !self.shut_read {
            self.shut_read = true;
            drop(self.stream.shutdown(Shutdown::Read));
        }
        self.connection.end()
    }
}
