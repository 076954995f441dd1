//! Datagrams that must come back, and connections within the guest.

use core::net::SocketAddrV4;

use exoprobe_guest_init::command::MAX_MESSAGE;

use super::vsock::read_all;
use super::{Failure, Tally, call};
use crate::sys::{self, Errno, Fd};

/// Bytes of a datagram.
const LEN: usize = 1000;
/// Longest wait for one, in seconds: a guest may be emulated.
const PATIENCE: u64 = 60;

/// Counts the datagrams that came back as they were sent.
pub(super) fn udp(to: SocketAddrV4, count: u64, tally: &Tally) -> Result<(), Failure> {
    let socket = call("socket", sys::connected_udp(to, PATIENCE))?;
    let result = (0..count).try_for_each(|number| {
        let (mut sent, mut back) = ([0; LEN], [0; LEN]);
        for (byte, turn) in sent.iter_mut().zip(number..) {
            *byte = turn.to_le_bytes()[0];
        }
        call("write", sys::write_all(socket, &sent))?;
        if call("read", sys::read(socket, &mut back))? == LEN && back == sent {
            tally.add(1);
        }
        Ok(())
    });
    result.and(call("close", sys::close(socket)))
}

/// The port of `tcp` and `tcp-full`.
const PORT: u16 = 7777;
const KIB: usize = 1024;

/// Counts the connections that were made, used in both directions, and closed.
pub(super) fn tcp(kib: u64, count: u64, tally: &Tally) -> Result<(), Failure> {
    let listener = call("listen", sys::tcp::listen(PORT, 1))?;
    let result = tally.repeat(count, || {
        let client = call("connect", sys::tcp::connect(PORT))?;
        let server = call("accept", sys::accept(listener))?;
        for _ in 0..kib {
            pass(client, server, KIB)?;
            pass(server, client, KIB)?;
        }
        call("close", sys::close(client))?;
        // Not before the client's end is known here: so each end is closed when this returns.
        match call("read", sys::read(server, &mut [0; 1]))? {
            0 => call("close", sys::close(server)),
            _ => Err(Failure::Call("read", Errno(0))),
        }
    });
    result.and(call("close", sys::close(listener)))
}

/// Sends bytes, at most [`MAX_MESSAGE`], that must come out at the other end.
fn pass(from: Fd, to: Fd, len: usize) -> Result<(), Failure> {
    const LETTER: u8 = b'x';
    let (mut sent, mut back) = ([LETTER; MAX_MESSAGE], [0; MAX_MESSAGE]);
    let sent = sent.get_mut(..len).unwrap_or_default();
    let back = back.get_mut(..len).unwrap_or_default();
    call("write", sys::write_all(from, sent))?;
    match read_all(to, back)? && back == sent {
        true => Ok(()),
        false => Err(Failure::Call("read", Errno(0))),
    }
}

/// Counts the SYNs that a connection sends again while its listener has no room for it.
pub(super) fn tcp_full(ms: u64, tally: &Tally) -> Result<(), Failure> {
    let listener = call("listen", sys::tcp::listen(PORT, 0))?;
    let first = call("connect", sys::tcp::connect(PORT))?;
    let result = call("connect", sys::tcp::syns_again(PORT, ms)).map(|again| tally.add(again));
    let closed = call("close", sys::close(first)).and(call("close", sys::close(listener)));
    result.and(closed)
}

/// Counts the messages that came through a pair of sockets.
pub(super) fn unix(len: usize, count: u64, tally: &Tally) -> Result<(), Failure> {
    let (one, other) = call("socketpair", sys::tcp::unix_pair())?;
    let result = tally.repeat(count, || pass(one, other, len));
    result.and(call("close", sys::close(one))).and(call("close", sys::close(other)))
}
