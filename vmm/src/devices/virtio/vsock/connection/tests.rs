use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const GREETING: &[u8] = b"OK 1\n";

/// A guest that keeps to the rules, with a socket of its own.
struct Guest {
    room: u32,
    /// Received, and not yet read.
    held: VecDeque<u8>,
    read: Vec<u8>,
    forwarded: u32,
    sent: u32,
    device_room: u32,
    device_forwarded: u32,
    is_open: bool,
    ended: u32,
}

impl Guest {
    fn new(room: u32) -> Self {
        Self {
            room,
            held: VecDeque::new(),
            read: Vec::new(),
            forwarded: 0,
            sent: 0,
            device_room: 0,
            device_forwarded: 0,
            is_open: false,
            ended: 0,
        }
    }

    fn header(&self, op: Op, flags: u32) -> Header {
        let (buf_alloc, fwd_cnt) = (self.room, self.forwarded);
        Header { op: op.number(), flags, buf_alloc, fwd_cnt, ..Header::default() }
    }

    fn credit(&self) -> usize {
        (self.device_room - (self.sent - self.device_forwarded)) as usize
    }
}

/// Both ends of a connection, and what is to be sent through it.
struct Model {
    connection: Connection,
    guest: Guest,
    to_guest: VecDeque<u8>,
    to_host: VecDeque<u8>,
    host_read: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Step {
    GuestSends(usize),
    GuestReads(usize),
    HostReads(usize),
    Packet(usize),
}

impl Model {
    fn guest_sends(&mut self, most: usize) -> bool {
        let len = most.min(self.guest.credit()).min(self.to_host.len());
        if !self.guest.is_open || len == 0 {
            return false;
        }
        let data: Vec<u8> = self.to_host.drain(..len).collect();
        let header = self.guest.header(Op::Data, 0);
        self.guest.sent += u32::try_from(len).unwrap();
        self.connection.receive(&header, &data, GREETING).unwrap();
        true
    }

    fn guest_reads(&mut self, most: usize) -> bool {
        let len = most.min(self.guest.held.len());
        self.guest.read.extend(self.guest.held.drain(..len));
        self.guest.forwarded += u32::try_from(len).unwrap();
        if len > 0 {
            let header = self.guest.header(Op::CreditUpdate, 0);
            self.connection.receive(&header, &[], GREETING).unwrap();
        }
        len > 0
    }

    fn host_reads(&mut self, most: usize) -> bool {
        let found = self.connection.to_host();
        let len = most.min(found.len());
        self.host_read.extend(&found[..len]);
        self.connection.forward(len);
        len > 0
    }

    /// The device makes a packet, with at most so many bytes.
    fn packet(&mut self, most: usize) -> bool {
        let waits = !self.to_guest.is_empty();
        let (packet, data) = match self.connection.next(waits) {
            Some(packet) => (packet, Vec::new()),
            None => {
                let len = most.min(self.connection.takes()).min(self.to_guest.len());
                if len == 0 {
                    return false;
                }
                (self.connection.send(len), self.to_guest.drain(..len).collect())
            }
        };
        let guest = &mut self.guest;
        (guest.device_room, guest.device_forwarded) = (packet.buf_alloc, packet.fwd_cnt);
        guest.held.extend(&data);
        assert!(guest.held.len() <= guest.room as usize, "more than the guest has room for");
        assert!(guest.is_open || data.is_empty(), "data before the guest accepts");
        match packet.op {
            Op::Request => {
                guest.is_open = true;
                let header = guest.header(Op::Response, 0);
                self.connection.receive(&header, &[], GREETING).unwrap();
            }
            Op::Response => guest.is_open = true,
            Op::CreditRequest => {
                let header = guest.header(Op::CreditUpdate, 0);
                self.connection.receive(&header, &[], GREETING).unwrap();
            }
            Op::Shutdown => guest.ended = packet.flags,
            _ => {}
        }
        true
    }

    fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::GuestSends(most) => self.guest_sends(most),
            Step::GuestReads(most) => self.guest_reads(most),
            Step::HostReads(most) => self.host_reads(most),
            Step::Packet(most) => self.packet(most),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_usize..90_000).prop_map(Step::GuestSends),
        (1_usize..5000).prop_map(Step::GuestReads),
        (1_usize..90_000).prop_map(Step::HostReads),
        (1_usize..5000).prop_map(Step::Packet),
    ]
}

fn bytes(len: usize, seed: usize) -> VecDeque<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed).to_le_bytes()[0]).collect()
}

