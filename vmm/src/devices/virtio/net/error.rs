//! Why a network interface cannot be made.

use std::io;
use std::path::PathBuf;

/// Why a network interface cannot be made. Each names its host side.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// There is none of that name.
    #[error(
        "tap {0}: no such interface; `ip tuntap add {0} mode tap user $USER && ip link set {0} up`, as root, makes one"
    )]
    NoTap(String),
    /// Another program has it.
    #[error("tap {0}: in use by another virtual machine or program")]
    TapInUse(String),
    /// It is of another kind.
    #[error("tap {0}: an interface, but no tap; `ip tuntap add NAME mode tap` makes one")]
    NotATap(String),
    /// It cannot be opened.
    #[error(
        "tap {name}: {source}; it must belong to this user (`ip tuntap add {name} mode tap user $USER`)"
    )]
    Tap {
        /// The interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The network stack there accepts no connection.
    #[error("network socket {}: in use; a network stack serves one virtual machine: start one for each", .0.display())]
    Busy(PathBuf),
    /// No network stack listens there.
    #[error("network socket {}: {source}; start the network stack before the guest, for example `passt --socket {}`", path.display(), path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
