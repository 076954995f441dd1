//! Connections to unix sockets of the host.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A stream socket whose calls do not wait.
pub(super) fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connects to the process that listens at `path`. Does not wait, also later.
///
/// # Errors
/// [`Errno::AGAIN`] if it has more clients than it accepts; others of the system.
pub(super) fn connect_now(path: &Path) -> Result<UnixStream, Errno> {
    let socket = stream_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
