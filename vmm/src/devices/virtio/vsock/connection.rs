//! One connection, without sockets and queues: the packets that are received and due, and the
//! credit on both sides (Virtual I/O Device 1.2, 5.10.6.3 to 5.10.6.6).

use std::collections::VecDeque;

use super::packet::{Header, NO_RECEIVE, NO_SEND, Op};

/// Bytes of the guest's that wait for the host's side at most: the credit that the guest has.
pub(super) const BUFFER: usize = 64 << 10;
/// `BUFFER` as headers have it.
const BUFFER_ALLOC: u32 = 64 << 10;
/// Bytes after which the guest is sent that there is room again.
const UPDATE_AFTER: u32 = BUFFER_ALLOC / 2;
/// A connection that is shut down in both directions.
const NOTHING_MORE: u32 = NO_RECEIVE | NO_SEND;

/// A packet that may not come in this state: the connection has to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Violation;

/// A packet for the guest, without addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) op: Op,
    pub(super) flags: u32,
    pub(super) len: u32,
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

/// The end of a connection, after which it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The guest has it closed, or never heard of it.
    Silent,
    /// The guest has to be sent a reset.
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The host's side asks for it.
    Requesting,
    /// The guest has been asked.
    Requested,
    /// The guest has asked for it.
    Accepting,
    Open,
    /// The guest has reset it. What it sent before still goes to the host's side.
    GuestGone,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    phase: Phase,
    /// Bytes for the host's side.
    to_host: VecDeque<u8>,
    /// Bytes at the front of `to_host` that are the device's own, and not the guest's.
    own: usize,
    /// Bytes of the guest's that have gone to the host's side, modulo 2^32.
    forwarded: u32,
    /// As far as the guest has been sent.
    reported: u32,
    /// The guest asks how much room there is.
    is_asked: bool,
    /// Bytes sent to the guest, and those of them that it has forwarded, modulo 2^32.
    sent: u32,
    consumed: u32,
    /// The guest's room.
    room: u32,
    /// The guest has been asked how much there is, since there was some.
    has_asked: bool,
    /// `NO_RECEIVE` and `NO_SEND` of the guest, of the host's side, and as the guest has been sent.
    guest_shut: u32,
    host_shut: u32,
    sent_shut: u32,
}

impl Connection {
    fn new(phase: Phase) -> Self {
        Self {
            phase,
            to_host: VecDeque::new(),
            own: 0,
            forwarded: 0,
            reported: 0,
            is_asked: false,
            sent: 0,
            consumed: 0,
            room: 0,
            has_asked: false,
            guest_shut: 0,
            host_shut: 0,
            sent_shut: 0,
        }
    }

    /// A connection that the host's side asks for.
    pub(super) fn of_host() -> Self {
        Self::new(Phase::Requesting)
    }

    /// A connection that the guest asks for with this packet, to a host's side that is there.
    pub(super) fn of_guest(request: &Header) -> Self {
        let mut connection = Self::new(Phase::Accepting);
        connection.learn_credit(request);
        connection
    }

    /// Returns true once the guest has reset it.
    pub(super) fn is_guest_gone(&self) -> bool {
        self.phase == Phase::GuestGone
    }

