//! Sockets between guest and host: bytes come back as they were sent, in both directions.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, host, http};
use exoprobe_vmm::{HostSides, Vm};

use crate::support::devices::{Sides, start, vsock};
use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    bytes_come_back_in_both_directions(vcpus) needs [Kvm, QuickKernel],
    a_restored_guest_has_a_device_that_works_and_no_connections needs [Kvm, QuickKernel],
    a_vsock_device_that_cannot_be_made_is_refused_by_name needs [Kvm, Repeat],
];

/// The port of the host's with a process that sends everything back, and one of the guest's.
const HOST: u32 = 7;
pub(super) const GUEST: u32 = 5;
/// Blocks of 4 KiB.
const BLOCKS: u64 = 20;

fn port_socket(socket: &Path, port: u32) -> PathBuf {
    PathBuf::from(format!("{}_{port}", socket.display()))
}

/// Listens for the guest's connections to [`HOST`], and sends everything back. It ends with the
/// test.
pub(super) fn echo_server(socket: &Path) {
    let listener = UnixListener::bind(port_socket(socket, HOST)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                // The guest may close first.
                drop(std::io::copy(&mut stream, &mut back));
            });
        }
    });
}

/// Asks for a port of the guest's. Returns the connection, or `None` if the guest refuses.
fn ask(socket: &Path, port: u32) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    // It has sent no more than its answer.
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("OK "), "{answer}");
    (!answer.is_empty()).then_some(stream)
}

/// As [`ask`], until the guest listens.
pub(super) fn connect(socket: &Path, port: u32) -> UnixStream {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(stream) = ask(socket, port) {
            return stream;
        }
        assert!(Instant::now() < deadline, "the guest does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends bytes to the guest's echo, more than all buffers on the way hold, and expects them back.
pub(super) fn echo(guest: &TestGuest, socket: &Path) {
    const LEN: usize = 600_000;
    let command = format!("vsock-echo {GUEST}");
    let from = guest.send(&command);
    let mut stream = connect(socket, GUEST);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 + at / 251).to_le_bytes()[0]).collect();
    let (sent, mut writer) = (bytes.clone(), stream.try_clone().unwrap());
    let writer = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    assert!(back == bytes, "{} bytes came back", back.len());
    assert_eq!(guest.answer(from, &command), LEN as u64);
}

pub(super) fn send(guest: &TestGuest) {
    assert_eq!(guest.work(&format!("vsock-send {HOST} {BLOCKS}")), BLOCKS);
}

fn bytes_come_back_in_both_directions(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let sides = Sides::new(dir.path(), vcpus);
    let socket = sides.socket.clone();
    echo_server(&socket);
    let guest = sides.guest(vcpus);
    send(&guest);
    assert_eq!(guest.work(&format!("par 4 vsock-send {HOST} 5")), 20);
    echo(&guest, &socket);
    let nowhere = guest.send("vsock-send 9 1");
    let refused = guest.answer_line(nowhere, "vsock-send 9 1");
    assert_eq!(refused, "error vsock-send: connect: errno 104 (0 done)", "ECONNRESET");
    assert!(ask(&socket, 9).is_none(), "no program of the guest listens there");
    let all_closed = |guest: &TestGuest| guest.vm.vsock_connections() == Some(0);
    guest.wait_until("its connections are closed", all_closed);
    guest.assert_unharmed();
}

