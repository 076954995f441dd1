//! The virtio console: bytes both ways, and the size of the terminal.

use std::path::Path;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, TestKernel, cases, http};
use exoprobe_vmm::devices::InputFull;
use exoprobe_vmm::{StopReason, TerminalSize, VirtioConsole, VmConfig};
use serde_json::json;

use crate::support::devices::{Sides, boot};
use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    bytes_come_back_and_the_guest_knows_the_size(vcpus) needs [Kvm, QuickKernel],
    a_restored_guest_goes_on_with_its_console,
    a_panic_that_only_the_virtio_console_shows_stops_the_guest needs [Kvm, QuickKernel],
    the_service_has_a_virtio_console_where_it_is_asked_for needs [Kvm, Repeat],
];

const JSON: &str = "content-type: application/json";

pub(super) fn console(guest: &TestGuest) -> &VirtioConsole {
    guest.vm.virtio_console().unwrap()
}

fn size(columns: u16, rows: u16) -> TerminalSize {
    TerminalSize { columns, rows }
}

/// Waits until the guest has printed these bytes from an offset on, and no others.
fn wait_for_output(guest: &TestGuest, from: u64, wanted: &[u8]) {
    guest.wait_until("output", |guest| {
        let found = console(guest).log().read(from).bytes;
        assert!(wanted.starts_with(&found), "{}", String::from_utf8_lossy(&found));
        found == wanted
    });
}

/// Sends bytes to a program of the guest that sends them back.
pub(super) fn check_echo(guest: &TestGuest, text: &[u8]) {
    let from = console(guest).log().end();
    let command = format!("echo /dev/hvc0 {}", text.len());
    let answer = guest.send(&command);
    wait_for_output(guest, from, b".");
    console(guest).send(text).unwrap();
    wait_for_output(guest, from, &[b".", text].concat());
    assert_eq!(guest.answer(answer, &command), text.len() as u64);
}