    /// Returns true while the host's side asks for it, and the guest has not answered.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self.phase, Phase::Requesting | Phase::Requested)
    }

    /// A packet of the guest's with its data. `greeting` is sent to the host's side when the guest
    /// accepts.
    ///
    /// # Errors
    /// [`Violation`].
    pub(super) fn receive(
        &mut self,
        header: &Header,
        data: &[u8],
        greeting: &[u8],
    ) -> Result<(), Violation> {
        self.learn_credit(header);
        match (self.phase, Op::of(header.op).ok_or(Violation)?) {
            (Phase::GuestGone, _) => return Err(Violation),
            (_, Op::Reset) => self.phase = Phase::GuestGone,
            (Phase::Requested, Op::Response) => {
                self.phase = Phase::Open;
                self.to_host.extend(greeting);
                self.own = greeting.len();
            }
            (Phase::Open, Op::Data) => return self.receive_data(data),
            (Phase::Open | Phase::Accepting, Op::Shutdown) => {
                self.guest_shut |= header.flags & NOTHING_MORE;
            }
            (Phase::Open, Op::CreditUpdate) => {}
            (Phase::Open, Op::CreditRequest) => self.is_asked = true,
            _ => return Err(Violation),
        }
        Ok(())
    }

    fn receive_data(&mut self, data: &[u8]) -> Result<(), Violation> {
        let held = self.to_host.len() - self.own;
        if self.guest_shut & NO_SEND != 0 || held + data.len() > BUFFER {
            return Err(Violation);
        }
        if self.host_shut & NO_RECEIVE != 0 {
            self.count_forwarded(data.len());
        } else {
            self.to_host.extend(data);
        }
        Ok(())
    }

    fn learn_credit(&mut self, header: &Header) {
        (self.room, self.consumed) = (header.buf_alloc, header.fwd_cnt);
        if self.credit() > 0 {
            self.has_asked = false;
        }
    }

    /// Bytes that the guest has room for. It may say that it has forwarded more than it was sent:
    /// then there is none.
    fn credit(&self) -> u32 {
        self.room.saturating_sub(self.sent.wrapping_sub(self.consumed))
    }

    /// Bytes for the host's side, or the first part of them.
    pub(super) fn to_host(&self) -> &[u8] {
        self.to_host.as_slices().0
    }

    /// The host's side has taken so many of these.
    pub(super) fn forward(&mut self, len: usize) {
        self.to_host.drain(..len);
        let own = self.own.min(len);
        self.own -= own;
        self.count_forwarded(len - own);
    }

    fn count_forwarded(&mut self, len: usize) {
        let len = u32::try_from(len).expect("at most BUFFER");
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// Returns true once the host's side has all that the guest sent, and there will be no more.
    pub(super) fn is_sent_out(&self) -> bool {
        self.guest_shut & NO_SEND != 0 && self.to_host.is_empty()
    }

    /// Returns true if the guest receives no more.
    pub(super) fn is_refused(&self) -> bool {
        self.guest_shut & NO_RECEIVE != 0
    }

    /// The host's side sends no more.
    pub(super) fn end_of_host(&mut self) {
        self.host_shut |= NO_SEND;
    }

    /// The host's side takes no more.
    pub(super) fn drop_for_host(&mut self) {
        self.host_shut |= NO_RECEIVE;
        self.forward(self.to_host.len());
    }

    /// The most bytes that the guest takes from the host's side now.
    pub(super) fn takes(&self) -> usize {
        let is_shut = self.is_refused() || self.host_shut & NO_SEND != 0;
        if self.phase != Phase::Open || is_shut {
            return 0;
        }
        usize::try_from(self.credit()).unwrap_or(usize::MAX)
    }

    /// Makes the packet of so many bytes of data, at most [`Self::takes`].
    pub(super) fn send(&mut self, len: usize) -> Outgoing {
        let len = u32::try_from(len).expect("at most the credit");
        self.sent = self.sent.wrapping_add(len);
        self.outgoing(Op::Data, 0, len)
    }

    /// Returns true if a packet without data is due. `waits` is true while the host's side has
    /// bytes.
    pub(super) fn has_due(&self, waits: bool) -> bool {
        self.due(waits).is_some()
    }

    /// The packet without data that is due. `waits` is as in [`Self::has_due`].
    pub(super) fn next(&mut self, waits: bool) -> Option<Outgoing> {
        let (op, flags) = self.due(waits)?;
        match op {
            Op::Request => self.phase = Phase::Requested,
            Op::Response => self.phase = Phase::Open,
            Op::Shutdown => self.sent_shut = flags,
            Op::CreditRequest => self.has_asked = true,
            _ => self.is_asked = false,
        }
        Some(self.outgoing(op, flags, 0))
    }

    fn due(&self, waits: bool) -> Option<(Op, u32)> {
        match self.phase {
            Phase::Requesting => return Some((Op::Request, 0)),
            Phase::Accepting => return Some((Op::Response, 0)),
            Phase::Requested | Phase::GuestGone => return None,
            Phase::Open => {}
        }
        let can_send = !self.is_refused() && self.host_shut & NO_SEND == 0;
        if self.host_shut != self.sent_shut {
            Some((Op::Shutdown, self.host_shut))
        } else if self.is_asked || self.forwarded.wrapping_sub(self.reported) >= UPDATE_AFTER {
            Some((Op::CreditUpdate, 0))
        } else if waits && can_send && self.credit() == 0 && !self.has_asked {
            Some((Op::CreditRequest, 0))
        } else {
            None
        }
    }

    fn outgoing(&mut self, op: Op, flags: u32, len: u32) -> Outgoing {
        self.reported = self.forwarded;
        Outgoing { op, flags, len, buf_alloc: BUFFER_ALLOC, fwd_cnt: self.forwarded }
    }

    /// The end, once it is there.
    pub(super) fn end(&self) -> Option<End> {
        let takes_nothing = self.host_shut & NO_RECEIVE != 0;
        match self.phase {
            // The host's side has not waited for the answer.
            Phase::Requesting => takes_nothing.then_some(End::Silent),
            Phase::Requested => takes_nothing.then_some(End::Reset),
            Phase::GuestGone => self.to_host.is_empty().then_some(End::Silent),
            Phase::Accepting if self.host_shut == NOTHING_MORE => Some(End::Reset),
            // The guest closes its side for this, and has it closed for what it still sends.
            Phase::Open if self.sent_shut == NOTHING_MORE => Some(End::Silent),
            Phase::Accepting | Phase::Open => {
                let is_done = self.guest_shut == NOTHING_MORE && self.to_host.is_empty();
                is_done.then_some(End::Reset)
            }
        }
    }
}

#[cfg(test)]
mod tests;
