//! Why there is no mount, or still one.

use std::io;
use std::path::PathBuf;

use nix::unistd::geteuid;

use super::remote::LIMIT;
use crate::client::ClientError;

/// The device that file systems outside the kernel need.
pub(super) const DEVICE: &str = "/dev/fuse";

/// Why there is no mount, or still one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("{0:?} does not exist: make it, with `mkdir -p`, or name an empty folder")]
    NotFound(PathBuf),
    #[error("{0:?} is not a folder: name an empty one")]
    NoFolder(PathBuf),
    #[error("{point:?} is not empty (it has {names}): name an empty folder")]
    NotEmpty { point: PathBuf, names: String },
    #[error(
        "{0:?} is the mount of another `exoprobe mount`, which runs: end that one, or take the mount away with \
         `exoprobe mount --unmount`"
    )]
    InUse(PathBuf),
    #[error(
        "{point:?} is what is left of a mount of {of:?}, whose process is gone: take it away with `umount` or \
         `fusermount3 -u`"
    )]
    Foreign { point: PathBuf, of: String },
    #[error("cannot look at {point:?}: {source}")]
    Look { point: PathBuf, source: io::Error },
    #[error("cannot read the list of mounts: {0}")]
    Mounts(io::Error),
    #[error(
        "this host has no {DEVICE} ({0}): load it with `modprobe fuse`, or give it to the container"
    )]
    NoDevice(io::Error),
    #[error("cannot open {DEVICE}: {0}: it must be open to this user, for reading and writing")]
    Device(io::Error),
    #[error(transparent)]
    Service(#[from] ClientError),
    #[error("the service has no tracefs: it is older than this program, start it anew")]
    NoTracefs,
    #[error("the service did not answer within {} s", LIMIT.as_secs())]
    NoAnswer,
    #[error("cannot mount on {point:?}: {source}{}", advice(.source))]
    Mount { point: PathBuf, source: io::Error },
    #[error("{0:?} is not a mount of exoprobe")]
    NotMounted(PathBuf),
    #[error("{0:?} is in use: a program has a file of it open, or is in one of its folders")]
    Busy(PathBuf),
    #[error("cannot unmount {point:?}: {source}")]
    Unmount { point: PathBuf, source: io::Error },
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if !geteuid().is_root() => {
            "\nUsers other than root need fusermount3 (Debian's package fuse3)."
        }
        _ => "",
    }
}
