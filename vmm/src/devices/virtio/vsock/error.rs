//! Why a vsock device cannot be made.

use std::io;
use std::path::PathBuf;

/// Why a vsock device cannot be made. Each names its socket.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// A process listens there.
    #[error("vsock socket {}: in use; each virtual machine needs a socket of its own", .0.display())]
    InUse(PathBuf),
    /// Another kind of file is there.
    #[error("vsock socket {}: a file is there that is no socket; it is left alone, give another path", .0.display())]
    NotASocket(PathBuf),
    /// It cannot be made.
    #[error("vsock socket {}: {source}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
