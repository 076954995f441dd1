use std::io::{self, Read as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;
use crate::devices::virtio::bench::{Buffer, TestQueues};
use crate::devices::virtio::vsock::host::HostSocket;
use crate::devices::virtio::vsock::packet::{NO_RECEIVE, NO_SEND, STREAM};

const RAM: u64 = 48 << 20;
/// Descriptors of each queue.
const SIZE: u16 = 256;
/// The descriptors' buffers, by queue, and the bytes of each.
const BUFFERS: [u64; 3] = [0x10_0000, 0x100_0000, 0x4_0000];
const BUFFER_LEN: [u64; 3] = [0x1000, 0x1_2000, 0x10];
const CID: u64 = 3;
/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// A port of the guest's.
const GUEST: u32 = 1024;

/// A device with its sockets in a folder, whose driver is the test.
struct Bench {
    rings: TestQueues,
    packets: Packets,
    folder: tempfile::TempDir,
    /// Used buffers to receive that were looked at.
    seen: usize,
}

impl Bench {
    fn new() -> Self {
        let rings = TestQueues::new(RAM, 3, SIZE);
        let folder = tempfile::tempdir().unwrap();
        let host = HostSocket::open(&folder.path().join("v")).unwrap();
        let muxer = Muxer::new(u32::try_from(CID).unwrap(), Box::new(host)).unwrap();
        let packets = Packets::new(Arc::new(Mutex::new(muxer)));
        Self { rings, packets, folder, seen: 0 }
    }

    fn socket(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("v{suffix}"))
    }

    fn try_serve(&mut self, event: Event) -> Served {
        let TestQueues { ram, queues, .. } = &mut self.rings;
        self.packets.serve(event, queues, ram.as_memory())
    }

    fn serve(&mut self, event: Event) {
        self.try_serve(event).unwrap();
    }

    /// Reads on what the device kicks itself for.
    fn serve_own_kicks(&mut self) {
        while self.rings.is_kicked(TRANSMIT) {
            self.serve(Event::Kick(TRANSMIT));
        }
    }

    fn muxer<T>(&self, ask: impl FnOnce(&mut Muxer) -> T) -> T {
        ask(&mut self.packets.muxer.lock().unwrap())
    }

    /// Gives a chain of buffers, as (address, length).
    fn give(&mut self, queue: usize, parts: &[(u64, u32)]) {
        let buffer = |(at, len): &(u64, u32)| (*at, *len, queue != TRANSMIT);
        let parts: Vec<Buffer> = parts.iter().map(buffer).collect();
        self.rings.give(queue, &parts);
    }

    /// Chains of a queue that were given back.
    fn used(&self, queue: usize) -> usize {
        self.rings.used(queue).len()
    }

    /// The first descriptor of one of these, and the bytes written to it.
    fn used_chain(&self, queue: usize, place: usize) -> (u32, u32) {
        self.rings.used(queue)[place]
    }

    /// Where the next descriptor's buffer is.
    fn buffer(&self, queue: usize) -> u64 {
        BUFFERS[queue] + u64::from(self.rings.given(queue)) * BUFFER_LEN[queue]
    }

    /// Gives buffers to receive.
    fn make_room(&mut self, count: usize) {
        for _ in 0..count {
            self.give(RECEIVE, &[(self.buffer(RECEIVE), 0x1000)]);
        }
        self.serve(Event::Kick(RECEIVE));
    }

    /// Gives a packet to the device, which does not know yet.
    fn put(&mut self, header: &Header, data: &[u8]) {
        let at = self.buffer(TRANSMIT);
        let bytes = [&header.encode()[..], data].concat();
        self.rings.write(at, &bytes);
        self.give(TRANSMIT, &[(at, u32::try_from(bytes.len()).unwrap())]);
    }

    fn send(&mut self, header: &Header, data: &[u8]) {
        self.put(header, data);
        self.serve(Event::Kick(TRANSMIT));
    }

    /// The packets received since the last call.
    fn received(&mut self) -> Vec<(Header, Vec<u8>)> {
        let used = self.used(RECEIVE);
        let found = (self.seen..used).filter_map(|place| {
            let (first, len) = self.used_chain(RECEIVE, place);
            let at = BUFFERS[RECEIVE] + u64::from(first) * BUFFER_LEN[RECEIVE];
            let bytes = self.rings.bytes(at, len as usize);
            let (header, data) = bytes.split_first_chunk()?;
            Some((Header::decode(header), data.to_vec()))
        });
        let found = found.collect();
        self.seen = used;
        found
    }

    /// The operations and flags of these.
    fn operations(&mut self) -> Vec<(Op, u32)> {
        let found = self.received();
        found.iter().map(|(header, _)| (Op::of(header.op).unwrap(), header.flags)).collect()
    }

    /// Has the guest connect to a process of the host's that listens at a port.
    fn connect(&mut self, port: u32) -> UnixStream {
        let listener = UnixListener::bind(self.socket(&format!("_{port}"))).unwrap();
        self.make_room(1);
        self.send(&packet(port, Op::Request), &[]);
        assert_eq!(self.operations(), [(Op::Response, 0)]);
        listener.accept().unwrap().0
    }
}

