//! Sockets between guest and host without a network: virtio socket device (Virtual I/O Device 1.2,
//! 5.10), over unix sockets as Firecracker has them. A client of the host's connects to the socket,
//! writes `CONNECT PORT`, and reads `OK PORT` once the guest accepts; a connection of the guest's
//! to port P of CID 2 goes to the process that listens at the socket's path with `_P` after it.
//!
//! | the driver | the device |
//! |---|---|
//! | sends a packet that is cut off, or longer than [`packet::DATA_MAX`] | drops it |
//! | sends with a CID that is not the guest's | drops the packet |
//! | sends to another CID, of another type, for no connection, or of no known operation | resets |
//! | sends what may not come in a connection's state, or more than its credit | resets |
//! | asks for more than 128 connections, or for a port that no process listens at | resets |
//! | does not answer for a minute when a client asks for a connection | ends it, and resets |
//! | gives no buffers to receive, and goes on sending | holds 128 answers, then reads no more |
//! | gives a buffer to receive that holds no packet, or is outside RAM | gives it back |
//! | says that it has forwarded more than it was sent | sends it nothing more |
//! | has a ring say that it has more than it holds | gives the queue up |
//! | (the host's process does not read) | holds 64 KiB for each connection, then has no credit |
//!
//! Packets are read here and not by the crate `virtio-vsock`, which takes one buffer of data after
//! the header: Linux sends more with `MSG_ZEROCOPY` (since 6.7).

mod connection;
mod deadlines;
mod device;
#[cfg(feature = "testing")]
mod driven;
mod error;
mod greeting;
mod host;
mod muxer;
mod packet;
mod peer;
mod queues;

pub(crate) use device::Vsock;
#[cfg(feature = "testing")]
pub use driven::DrivenVsock;
pub use error::VsockError;

/// The host's CID.
const HOST_CID: u64 = 2;
