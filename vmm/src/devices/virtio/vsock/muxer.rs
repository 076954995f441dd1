//! All connections of a device, over one file of events.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::HOST_CID;
use super::connection::{Connection, End, Outgoing};
use super::deadlines::Deadlines;
use super::greeting::{Greeting, Line};
use super::host::Host;
use super::packet::{DATA_MAX, Header, Op, STREAM};
use super::peer::Peer;

/// Connections at most, with the clients that have not asked for a port yet.
const CONNECTIONS_MAX: usize = 128;
/// Refusals that wait for buffers of the guest's. With more, its packets are not read.
const REFUSALS_MAX: usize = 128;
/// The first of the host's ports for connections that its clients ask for.
const FIRST_PORT: u32 = 1 << 30;
/// [`EpollEvent::data`] of the listening socket: no connection has it, see [`Key::of`].
const LISTENER: u64 = u64::MAX;
/// Of the timer of answers.
const TIMER: u64 = u64::MAX - 1;
/// The guest has so long to answer a connection that a client asks for: it may be emulated.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    host: u32,
    guest: u32,
}

/// Any port: the guest's port of a client that has not asked yet.
const ANY: u32 = u32::MAX;

impl Key {
    /// The ports of a packet of the guest's; `None` if a port is [`ANY`].
    fn of(header: &Header) -> Option<Self> {
        let key = Self { host: header.dst_port, guest: header.src_port };
        (key.host != ANY && key.guest != ANY).then_some(key)
    }

    /// As [`EpollEvent::data`].
    fn data(self) -> u64 {
        u64::from(self.host) << 32 | u64::from(self.guest)
    }

    fn from_data(data: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = data.to_be_bytes();
        Self { host: u32::from_be_bytes([a, b, c, d]), guest: u32::from_be_bytes([e, f, g, h]) }
    }
}

/// The guest's driver has to be notified that all connections are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransportReset {
    No,
    Due,
    /// It was notified, and may not have carried it out: a new connection would go with the others.
    Sent,
}

/// The connections, and the clients that will have some.
pub(super) struct Muxer {
    cid: u64,
    host: Box<dyn Host>,
    epoll: Epoll,
    /// By the host's port.
    greetings: HashMap<u32, Greeting>,
    peers: HashMap<Key, Peer>,
    /// Of those that the guest has not answered, since they were made.
    deadlines: Deadlines<Key>,
    /// Those that may have packets for the guest, each once.
    listed: VecDeque<Key>,
    refusals: VecDeque<Header>,
    reset: TransportReset,
    /// Clients may wait to be accepted.
    clients_wait: bool,
    next_port: u32,
    data: Vec<u8>,
}