fn bytes_come_back_and_the_guest_knows_the_size(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let sides = Sides::new(dir.path(), vcpus);
    let guest = TestGuest::of_kernel(sides.machine(vcpus), None);
    console(&guest).set_size(size(120, 40));
    guest.power_on();
    assert_eq!(guest.work("winsize /dev/hvc0 120"), 40);
    guest.probe("p:notified config_intr");
    console(&guest).set_size(size(120, 40));
    console(&guest).set_size(size(100, 30));
    assert_eq!(guest.work("winsize /dev/hvc0 100"), 30);
    console(&guest).set_size(size(100, 30));
    check_echo(&guest, b"\x03ls\r\n\x1d\0\xff");
    // More than all of the driver's buffers, and than the pages that these are.
    check_echo(&guest, &[b'x'; 9000]);
    assert_eq!(guest.hits("notified"), 1, "of the one change");
    guest.engine.unregister(exoprobe_probes::Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_restored_guest_goes_on_with_its_console() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot");
    let sides = Sides::new(dir.path(), 1);
    let first = sides.guest(1);
    console(&first).set_size(size(90, 20));
    assert_eq!(first.work("winsize /dev/hvc0 90"), 20);
    let answer = first.send("echo /dev/hvc0 6");
    wait_for_output(&first, 0, b".");
    console(&first).send(b"abc").unwrap();
    wait_for_output(&first, 0, b".abc");
    first.vm.pause().unwrap();
    console(&first).send(b"d").unwrap();
    first.vm.snapshot(&snapshot).unwrap();
    // It goes on as well.
    first.vm.resume().unwrap();
    console(&first).send(b"ef").unwrap();
    wait_for_output(&first, 0, b".abcdef");
    assert_eq!(first.answer(answer, "echo"), 6);
    drop(first);

    let twin = TestGuest::of_kernel(sides.restore(&snapshot), None);
    assert_eq!(console(&twin).size(), size(90, 20));
    twin.power_on();
    wait_for_output(&twin, 0, b"d");
    console(&twin).send(b"gh").unwrap();
    wait_for_output(&twin, 0, b"dgh");
    assert_eq!(twin.answer(0, "echo"), 6);
    console(&twin).set_size(size(91, 21));
    assert_eq!(twin.work("winsize /dev/hvc0 91"), 21);
    twin.assert_unharmed();
}

fn a_panic_that_only_the_virtio_console_shows_stops_the_guest() {
    let config = TestKernel::Linux6_12.config(1);
    let cmdline = config.cmdline.replace("console=ttyS0", "console=hvc0 panic=0");
    let guest = boot(&VmConfig { cmdline, virtio_console: true, ..config });
    let text = || String::from_utf8_lossy(&console(&guest).log().read(0).bytes).into_owned();
    assert!(text().contains("exoprobe guest ready"), "{}", text());
    let _ = guest.send("panic");
    let stop = guest.vm.wait_stopped(PATIENCE).unwrap_or_else(|| panic!("{}", text()));
    let StopReason::Panic { message } = stop.reason else { panic!("{:?}", stop.reason) };
    assert!(message.starts_with("Attempted to kill init!"), "{message}");
    assert_eq!(guest.console(), "", "nothing was on the serial port");
    guest.reboot();
    check_echo(&guest, b"on");
}

fn put_size(socket: &Path, body: &str) -> (u16, String) {
    let answer = http::ask(socket, "PUT", "/v1/vm/console/size", &[JSON], body.as_bytes());
    (answer.status, answer.body)
}

fn the_service_has_a_virtio_console_where_it_is_asked_for() {
    let files = Service::boot_files();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let service = Service::start(&[&files[..], &["--virtio-console"]].concat());
    let ask = |method, path, body: &[u8]| http::ask(service.socket(), method, path, &[], body);
    let status = || ask("GET", "/v1/vm", &[]).json()["virtio_console"].clone();
    assert_eq!(status(), json!({"columns": 0, "rows": 0}));
    assert_eq!(put_size(service.socket(), r#"{"columns": 132, "rows": 43}"#).0, 204);
    assert_eq!(status(), json!({"columns": 132, "rows": 43}));
    for (body, reason) in [
        (r#"{"columns": 0, "rows": 43}"#, "expected a nonzero u16"),
        (r#"{"columns": 80, "rows": 65536}"#, "expected a nonzero u16"),
        (r#"{"columns": 80}"#, "missing field `rows`"),
        (r#"{"columns": 80, "rows": 24, "x": 1}"#, "unknown field `x`"),
    ] {
        let (status, text) = put_size(service.socket(), body);
        assert!(status == 400 && text.contains(reason), "{body}: {status} {text}");
    }
    assert_eq!(status(), json!({"columns": 132, "rows": 43}));
    let output = ask("GET", "/v1/vm/console", &[]);
    assert_eq!((output.status, output.body), (200, String::new()));
    // The tiny guest's Linux 6.1 has no driver for it.
    let send = |len| ask("POST", "/v1/vm/console", &vec![b'x'; len]).status;
    assert_eq!((send(65_537), send(65_536), send(1)), (413, 204, 503));
    let full = InputFull { waiting: 65_536 }.to_string();
    assert_eq!(ask("POST", "/v1/vm/console", b"x").json()["detail"], full);
    assert_eq!(service.ok(&["vm", "console", "--hvc"]), "");
    let file = ask("GET", "/v1/vm/config", &[]).json();
    assert_eq!(file["virtio_console"], true);
    check_where_there_is_none();
    let both = refused(&["--restore", "/nonexistent", "--virtio-console"]);
    assert!(both.contains("cannot be used with"), "{both}");
}

fn check_where_there_is_none() {
    let service = Service::restored(1);
    let none = "the guest has no virtio console: `exoprobe run --virtio-console` gives it one";
    let asked = http::ask(service.socket(), "GET", "/v1/vm/console", &[], &[]);
    assert_eq!((asked.status, &asked.json()["detail"]), (404, &json!(none)));
    let (status, text) = put_size(service.socket(), r#"{"columns": 80, "rows": 24}"#);
    assert!(status == 404 && text.contains(none), "{status} {text}");
    let output = service.client(&["vm", "console", "--hvc"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(none), "{output:?}");
}
