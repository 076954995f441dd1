//! The mounted files without a mount: FUSE requests of any kind over a socket in place of the
//! kernel's device, answered from routes in this process. For tests and fuzz targets.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use fuser::{BackgroundSession, Config, Session, SessionACL};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::fs::TraceFs;
use super::remote::Remote;
use super::tree::Tree;
use crate::client::{Client, Target};
use crate::http;

/// Numbers of requests (linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const DESTROY: u32 = 38;
const IOCTL: u32 = 39;
const BATCH_FORGET: u32 = 42;

/// Bytes of a request's header, and of an answer's.
const HEADER: usize = 40;
const ANSWER_HEADER: usize = 16;
/// Largest answer.
const ANSWER_MAX: usize = 1 << 20;
/// Most requests of one input.
const REQUESTS_MAX: usize = 64;
/// The root's number.
const ROOT: u64 = 1;

/// Names that there are, for inputs that name them by number.
const NAMES: [&str; 13] = [
    "events",
    "kprobes",
    "kprobe_events",
    "trace",
    "trace_pipe",
    "enable",
    "filter",
    "trigger",
    "hist",
    "snapshot",
    "e",
    "..",
    "instances",
];

/// The rest of the bytes that requests are made of.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        now
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    /// Bytes after their count.
    fn bytes(&mut self) -> &'a [u8] {
        let count = self.byte();
        self.take(count.into())
    }

    /// A number as programs use them, at the edges of its type, or any.
    fn number(&mut self) -> u64 {
        match self.byte() {
            0xff => u64::MAX,
            0xfe => u64::MAX >> 1,
            0xfd => u64::from(u32::MAX),
            0xfc => self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
            small => u64::from(small) << (small % 3 * 4),
        }
    }
}

/// One mount, which ends with the input.
struct Mount {
    kernel: UnixDatagram,
    session: BackgroundSession,
    unique: u64,
    /// Numbers of files and of openings that answers had.
    nodes: Vec<u64>,
    handles: Vec<u64>,
}

/// Mounts of one service.
pub struct DrivenMount {
    runtime: Runtime,
    dir: TempDir,
}

impl Default for DrivenMount {
    fn default() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let context = runtime.enter();
        // A fuzz target has not Rust's own `main`, which does this: a peer that has gone is an
        // error and no signal.
        drop(signal(SignalKind::pipe()).expect("a signal"));
        drop(context);
        Self { runtime, dir: tempfile::tempdir().expect("a temporary folder") }
    }
}

impl DrivenMount {
    /// Mounts the files of a new service, and has the kernel ask what `bytes` say.
    ///
    /// # Panics
    /// When an answer is none that the kernel takes.
    pub fn drive(&self, bytes: &[u8]) {
        let (app, end) = http::app(http::small_symbols(), None);
        let socket = self.dir.path().join("socket");
        drop(std::fs::remove_file(&socket));
        let _context = self.runtime.enter();
        let listener = UnixListener::bind(&socket).expect("a socket");
        let service = self.runtime.spawn(async { axum::serve(listener, app).await });
        let client = Client::new(Target::Unix(socket), None).expect("a client");
        // From the beginning, so that no read is without an end.
        let closing = watch::Sender::new(true);
        end.send_replace(true);
        let ended = watch::Sender::new(false);
        let tree = Tree::new(Remote::new(client), (0, 0));
        let mut mount = Mount::new(TraceFs::new(tree, closing.subscribe(), ended));
        let mut input = Input(bytes);
        for _ in 0..REQUESTS_MAX {
            if input.0.is_empty() {
                break;
            }
            mount.step(&mut input);
        }
        mount.end();
        service.abort();
    }
}

impl Mount {
    fn new(fs: TraceFs) -> Self {
        let (kernel, device) = UnixDatagram::pair().expect("a pair of sockets");
        // Version 7.31, as of Linux 5.4, with all that it can.
        let mut init = [0; 16];
        init[..4].copy_from_slice(&[7, 31, 1 << 16, u32::MAX >> 1]);
        let init = init.map(u32::to_le_bytes);
        kernel.send(&message(INIT, 0, ROOT, init.as_flattened())).expect("room");
        let device = OwnedFd::from(device);
        let session = Session::from_fd(fs, device, SessionACL::All, Config::default())
            .and_then(Session::spawn)
            .expect("a session");
        let mount = Self { kernel, session, unique: 0, nodes: vec![ROOT], handles: Vec::new() };
        let begun = mount.receive();
        assert_eq!(begun.0, 0, "it mounts");
        mount
    }

