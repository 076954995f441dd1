//! A disk: virtio block device (Virtual I/O Device 1.2, 5.2).

mod buffers;
mod device;
mod disk;
#[cfg(feature = "testing")]
mod driven;
mod overlay;
mod request;

pub(crate) use device::Blk;
use disk::Disk;
pub use disk::DiskError;
pub(crate) use disk::DiskIdentity;
#[cfg(feature = "testing")]
pub use driven::DrivenBlk;