/// A packet of the guest's, with credit.
fn packet(host: u32, op: Op) -> Header {
    Header {
        src_cid: CID,
        dst_cid: 2,
        src_port: GUEST,
        dst_port: host,
        kind: STREAM,
        op: op.number(),
        buf_alloc: 1 << 16,
        ..Header::default()
    }
}

fn data(host: u32, bytes: &[u8]) -> Header {
    Header { len: u32::try_from(bytes.len()).unwrap(), ..packet(host, Op::Data) }
}

fn read(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_guest_connects_to_a_process_and_both_close() {
    let mut bench = Bench::new();
    let mut host = bench.connect(7);
    bench.send(&data(7, b"to the host"), b"to the host");
    assert_eq!(read(&mut host, 11), b"to the host");
    io::Write::write_all(&mut host, b"to the guest").unwrap();
    bench.make_room(3);
    bench.serve(Event::Source);
    let found = bench.received();
    let (header, bytes) = &found[0];
    assert_eq!((found.len(), &bytes[..]), (1, &b"to the guest"[..]));
    assert_eq!((header.src_cid, header.dst_cid, header.src_port), (2, CID, 7));
    assert_eq!((header.dst_port, header.len, header.fwd_cnt), (GUEST, 12, 11));
    host.shutdown(std::net::Shutdown::Write).unwrap();
    bench.serve(Event::Source);
    assert_eq!(bench.operations(), [(Op::Shutdown, NO_SEND)]);
    bench.send(&data(7, b"last"), b"last");
    let end = Header { flags: NO_SEND | NO_RECEIVE, ..packet(7, Op::Shutdown) };
    bench.send(&end, &[]);
    assert_eq!(bench.operations(), [(Op::Reset, 0)]);
    let mut rest = Vec::new();
    host.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"last");
    assert_eq!(bench.muxer(|muxer| muxer.count()), 0);
    assert!(bench.rings.interrupts() > 0);
}

#[test]
fn a_client_of_the_host_connects_to_the_guest() {
    let mut bench = Bench::new();
    bench.make_room(4);
    let mut client = UnixStream::connect(bench.socket("")).unwrap();
    io::Write::write_all(&mut client, b"CONNECT 1024\nearly").unwrap();
    // The client, then its line.
    bench.serve(Event::Source);
    bench.serve(Event::Source);
    let (request, _) = bench.received()[0];
    assert_eq!((request.op, request.dst_port), (Op::Request.number(), GUEST));
    let port = request.src_port;
    bench.send(&packet(port, Op::Response), &[]);
    let found = bench.received();
    assert_eq!(found[0].1, b"early");
    let answer = format!("OK {port}\n");
    assert_eq!(read(&mut client, answer.len()), answer.as_bytes());
    bench.send(&data(port, b"hello"), b"hello");
    assert_eq!(read(&mut client, 5), b"hello");
    drop(client);
    bench.serve(Event::Source);
    // That it receives no more is known before its last byte is read.
    let shut = [(Op::Shutdown, NO_RECEIVE), (Op::Shutdown, NO_SEND | NO_RECEIVE)];
    assert_eq!(bench.operations(), shut);
    assert_eq!(bench.muxer(|muxer| muxer.count()), 0);
}

