//! Sockets to the host (AF_VSOCK).

use super::{Fd, Result, address, nr, syscall};

const AF_VSOCK: u16 = 40;
/// The host's CID, and any.
const HOST: u32 = 2;
const ANY: u32 = u32::MAX;

/// The kernel's `struct sockaddr_vm`.
#[repr(C)]
struct Address {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    flags: u8,
    zero: [u8; 3],
}

impl Address {
    fn new(cid: u32, port: u32) -> Self {
        Self { family: AF_VSOCK, reserved: 0, port, cid, flags: 0, zero: [0; 3] }
    }
}

/// A stream socket with a longest wait for what it waits for, in seconds.
fn socket(patience: u64) -> Result<Fd> {
    const SOCK_STREAM: usize = 1;
    const SOL_SOCKET: usize = 1;
    const SO_RCVTIMEO: usize = 20;
    const CONNECT_TIMEOUT: usize = 6;
    // SAFETY: no memory is involved.
    let socket = unsafe { syscall(nr::SOCKET, [AF_VSOCK.into(), SOCK_STREAM, 0, 0, 0, 0]) };
    let socket = socket.map(Fd)?;
    let timeout = [patience, 0];
    let (pointer, len) = (address(timeout.as_ptr()), size_of_val(&timeout));
    for (level, option) in [(SOL_SOCKET, SO_RCVTIMEO), (AF_VSOCK.into(), CONNECT_TIMEOUT)] {
        // SAFETY: the kernel reads a `timeval` of two words.
        unsafe { syscall(nr::SETSOCKOPT, [socket.0, level, option, pointer, len, 0]) }?;
    }
    Ok(socket)
}

fn with_address(number: usize, socket: Fd, to: &Address) -> Result<usize> {
    // SAFETY: the kernel reads a `struct sockaddr_vm`.
    unsafe { syscall(number, [socket.0, address(&raw const *to), size_of_val(to), 0, 0, 0]) }
}

/// Connects to a port of the host's.
pub(crate) fn connect_to_host(port: u32, patience: u64) -> Result<Fd> {
    let socket = socket(patience)?;
    with_address(nr::CONNECT, socket, &Address::new(HOST, port))?;
    Ok(socket)
}

/// Listens at a port of this guest's.
pub(crate) fn listen_for_host(port: u32, patience: u64) -> Result<Fd> {
    const BACKLOG: usize = 8;
    let socket = socket(patience)?;
    with_address(nr::BIND, socket, &Address::new(ANY, port))?;
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::LISTEN, [socket.0, BACKLOG, 0, 0, 0, 0]) }?;
    Ok(socket)
}

/// The next connection of a socket that listens.
pub(crate) fn accept(listener: Fd) -> Result<Fd> {
    // SAFETY: the pointers to the address are null: the kernel writes none.
    unsafe { syscall(nr::ACCEPT, [listener.0, 0, 0, 0, 0, 0]) }.map(Fd)
}