proptest! {
    /// In any order of what both sides do, all bytes arrive, and neither sends more than there is
    /// room for; then both ends close.
    #[test]
    fn bytes_arrive_in_order_within_the_credit(
        is_of_guest in any::<bool>(),
        room in 1_u32..9000,
        (to_guest, to_host) in (0_usize..30_000, 0_usize..300_000),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let guest = Guest::new(room);
        let connection = match is_of_guest {
            true => Connection::of_guest(&guest.header(Op::Request, 0)),
            false => Connection::of_host(),
        };
        let (to_guest, to_host) = (bytes(to_guest, 1), bytes(to_host, 2));
        let greeting = if is_of_guest { Vec::new() } else { GREETING.to_vec() };
        let expected_by_host = [greeting, to_host.clone().into()].concat();
        let expected_by_guest: Vec<u8> = to_guest.clone().into();
        let mut model = Model { connection, guest, to_guest, to_host, host_read: Vec::new() };
        for step in &steps {
            model.step(step);
            prop_assert!(model.connection.to_host.len() <= BUFFER + GREETING.len());
        }
        // From here on both do all they can.
        let all = [
            Step::Packet(4000),
            Step::GuestSends(usize::MAX),
            Step::HostReads(usize::MAX),
            Step::GuestReads(usize::MAX),
        ];
        while all.iter().filter(|step| model.step(step)).count() > 0 {}
        prop_assert!(model.host_read == expected_by_host);
        prop_assert!(model.guest.read == expected_by_guest);
        model.connection.end_of_host();
        prop_assert!(model.packet(1));
        prop_assert_eq!(model.guest.ended, NO_SEND);
        prop_assert_eq!(model.connection.end(), None);
        let end = model.guest.header(Op::Shutdown, NOTHING_MORE);
        model.connection.receive(&end, &[], GREETING).unwrap();
        prop_assert!(model.connection.is_sent_out());
        prop_assert_eq!(model.connection.end(), Some(End::Reset));
    }

    /// Whatever a driver sends, the device holds no more than the credit, sends no more than the
    /// room, and nothing after a reset.
    #[test]
    fn any_packets_are_survived(
        is_of_guest in any::<bool>(),
        packets in prop::collection::vec((any::<[u32; 4]>(), 0_u16..9, 0_usize..DATA), 1..60),
        hosts in prop::collection::vec(0_u8..8, 60),
    ) {
        let mut connection = match is_of_guest {
            true => Connection::of_guest(&Header { buf_alloc: 7, ..Header::default() }),
            false => Connection::of_host(),
        };
        for (([flags, small, buf_alloc, fwd_cnt], op, len), host) in packets.iter().zip(hosts) {
            // Often no more than was sent, so that there is credit.
            let fwd_cnt = if small % 2 == 0 { connection.sent } else { *fwd_cnt };
            let header = Header {
                op: *op, flags: *flags, buf_alloc: *buf_alloc, fwd_cnt, ..Header::default()
            };
            let was_gone = connection.is_guest_gone();
            let taken = connection.receive(&header, &vec![7; *len], GREETING);
            prop_assert!(!was_gone || taken.is_err());
            match host {
                0 => connection.end_of_host(),
                1 => connection.drop_for_host(),
                2 => connection.forward(connection.to_host().len()),
                _ => {}
            }
            let takes = connection.takes();
            prop_assert!(takes <= *buf_alloc as usize);
            if connection.next(true).is_none() && takes > 0 {
                connection.send(takes.min(DATA));
            }
            prop_assert!(connection.to_host.len() <= BUFFER + GREETING.len());
            prop_assert!(connection.own <= connection.to_host.len());
            if connection.is_guest_gone() {
                prop_assert!(!connection.has_due(true) && connection.takes() == 0);
            }
        }
    }
}

/// Most bytes of a packet in the tests.
const DATA: usize = 70_000;

fn header(op: Op, flags: u32) -> Header {
    Header { op: op.number(), flags, buf_alloc: 10, ..Header::default() }
}

fn open() -> Connection {
    let mut connection = Connection::of_guest(&header(Op::Request, 0));
    assert_eq!(connection.next(false).unwrap().op, Op::Response);
    connection
}

#[test]
fn what_comes_out_of_order_is_a_violation() {
    let wrong = |mut connection: Connection, op: Op, len| {
        let taken = connection.receive(&header(op, 0), &vec![0; len], GREETING);
        assert_eq!(taken, Err(Violation), "{op:?}");
    };
    wrong(Connection::of_host(), Op::Response, 0);
    wrong(Connection::of_host(), Op::Data, 1);
    wrong(Connection::of_guest(&header(Op::Request, 0)), Op::Data, 1);
    wrong(open(), Op::Request, 0);
    wrong(open(), Op::Response, 0);
    wrong(open(), Op::Data, BUFFER + 1);
    let mut shut = open();
    shut.receive(&header(Op::Shutdown, NO_SEND), &[], GREETING).unwrap();
    wrong(shut, Op::Data, 1);
}

#[test]
fn what_the_guest_sent_before_a_reset_still_arrives() {
    let mut connection = open();
    connection.receive(&header(Op::Data, 0), b"last", GREETING).unwrap();
    connection.receive(&header(Op::Reset, 0), &[], GREETING).unwrap();
    assert_eq!((connection.to_host(), connection.end()), (&b"last"[..], None));
    connection.forward(4);
    assert_eq!(connection.end(), Some(End::Silent));
}

#[test]
fn a_host_that_is_gone_is_the_end() {
    let mut asking = Connection::of_host();
    asking.drop_for_host();
    assert_eq!(asking.end(), Some(End::Silent), "the guest has not heard of it");
    let mut asked = Connection::of_host();
    asked.next(false).unwrap();
    asked.drop_for_host();
    assert_eq!(asked.end(), Some(End::Reset));
    let mut open = open();
    open.receive(&header(Op::Data, 0), b"lost", GREETING).unwrap();
    open.drop_for_host();
    open.end_of_host();
    assert_eq!(open.end(), None, "until the guest has been sent it");
    let packet = open.next(false).unwrap();
    assert_eq!((packet.op, packet.flags, packet.fwd_cnt), (Op::Shutdown, NOTHING_MORE, 4));
    assert_eq!(open.end(), Some(End::Silent));
}

#[test]
fn credit_is_asked_for_once() {
    let mut connection = open();
    assert_eq!(connection.takes(), 10);
    connection.send(10);
    assert_eq!(connection.next(true).unwrap().op, Op::CreditRequest);
    assert_eq!(connection.next(true), None);
    connection.receive(&header(Op::CreditUpdate, 0), &[], GREETING).unwrap();
    assert_eq!(connection.next(true), None, "there is still none");
    let more = Header { fwd_cnt: 4, ..header(Op::CreditUpdate, 0) };
    connection.receive(&more, &[], GREETING).unwrap();
    assert_eq!((connection.takes(), connection.next(true)), (4, None));
}
