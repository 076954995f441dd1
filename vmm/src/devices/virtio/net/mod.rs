//! Network interfaces: virtio network device (Virtual I/O Device 1.2, 5.1), over a tap interface of
//! the host or a stream of frames that a user-mode network stack such as passt listens for.
//!
//! | the driver | the device |
//! |---|---|
//! | gives a frame larger than [`FRAME_MAX`] or smaller than an Ethernet header | drops it |
//! | gives a buffer to receive that does not hold the frame | drops the frame |
//! | makes frames faster than the link takes them | reads no more until it does |
//! | gives no buffers to receive | reads nothing from the link |
//! | gives buffers outside RAM | uses none of them |

mod device;
#[cfg(feature = "testing")]
mod driven;
mod error;
mod frames;
mod link;
mod stream;
mod tap;

pub(crate) use device::Net;
#[cfg(feature = "testing")]
pub use driven::DrivenNet;
pub use error::NetError;

/// Largest frame, in bytes: of the longest IP packet, with its Ethernet header and a tag.
const FRAME_MAX: usize = 65_535 + 18;
/// Bytes of an Ethernet header.
const FRAME_MIN: usize = 14;
