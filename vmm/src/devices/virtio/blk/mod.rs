//! A disk: virtio block device (Virtual I/O Device 1.2, 5.2).

mod buffers;
mod device;
mod disk;
#[cfg(feature = "testing")]
mod driven;
mod host_file;
mod overlay;
mod pool;
mod request;
mod service;

pub(crate) use device::Blk;
use disk::Disk;
pub use disk::DiskError;
pub(crate) use disk::DiskIdentity;
#[cfg(feature = "testing")]
pub use driven::DrivenBlk;