    fn end(mut self) {
        self.ask(DESTROY, ROOT, &[]);
        self.session.join().expect("the end of a session is no error");
    }

    /// Sends a request. Returns its answer: an errno and data.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        self.unique += 1;
        self.kernel.send(&message(opcode, self.unique, node, body)).expect("room");
        if opcode == FORGET || opcode == BATCH_FORGET {
            return (0, Vec::new());
        }
        self.receive()
    }

    fn receive(&self) -> (i32, Vec<u8>) {
        let mut answer = vec![0; ANSWER_MAX];
        let len = self.kernel.recv(&mut answer).expect("an answer");
        answer.truncate(len);
        let word = |at: usize| <[u8; 4]>::try_from(&answer[at..at + 4]).expect("4 bytes");
        assert_eq!(u32::from_le_bytes(word(0)) as usize, len, "its length");
        let unique = u64::from(u32::from_le_bytes(word(8)));
        assert_eq!(unique, self.unique, "an answer to another request");
        let errno = -i32::from_le_bytes(word(4));
        assert!((0..4096).contains(&errno), "errno {errno}");
        assert!(errno == 0 || len == ANSWER_HEADER, "an error has no data");
        (errno, answer.split_off(ANSWER_HEADER))
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let pick = |known: &[u64], input: &mut Input<'_>| match input.byte() {
            0xff => input.number(),
            at => known.get(usize::from(at) % known.len().max(1)).copied().unwrap_or_default(),
        };
        let node = pick(&self.nodes, input);
        match choice % 16 {
            0..=2 => self.look_up(node, input),
            3 => drop(self.ask(GETATTR, node, &[0; 16])),
            4 => drop(self.ask(FORGET, node, &input.number().to_le_bytes())),
            5 | 6 => self.open(OPEN, node, input),
            7 => self.open(OPENDIR, node, input),
            8 => self.set_attr(node, input),
            9..=11 => {
                let opcode = [READ, READDIR][usize::from(choice % 2)];
                self.read(opcode, node, pick(&self.handles, input), input);
            }
            12 | 13 => self.write(node, pick(&self.handles, input), input),
            14 => {
                let opcode = [FLUSH, RELEASE, RELEASEDIR][usize::from(input.byte() % 3)];
                let handle = pick(&self.handles, input);
                let body = [handle, input.number(), input.number()].map(u64::to_le_bytes);
                drop(self.ask(opcode, node, body.as_flattened()));
            }
            _ => {
                // Those that end the session, or have no answer, are not sent.
                let opcode = u32::from(input.byte());
                if ![INIT, DESTROY, FORGET, BATCH_FORGET].contains(&opcode) {
                    let mut body = input.bytes().to_vec();
                    if opcode == IOCTL {
                        set_ioctl_size(&mut body);
                    }
                    drop(self.ask(opcode, node, &body));
                }
            }
        }
    }

    fn look_up(&mut self, node: u64, input: &mut Input<'_>) {
        let name = match input.byte() {
            known if usize::from(known) < NAMES.len() => NAMES[usize::from(known)].as_bytes(),
            _ => input.bytes(),
        };
        // The kernel ends names by a zero, and has none with a slash.
        let name: Vec<u8> = name.iter().copied().filter(|byte| *byte != 0).collect();
        let (errno, entry) = self.ask(LOOKUP, node, &[&name[..], &[0]].concat());
        if errno == 0 {
            let number = entry[..8].try_into().expect("8 bytes");
            self.nodes.push(u64::from_le_bytes(number));
        }
    }

    fn open(&mut self, opcode: u32, node: u64, input: &mut Input<'_>) {
        let flags = u32::from(input.byte() % 4) | u32::from(input.byte()) << 6;
        let body = [flags, 0].map(u32::to_le_bytes);
        let (errno, opened) = self.ask(opcode, node, body.as_flattened());
        if errno == 0 {
            let number = opened[..8].try_into().expect("8 bytes");
            self.handles.push(u64::from_le_bytes(number));
        }
    }

    fn read(&mut self, opcode: u32, node: u64, handle: u64, input: &mut Input<'_>) {
        let offset = input.number();
        // The kernel asks for no more than fits its buffers.
        let size = input.number() % (1 << 17);
        let flags = u64::from(input.byte()) << 6;
        let body = [handle, offset, size, 0, flags].map(u64::to_le_bytes);
        let (_, data) = self.ask(opcode, node, body.as_flattened());
        assert!(data.len() as u64 <= size, "{} bytes for {size}", data.len());
    }

    fn write(&mut self, node: u64, handle: u64, input: &mut Input<'_>) {
        let (offset, owner, data) = (input.number(), u64::from(input.byte() % 3), input.bytes());
        // With the flag that there is an owner.
        let size = data.len() as u64 | 2 << 32;
        let fields = [handle, offset, size, owner, 0].map(u64::to_le_bytes);
        let (errno, written) = self.ask(WRITE, node, &[fields.as_flattened(), data].concat());
        let size = written.get(..4).map(|size| size.try_into().expect("4 bytes"));
        let size = size.map(u32::from_le_bytes);
        assert!(errno != 0 || size == u32::try_from(data.len()).ok(), "{size:?}");
    }

    /// Sets what a byte says: size, mode, owner, times.
    fn set_attr(&mut self, node: u64, input: &mut Input<'_>) {
        let (valid, size) = (u64::from(input.byte()), input.number());
        let mut body = [[0; 8]; 11];
        body[0] = valid.to_le_bytes();
        body[2] = size.to_le_bytes();
        drop(self.ask(SETATTR, node, body.as_flattened()));
    }
}

