//! Bytes to and from the host, by sockets to it.

use super::{Failure, Tally, call};
use crate::sys::{self, Fd};

/// Bytes of a block.
const LEN: usize = 4096;
/// Longest wait for the host, in seconds: a guest may be emulated.
const PATIENCE: u64 = 120;

/// Counts the blocks that came back as they were sent.
pub(super) fn send(port: u32, count: u64, tally: &Tally) -> Result<(), Failure> {
    let socket = call("connect", sys::connect_to_host(port, PATIENCE))?;
    let result = (0..count).try_for_each(|number| {
        let (mut sent, mut back) = ([0; LEN], [0; LEN]);
        for (byte, turn) in sent.iter_mut().zip(number..) {
            *byte = turn.to_le_bytes()[0];
        }
        call("write", sys::write_all(socket, &sent))?;
        if read_all(socket, &mut back)? && back == sent {
            tally.add(1);
        }
        Ok(())
    });
    result.and(call("close", sys::close(socket)))
}

/// Reads as many bytes. Returns false if the other end closes before.
pub(super) fn read_all(socket: Fd, mut buffer: &mut [u8]) -> Result<bool, Failure> {
    while !buffer.is_empty() {
        let len = call("read", sys::read(socket, buffer))?;
        if len == 0 {
            return Ok(false);
        }
        buffer = buffer.get_mut(len..).unwrap_or_default();
    }
    Ok(true)
}

/// Sends one connection of the host's its bytes back, until it has no more. Counts them.
pub(super) fn echo(port: u32, tally: &Tally) -> Result<(), Failure> {
    let listener = call("listen", sys::listen_for_host(port, PATIENCE))?;
    let result = call("accept", sys::accept(listener)).and_then(|socket| {
        let result = echo_on(socket, tally);
        result.and(call("close", sys::close(socket)))
    });
    result.and(call("close", sys::close(listener)))
}

fn echo_on(socket: Fd, tally: &Tally) -> Result<(), Failure> {
    let mut buffer = [0; LEN];
    loop {
        let len = call("read", sys::read(socket, &mut buffer))?;
        let Some(read @ [_, ..]) = buffer.get(..len) else { return Ok(()) };
        call("write", sys::write_all(socket, read))?;
        tally.add(len as u64);
    }
}