impl Muxer {
    /// Makes one without connections, for the guest of this CID.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(cid: u32, host: Box<dyn Host>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let events = EventSet::IN | EventSet::EDGE_TRIGGERED;
        let listener = EpollEvent::new(events, LISTENER);
        epoll.ctl(ControlOperation::Add, host.fd(), listener)?;
        let deadlines = Deadlines::new(ANSWER_WITHIN)?;
        epoll.ctl(ControlOperation::Add, deadlines.fd(), EpollEvent::new(events, TIMER))?;
        Ok(Self {
            cid: cid.into(),
            host,
            epoll,
            greetings: HashMap::new(),
            peers: HashMap::new(),
            deadlines,
            listed: VecDeque::new(),
            refusals: VecDeque::new(),
            reset: TransportReset::No,
            clients_wait: false,
            next_port: FIRST_PORT,
            data: vec![0; DATA_MAX],
        })
    }

    /// Its file, which is readable while there are events.
    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Connections, and clients that have not asked for one yet.
    pub(super) fn count(&self) -> usize {
        self.peers.len() + self.greetings.len()
    }

    /// Ends all connections: the driver knows of none.
    pub(super) fn clear(&mut self) {
        self.peers.clear();
        self.deadlines.clear();
        self.listed.clear();
        self.refusals.clear();
        self.reset = TransportReset::No;
    }

    /// As [`Self::clear`], for a driver that knows of some.
    pub(super) fn clear_and_notify(&mut self) {
        self.clear();
        self.reset = TransportReset::Due;
    }

    /// Returns true if the driver has to be notified that all connections are gone.
    pub(super) fn is_reset_due(&self) -> bool {
        self.reset == TransportReset::Due
    }

    /// The driver has been notified.
    pub(super) fn reset_sent(&mut self) {
        self.reset = TransportReset::Sent;
    }

    /// The driver has carried it out.
    pub(super) fn reset_done(&mut self) {
        if self.reset == TransportReset::Sent {
            self.reset = TransportReset::No;
        }
    }

    /// Handles events of sockets; more may remain.
    pub(super) fn poll(&mut self) {
        let mut events = [EpollEvent::default(); 32];
        // Without waiting; an error leaves them for the next time.
        let count = self.epoll.wait(0, &mut events).unwrap_or(0);
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.clients_wait = true,
                TIMER => self.end_unanswered(),
                data => self.changed(Key::from_data(data), event.event_set()),
            }
        }
    }

    /// Ends the connections that the guest has not answered in time.
    fn end_unanswered(&mut self) {
        while let Some(key) = self.deadlines.next_expired() {
            let peer = self.peers.get_mut(&key);
            let Some(peer) = peer.filter(|peer| peer.connection.is_unanswered()) else { continue };
            peer.connection.drop_for_host();
            self.settle(key);
        }
    }

    #[cfg(test)]
    pub(super) fn set_answer_within(&mut self, within: Duration) {
        self.deadlines.set_within(within);
    }

    /// As if the time of all were over.
    #[cfg(test)]
    pub(super) fn expire_all(&mut self) {
        self.deadlines.expire_all();
        self.end_unanswered();
    }

    fn changed(&mut self, key: Key, events: EventSet) {
        if key.guest == ANY {
            self.greet(key.host);
        } else if let Some(peer) = self.peers.get_mut(&key) {
            let hung_up = events.intersects(EventSet::HANG_UP | EventSet::ERROR);
            let readable = events.intersects(EventSet::IN | EventSet::READ_HANG_UP) || hung_up;
            peer.changed(readable, events.contains(EventSet::OUT), hung_up);
            self.settle(key);
        }
    }

    /// Accepts clients while there is room. To be called after all else, which may have made room.
    pub(super) fn accept(&mut self) {
        while self.clients_wait && self.reset == TransportReset::No && self.has_room() {
            match self.host.accept() {
                Ok(stream) => self.add_client(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.clients_wait = false;
                }
                Err(error) => {
                    // They are accepted with the next event: descriptors may be few.
                    tracing::debug!(%error, "a client of a vsock device");
                    return;
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        self.count() < CONNECTIONS_MAX
    }

    fn add_client(&mut self, stream: UnixStream) {
        let port = self.free_port();
        if self.watch(ControlOperation::Add, &stream, Key { host: port, guest: ANY }) {
            self.greetings.insert(port, Greeting::new(stream));
        }
    }

    /// A port of the host's that no connection has.
    fn free_port(&mut self) -> u32 {
        loop {
            let port = self.next_port;
            self.next_port = FIRST_PORT | (port.wrapping_add(1) % FIRST_PORT);
            let in_use = self.peers.keys().any(|key| key.host == port);
            if !in_use && !self.greetings.contains_key(&port) {
                return port;
            }
        }
    }

    /// Has the changes of a socket be events, among them how it is now. Returns false if the system
    /// refuses.
    fn watch(&self, operation: ControlOperation, stream: &UnixStream, key: Key) -> bool {
        let events =
            EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
        let event = EpollEvent::new(events, key.data());
        let watched = self.epoll.ctl(operation, stream.as_raw_fd(), event);
        watched.inspect_err(|error| tracing::warn!(%error, "a connection of vsock")).is_ok()
    }

    /// Reads the line of a client.
    fn greet(&mut self, port: u32) {
        let Some(greeting) = self.greetings.get_mut(&port) else { return };
        let line = greeting.read();
        if line == Line::Partial {
            return;
        }
        let Some(Greeting { stream, .. }) = self.greetings.remove(&port) else { return };
        let Line::Port(guest) = line else { return };
        let key = Key { host: port, guest };
        // The guest may have taken these ports itself.
        if !self.peers.contains_key(&key) && self.watch(ControlOperation::Modify, &stream, key) {
            self.peers.insert(key, Peer::new(Connection::of_host(), stream));
            self.deadlines.add(key);
            self.settle(key);
        }
    }

    /// Returns true while packets of the guest's may be read.
    pub(super) fn takes_packets(&self) -> bool {
        self.refusals.len() < REFUSALS_MAX
    }

    /// A packet of the guest's, with its data.
    pub(super) fn receive(&mut self, header: &Header, data: &[u8]) {
        if header.src_cid != self.cid {
            return;
        }
        let is_known = header.dst_cid == HOST_CID && header.kind == STREAM;
        let Some(key) = Key::of(header).filter(|_| is_known) else { return self.refuse(header) };
        match self.peers.get_mut(&key) {
            Some(peer) if !peer.connection.is_guest_gone() => {
                let greeting = format!("OK {}\n", key.host);
                if peer.connection.receive(header, data, greeting.as_bytes()).is_ok() {
                    self.settle(key);
                } else {
                    self.remove(key);
                    self.refuse(header);
                }
            }
            None if header.op == Op::Request.number() => self.connect(key, header),
            _ => self.refuse(header),
        }
    }

    fn remove(&mut self, key: Key) {
        self.peers.remove(&key);
        self.deadlines.remove(key);
        self.listed.retain(|listed| *listed != key);
    }

    /// Connects to the host's side of a connection that the guest asks for.
    fn connect(&mut self, key: Key, request: &Header) {
        // Its driver has no connections of before.
        self.reset_done();
        let stream = if self.has_room() { self.host.connect(key.host).ok() } else { None };
        let watched = stream.filter(|stream| self.watch(ControlOperation::Add, stream, key));
        let Some(stream) = watched else { return self.refuse(request) };
        self.peers.insert(key, Peer::new(Connection::of_guest(request), stream));
        self.settle(key);
    }

    fn refuse(&mut self, header: &Header) {
        if header.op != Op::Reset.number() {
            self.refusals.push_back(header.refusal());
        }
    }

    /// Returns true if there may be packets for the guest.
    pub(super) fn may_have_packets(&self) -> bool {
        !self.refusals.is_empty() || !self.listed.is_empty()
    }

    /// The next packet for the guest, with at most `most` bytes of data; at least 1.
    pub(super) fn packet(&mut self, most: usize) -> Option<(Header, &[u8])> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some((refusal, &[]));
        }
        let most = most.min(self.data.len());
        while let Some(key) = self.listed.pop_front() {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            peer.is_listed = false;
            let packet = peer.packet(&mut self.data[..most]);
            let header = packet.map(|packet| self.header(key, packet));
            // To the end of the list: each has its turn.
            self.settle(key);
            if let Some(header) = header {
                let len = usize::try_from(header.len).expect("at most `most`");
                return Some((header, &self.data[..len]));
            }
        }
        None
    }

    fn header(&self, key: Key, packet: Outgoing) -> Header {
        Header {
            src_cid: HOST_CID,
            dst_cid: self.cid,
            src_port: key.host,
            dst_port: key.guest,
            len: packet.len,
            kind: STREAM,
            op: packet.op.number(),
            flags: packet.flags,
            buf_alloc: packet.buf_alloc,
            fwd_cnt: packet.fwd_cnt,
        }
    }

    /// Does what has become possible for a connection; forgets it at its end.
    fn settle(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let end = peer.flush();
        if end.is_none() {
            if peer.may_have_packet() && !peer.is_listed {
                peer.is_listed = true;
                self.listed.push_back(key);
            }
            return;
        }
        self.remove(key);
        if end == Some(End::Reset) {
            let (src_cid, dst_cid) = (self.cid, HOST_CID);
            let (src_port, dst_port) = (key.guest, key.host);
            let sent =
                Header { src_cid, dst_cid, src_port, dst_port, kind: STREAM, ..Header::default() };
            self.refusals.push_back(sent.refusal());
        }
    }
}