/// A client of the host's, with its line.
fn ask(bench: &mut Bench, line: &[u8]) -> UnixStream {
    let mut client = UnixStream::connect(bench.socket("")).unwrap();
    io::Write::write_all(&mut client, line).unwrap();
    bench.serve(Event::Source);
    bench.serve(Event::Source);
    client
}

#[test]
fn a_client_that_is_refused_or_asks_for_nothing_is_closed() {
    let mut bench = Bench::new();
    bench.make_room(4);
    let mut client = ask(&mut bench, b"GET / HTTP/1.1\r\n\r\n");
    assert!(client.read_to_end(&mut Vec::new()).is_err() || bench.received().is_empty());
    let mut client = ask(&mut bench, b"CONNECT 1024\n");
    let (request, _) = bench.received()[0];
    bench.send(&packet(request.src_port, Op::Reset), &[]);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    drop(ask(&mut bench, b"CONNECT 1024"));
    bench.serve(Event::Source);
    assert_eq!((bench.operations(), bench.muxer(|muxer| muxer.count())), (vec![], 0));
}

#[test]
fn a_guest_that_never_answers_keeps_no_slot() {
    let mut bench = Bench::new();
    bench.muxer(|muxer| muxer.set_answer_within(Duration::from_millis(1)));
    bench.make_room(10);
    let count = |bench: &Bench| bench.muxer(|muxer| muxer.count());
    let until_gone = |bench: &mut Bench, left: usize| {
        let deadline = Instant::now() + PATIENCE;
        while count(bench) > left {
            assert!(Instant::now() < deadline, "they stay");
            std::thread::sleep(Duration::from_millis(1));
            bench.serve(Event::Source);
        }
    };
    let mut clients = [(); 2].map(|()| ask(&mut bench, b"CONNECT 1024\n"));
    until_gone(&mut bench, 0);
    let mut operations = bench.operations();
    operations.sort_by_key(|(op, _)| op.number());
    assert_eq!(operations.len(), 4);
    assert!(operations[..2].iter().all(|(op, _)| *op == Op::Request));
    assert!(operations[2..].iter().all(|(op, _)| *op == Op::Reset), "the guest hears of it");
    for client in &mut clients {
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
    // One that was answered stays, whatever the timer of another does.
    bench.muxer(|muxer| muxer.set_answer_within(PATIENCE));
    let mut answered = ask(&mut bench, b"CONNECT 1024\n");
    answered.set_read_timeout(Some(PATIENCE)).unwrap();
    let (request, _) = bench.received()[0];
    let port = request.src_port;
    bench.send(&packet(port, Op::Response), &[]);
    bench.muxer(|muxer| muxer.set_answer_within(Duration::from_millis(1)));
    bench.muxer(Muxer::expire_all);
    assert_eq!(count(&bench), 1);
    let _another = ask(&mut bench, b"CONNECT 1024\n");
    until_gone(&mut bench, 1);
    bench.send(&data(port, b"hello"), b"hello");
    let line = format!("OK {port}\nhello");
    assert_eq!(read(&mut answered, line.len()), line.as_bytes());
}

#[test]
fn what_is_for_no_connection_is_answered_with_a_reset() {
    let mut bench = Bench::new();
    bench.make_room(20);
    let good = packet(7, Op::Request);
    for header in [
        good,
        packet(7, Op::Data),
        packet(7, Op::Shutdown),
        Header { op: 99, ..good },
        Header { dst_cid: 9, ..good },
        Header { kind: 2, ..good },
        Header { src_port: u32::MAX, ..good },
    ] {
        bench.send(&header, &[]);
        let found = bench.received();
        assert_eq!(found.len(), 1, "{header:?}");
        assert_eq!(found[0].0, header.refusal());
    }
    for header in [packet(7, Op::Reset), Header { src_cid: 4, ..good }] {
        bench.send(&header, &[]);
        assert_eq!(bench.received(), []);
    }
}

#[test]
fn what_is_no_packet_is_dropped_and_given_back() {
    let mut bench = Bench::new();
    let mut host = bench.connect(7);
    let at = bench.buffer(TRANSMIT);
    let good = data(7, b"good");
    let huge = Header { len: u32::MAX, ..good };
    bench.rings.write(at, &huge.encode());
    let too_long = u32::try_from(HEADER_LEN + DATA_MAX + 1).unwrap();
    for parts in
        [&[(at, 43)][..], &[(at, 44)], &[(at, too_long)], &[(RAM - 20, 44)], &[(u64::MAX - 5, 44)]]
    {
        bench.give(TRANSMIT, parts);
    }
    bench.rings.write(at + 0x100, &good.encode());
    bench.rings.write(at + 0x200, b"good");
    // In several parts, as Linux sends with MSG_ZEROCOPY.
    bench.give(TRANSMIT, &[(at + 0x100, 20), (at + 0x114, 24), (at + 0x200, 1), (at + 0x201, 3)]);
    bench.serve(Event::Kick(TRANSMIT));
    assert_eq!(read(&mut host, 4), b"good");
    assert_eq!(bench.used(TRANSMIT), 7, "all are given back");
}

#[test]
fn a_ring_that_says_more_than_it_holds_is_given_up() {
    for (queue, event) in [(TRANSMIT, Event::Kick(TRANSMIT)), (RECEIVE, Event::Kick(RECEIVE))] {
        let mut bench = Bench::new();
        bench.send(&packet(7, Op::Data), &[]);
        bench.rings.jump(queue, 2 * SIZE);
        let served = bench.try_serve(event);
        assert_eq!(served.err().map(|(number, _)| number), Some(queue));
    }
}

#[test]
fn more_than_the_credit_resets_the_connection() {
    let mut bench = Bench::new();
    let mut host = bench.connect(7);
    let bytes = vec![5; DATA_MAX];
    // The socket takes some of them, and the device's buffer 64 KiB.
    let mut sent = 0;
    bench.make_room(10);
    while bench.operations().iter().all(|(op, _)| *op != Op::Reset) {
        bench.send(&data(7, &bytes), &bytes);
        sent += 1;
        assert!(sent < 50, "it holds all of them");
    }
    let mut found = Vec::new();
    host.read_to_end(&mut found).unwrap();
    assert!(found.len() < sent * DATA_MAX && found.iter().all(|byte| *byte == 5));
    assert_eq!(bench.muxer(|muxer| muxer.count()), 0);
}

#[test]
fn a_guest_that_takes_no_answers_is_not_read_on() {
    let mut bench = Bench::new();
    for _ in 0..200 {
        bench.put(&packet(7, Op::Data), &[]);
    }
    bench.serve(Event::Kick(TRANSMIT));
    bench.serve_own_kicks();
    bench.serve(Event::Kick(TRANSMIT));
    assert_eq!(bench.used(TRANSMIT), 128);
    assert!(!bench.rings.is_kicked(TRANSMIT), "it waits for buffers");
    bench.make_room(100);
    assert_eq!(bench.operations().len(), 100);
    assert!(bench.rings.is_kicked(TRANSMIT), "it goes on by itself");
    bench.serve(Event::Kick(TRANSMIT));
    bench.serve_own_kicks();
    bench.make_room(120);
    assert_eq!((bench.used(TRANSMIT), bench.operations().len()), (200, 100));
}

#[test]
fn connections_have_a_bound_and_so_has_what_waits_for_buffers() {
    let mut bench = Bench::new();
    let _listener = UnixListener::bind(bench.socket("_7")).unwrap();
    for port in 0..100 {
        let request = Header { src_port: port, ..packet(7, Op::Request) };
        bench.put(&request, &[]);
        bench.put(&Header { op: Op::Reset.number(), ..request }, &[]);
    }
    bench.serve(Event::Kick(TRANSMIT));
    bench.serve_own_kicks();
    assert!(!bench.muxer(|muxer| muxer.may_have_packets()), "they are gone");
    let mut bench = Bench::new();
    let _listener = UnixListener::bind(bench.socket("_7")).unwrap();
    for port in 0..130 {
        bench.put(&Header { src_port: port, ..packet(7, Op::Request) }, &[]);
    }
    bench.serve(Event::Kick(TRANSMIT));
    bench.serve_own_kicks();
    assert_eq!(bench.muxer(|muxer| muxer.count()), 128);
    bench.make_room(200);
    let refused = bench.operations().iter().filter(|(op, _)| *op == Op::Reset).count();
    assert_eq!(refused, 2);
    // A client of the host's waits until there is room.
    let mut client = UnixStream::connect(bench.socket("")).unwrap();
    io::Write::write_all(&mut client, b"CONNECT 1024\n").unwrap();
    // Each connection has an event of its own, and some are handled at a time.
    (0..8).for_each(|_| bench.serve(Event::Source));
    assert_eq!(bench.muxer(|muxer| muxer.count()), 128);
    bench.send(&Header { src_port: 5, ..packet(7, Op::Reset) }, &[]);
    bench.serve(Event::Source);
    assert_eq!(bench.operations(), [(Op::Request, 0)]);
}

#[test]
fn buffers_that_hold_no_packet_are_given_back() {
    let mut bench = Bench::new();
    bench.give(RECEIVE, &[(bench.buffer(RECEIVE), 44)]);
    bench.give(RECEIVE, &[(RAM - 8, 4096)]);
    bench.give(RECEIVE, &[(bench.buffer(RECEIVE), 20), (BUFFERS[RECEIVE] + 0x9000, 30)]);
    bench.send(&packet(7, Op::Data), &[]);
    assert_eq!(bench.used(RECEIVE), 3);
    let len = |place| bench.used_chain(RECEIVE, place).1;
    assert_eq!([len(0), len(1), len(2)], [0, 0, 44], "the packet is in the last one");
}

#[test]
fn the_driver_of_a_snapshot_is_notified_that_all_connections_are_gone() {
    let mut bench = Bench::new();
    let mut host = bench.connect(7);
    bench.muxer(Muxer::clear_and_notify);
    assert_eq!(host.read(&mut [0; 1]).unwrap(), 0);
    let mut client = UnixStream::connect(bench.socket("")).unwrap();
    io::Write::write_all(&mut client, b"CONNECT 1024\n").unwrap();
    bench.make_room(4);
    bench.serve(Event::Source);
    // One that does not hold an event, and one that does.
    bench.give(EVENT, &[(BUFFERS[EVENT], 3)]);
    bench.give(EVENT, &[(BUFFERS[EVENT] + 0x10, 4)]);
    bench.rings.write(BUFFERS[EVENT], &[0xff; 0x20]);
    bench.serve(Event::Kick(EVENT));
    let found = bench.rings.bytes(BUFFERS[EVENT], 0x20);
    let expected: [u8; 0x20] =
        std::array::from_fn(|at| if (16..20).contains(&at) { 0 } else { 0xff });
    assert_eq!(found, expected);
    bench.serve(Event::Source);
    assert_eq!(bench.received(), [], "a client waits: its connection would go with the others");
    bench.give(EVENT, &[(BUFFERS[EVENT], 4)]);
    bench.serve(Event::Kick(EVENT));
    bench.serve(Event::Source);
    assert_eq!(bench.operations(), [(Op::Request, 0)]);
    bench.send(&data(7, b"old"), b"old");
    assert_eq!(bench.operations(), [(Op::Reset, 0)]);
}
