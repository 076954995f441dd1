//! TCP and UNIX sockets within the guest.

use super::{Fd, Result, address, nr, syscall};

const AF_UNIX: usize = 1;
const AF_INET: u16 = 2;
const SOCK_STREAM: usize = 1;
const SOL_SOCKET: usize = 1;

/// The kernel's `struct sockaddr_in` for a port of 127.0.0.1.
fn loopback(port: u16) -> [u8; 16] {
    let mut name = [0; 16];
    let ([a, b], [c, d]) = (AF_INET.to_ne_bytes(), port.to_be_bytes());
    name[..8].copy_from_slice(&[a, b, c, d, 127, 0, 0, 1]);
    name
}

fn socket() -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::SOCKET, [AF_INET.into(), SOCK_STREAM, 0, 0, 0, 0]) }.map(Fd)
}

fn with_address(number: usize, socket: Fd, port: u16) -> Result<()> {
    let name = loopback(port);
    let (pointer, len) = (address(name.as_ptr()), name.len());
    // SAFETY: the kernel reads a `sockaddr_in` of 16 bytes.
    unsafe { syscall(number, [socket.0, pointer, len, 0, 0, 0]) }.map(drop)
}

/// Listens at a port of 127.0.0.1, with room for `backlog` connections, and one.
pub(crate) fn listen(port: u16, backlog: usize) -> Result<Fd> {
    const SO_REUSEADDR: usize = 2;
    let socket = socket()?;
    let on = 1_u32;
    let (pointer, len) = (address(&raw const on), size_of_val(&on));
    // SAFETY: the kernel reads an int.
    unsafe { syscall(nr::SETSOCKOPT, [socket.0, SOL_SOCKET, SO_REUSEADDR, pointer, len, 0]) }?;
    with_address(nr::BIND, socket, port)?;
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::LISTEN, [socket.0, backlog, 0, 0, 0, 0]) }?;
    Ok(socket)
}

/// Connects to a port of 127.0.0.1.
pub(crate) fn connect(port: u16) -> Result<Fd> {
    let socket = socket()?;
    with_address(nr::CONNECT, socket, port)?;
    Ok(socket)
}

/// Connects for so many milliseconds to a port of 127.0.0.1 that does not answer. Returns how often
/// the kernel has sent its SYN again.
pub(crate) fn syns_again(port: u16, ms: u64) -> Result<u64> {
    const SO_SNDTIMEO: usize = 21;
    const IPPROTO_TCP: usize = 6;
    const TCP_INFO: usize = 11;
    // Of `tcpi_total_retrans` in `struct tcp_info`.
    const TOTAL_RETRANS: usize = 100;
    const EINPROGRESS: super::Errno = super::Errno(115);
    let socket = socket()?;
    let timeout = [ms / 1000, ms % 1000 * 1000];
    let (pointer, len) = (address(timeout.as_ptr()), size_of_val(&timeout));
    // SAFETY: the kernel reads a `timeval` of two words.
    unsafe { syscall(nr::SETSOCKOPT, [socket.0, SOL_SOCKET, SO_SNDTIMEO, pointer, len, 0]) }?;
    match with_address(nr::CONNECT, socket, port) {
        Err(EINPROGRESS) => {}
        Err(other) => return Err(other),
        Ok(()) => return Err(super::Errno(0)),
    }
    let mut info = [0_u32; TOTAL_RETRANS / 4 + 1];
    let mut len = size_of_val(&info);
    let (pointer, len) =
        (info.as_mut_ptr().expose_provenance(), (&raw mut len).expose_provenance());
    // SAFETY: the kernel writes at most as many bytes to `info` as the int at `len` says.
    unsafe { syscall(nr::GETSOCKOPT, [socket.0, IPPROTO_TCP, TCP_INFO, pointer, len, 0]) }?;
    super::close(socket)?;
    Ok(u64::from(info[TOTAL_RETRANS / 4]))
}

/// Two UNIX stream sockets, connected to each other.
pub(crate) fn unix_pair() -> Result<(Fd, Fd)> {
    let mut ends = [0_u32; 2];
    let pointer = ends.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes two ints to `ends`.
    unsafe { syscall(nr::SOCKETPAIR, [AF_UNIX, SOCK_STREAM, 0, pointer, 0, 0]) }?;
    let [a, b] = ends.map(|end| Fd(usize::try_from(end).unwrap_or(usize::MAX)));
    Ok((a, b))
}