/// Sets the bytes of data that an ioctl has (`in_size` of struct fuse_ioctl_in): the kernel sends
/// so many, and fuser 0.18 panics where there are fewer.
fn set_ioctl_size(body: &mut [u8]) {
    const LEN: usize = 32;
    const SIZE_AT: usize = 24;
    let Some(size) = body.len().checked_sub(LEN) else { return };
    let size = u32::try_from(size).expect("short");
    body[SIZE_AT..][..size_of::<u32>()].copy_from_slice(&size.to_le_bytes());
}

/// A request as the kernel writes it.
fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEADER + body.len()).expect("short");
    let own = std::process::id();
    let mut message = Vec::new();
    message.extend([len, opcode].map(u32::to_le_bytes).as_flattened());
    message.extend([unique, node].map(u64::to_le_bytes).as_flattened());
    message.extend([0, 0, own, 0].map(u32::to_le_bytes).as_flattened());
    message.extend(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_requests_are_answered() {
        let driven = DrivenMount::default();
        let look_up = |name: u8| [0, 0, name];
        // `kprobe_events`: looked up, opened for writing, written, closed, read anew.
        let definitions = [
            &look_up(2)[..],
            &[5, 1, 1, 0],
            &[12, 1, 0, 0, 0, 24],
            b"p:e __x64_sys_getpid a=1",
            &[14, 1, 0, 0, 0, 0],
        ];
        driven.drive(&definitions.concat());
        for input in [
            // A pipe is read; a folder at its end and far past it; and what was never opened.
            &[&look_up(4)[..], &[5, 1, 0, 0], &[10, 1, 0, 0, 80, 0]].concat()[..],
            &[7, 0, 0, 0, 9, 0, 0, 0xff, 0xff, 0, 9, 0, 0, 0xfe, 200, 0],
            &[9, 0, 0xff, 5, 0, 0, 0],
            &[8, 0, 8, 7, 8, 0, 1, 0],
            &[15, 0, 200, 3, 1, 2, 3],
            // An ioctl that would have more data than it has.
            &[&[15, 0, 39, 40][..], &[0xff; 40]].concat(),
            &[],
        ] {
            driven.drive(input);
        }
    }
}