fn a_restored_guest_has_a_device_that_works_and_no_connections() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (first, second, snapshot) = (at("first"), at("second"), at("snapshot"));
    let sides = Sides { socket: first.clone(), ..Sides::new(dir.path(), 1) };
    let guest = sides.guest(1);
    let command = format!("vsock-echo {GUEST}");
    let _echo = guest.send(&command);
    let mut stream = connect(&first, GUEST);
    let mut ping = || {
        let mut back = [0; 4];
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"ping");
    };
    ping();
    guest.vm.snapshot(&snapshot).unwrap();
    ping();
    drop(guest);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    let restore = |vsock: Option<PathBuf>| {
        Vm::restore(host(), &snapshot, &HostSides { vsock, ..sides.given() })
    };
    let refused = restore(None).map(drop).unwrap_err().to_string();
    assert!(refused.contains("give its socket again with --vsock SOCKET"), "{refused}");
    assert!(refused.contains("first"), "{refused}");
    let plain = TestGuest::snapshot(1);
    let sides = HostSides { vsock: Some(second.clone()), ..HostSides::default() };
    let refused = Vm::restore(host(), &plain, &sides).map(drop).unwrap_err().to_string();
    assert!(refused.contains("without a vsock device: leave --vsock out"), "{refused}");
    echo_server(&second);
    let twin = start(restore(Some(second.clone())).unwrap());
    assert_eq!(twin.vm.config().vsock, Some(vsock(&second)), "the CID is as it was");
    let ended = twin.answer_line(0, &command);
    // ECONNRESET where it waits in the call, ENOTCONN where it comes to it later.
    let expected =
        [104, 107].map(|errno| format!("error vsock-echo: read: errno {errno} (4 done)"));
    assert!(expected.contains(&ended), "{ended}");
    send(&twin);
    echo(&twin, &second);
    twin.assert_unharmed();
}

fn a_vsock_device_that_cannot_be_made_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (socket, other, plain, config) = (at("v"), at("other"), at("plain"), at("m.toml"));
    let _other = UnixListener::bind(&other).unwrap();
    std::fs::write(&plain, "precious").unwrap();
    std::fs::write(&config, "vsock = {socket = \"v\", ports = 3}").unwrap();
    let files = Service::boot_files();
    let with = |options: &[&str]| {
        let options = options.iter().map(|option| (*option).to_owned());
        files.iter().cloned().chain(options).collect::<Vec<_>>()
    };
    let refused = |options: &[&str]| {
        let args = with(options);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let long = format!("/tmp/{}", "a".repeat(92));
    for (options, reason) in [
        (&["--vsock", ""][..], "the socket is missing: give SOCKET, and ,cid=N if you like"),
        (&["--vsock", &format!("{socket},cid=2")], "2 is no CID of a guest: give 3 to 4294967294"),
        (&["--vsock", &format!("{socket},cid=x")], "`x` is no CID"),
        (&["--vsock", "/nonexistent/v"], "vsock socket /nonexistent/v: No such file"),
        (&["--vsock", &other], "in use; each virtual machine needs a socket of its own"),
        (&["--vsock", &plain], "a file is there that is no socket"),
        (&["--vsock", &long], "has 97 bytes and may have 96"),
        (&["--vsock", &socket, "--vsock", &other], "cannot be used multiple times"),
        (&["--vsock", &socket, "--net", &format!("unix:{socket}")], "and for a network interface"),
        (&["--config", &config], "unknown field `ports`"),
    ] {
        let error = refused(options);
        assert!(error.contains(reason), "{options:?}: {error}");
    }
    assert_eq!(std::fs::read(&plain).unwrap(), b"precious");
    let args = with(&["--vsock", &socket]);
    let service = Service::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let status = http::ask(service.socket(), "GET", "/v1/vm", &[], &[]).json();
    let expected = serde_json::json!({"socket": socket, "cid": 3, "connections": 0});
    assert_eq!(status["vsock"], expected);
    let file = http::ask(service.socket(), "GET", "/v1/vm/config", &[], &[]).json();
    assert_eq!(file["vsock"], serde_json::json!({"socket": socket, "cid": 3}));
    let error = refused(&["--vsock", &socket]);
    assert!(error.contains("in use"), "{error}");
    let own = service.socket().to_str().unwrap();
    let error = refused(&["--vsock", own]);
    assert!(error.contains("in use"), "{error}");
}
