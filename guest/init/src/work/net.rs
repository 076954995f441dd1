//! Datagrams that must come back.

use core::net::SocketAddrV4;

use super::{Failure, Tally, call};
use crate::sys;

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
