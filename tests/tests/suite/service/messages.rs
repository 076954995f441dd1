//! Messages of the service, and the signals that end it, in each of its phases.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, Service, TestGuest, cases, exoprobe, finish, guest_file};

pub(crate) const CASES: &[Case] = cases![
    a_dead_standard_error_ends_nothing needs [Kvm, Shell],
    sigterm_ends_a_service_that_waits_for_a_lock needs [Kvm, Repeat],
    sigterm_ends_a_service_that_waits_for_its_snapshot needs [Kvm, Shell],
    sigterm_ends_a_dump_and_leaves_no_file needs [Kvm, Repeat],
    sigterm_ends_a_snapshot_and_leaves_no_file needs [Kvm, Repeat],
    a_snapshot_ends_when_its_client_goes needs [Kvm, Repeat],
    a_message_that_repeats_is_limited_and_plain_in_a_file needs [Kvm, Repeat],
    an_answer_is_of_its_own_command needs [Kvm, Repeat],
    a_guest_that_does_not_run_is_named_while_its_answer_is_waited_for needs [Kvm, Repeat],
    progress_ends_when_the_guest_is_ready_or_has_stopped needs [Kvm, QuickKernel],
];

/// More messages of one kind than the log has in a minute.
const FLOOD: usize = 12;

fn snapshot() -> String {
    TestGuest::snapshot(1).to_str().unwrap().to_owned()
}

fn ends_well(mut running: Running) {
    let status = running.wait(PATIENCE);
    assert!(status.success(), "{status}: {running}");
}

/// The program with a standard error that cannot be written: as a pipe whose reader has ended.
fn without_standard_error(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 2>/dev/full"#]);
    command.arg(exoprobe().get_program()).args(args);
    command
}

fn a_dead_standard_error_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").to_str().unwrap().to_owned();
    let (snapshot, files) = (snapshot(), Service::boot_files());
    let run = ["run", "--restore", &snapshot, "--reboot", "--socket", &socket];
    let run = [&run[..], &files.each_ref().map(String::as_str)].concat();
    let mut running = Running::spawn(&mut without_standard_error(&run));
    running.wait_for_socket(Path::new(&socket), PATIENCE);
    let client = |args: &[&str]| {
        let output = finish(exoprobe().args(args).args(["--socket", &socket]), PATIENCE);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Its reset has a message.
    client(&["vm", "send", "reboot"]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status: serde_json::Value =
            serde_json::from_str(&client(&["--json", "vm", "status"])).unwrap();
        if status["boots"] == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A client whose messages cannot be written ends as any other.
    let refused = ["vm", "status", "--socket", "/nonexistent/s"];
    let status = finish(&mut without_standard_error(&refused), PATIENCE).status;
    assert_eq!(status.code(), Some(3), "{status}");
    running.signal(libc::SIGTERM);
    ends_well(running);
    assert!(!Path::new(&socket).exists(), "the socket is removed");
}

fn sigterm_ends_a_service_that_waits_for_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").to_str().unwrap().to_owned();
    let folder = dir.path().join("exoprobe");
    DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let lock = folder.join("start.lock");
    let held = File::create(&lock).unwrap();
    held.lock().unwrap();
    let start = || {
        let mut command = exoprobe();
        command.args(["run", "--restore", &snapshot(), "--socket", &socket]);
        Running::spawn(command.env("XDG_RUNTIME_DIR", dir.path()))
    };
    let running = start();
    let open_files = format!("/proc/{}/fd", running.pid());
    let has_lock = || {
        let files = std::fs::read_dir(&open_files).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|path| path == lock)
    };
    let deadline = Instant::now() + PATIENCE;
    while !has_lock() {
        assert!(Instant::now() < deadline, "it does not wait: {running}");
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(libc::SIGTERM);
    ends_well(running);
    let output = start().finish(PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("start.lock is locked"), "{error}");
}

fn sigterm_ends_a_service_that_waits_for_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").to_str().unwrap().to_owned();
    let fifo = dir.path().join("fifo");
    assert!(finish(Command::new("mkfifo").arg(&fifo), PATIENCE).status.success());
    let mut command = exoprobe();
    command.args(["run", "--restore", fifo.to_str().unwrap(), "--socket", &socket]);
    let running = Running::spawn(&mut command);
    // Opens when the service does. What it reads is no whole snapshot.
    let mut writer = OpenOptions::new().write(true).open(&fifo).unwrap();
    writer.write_all(b"exo").unwrap();
    running.signal(libc::SIGTERM);
    ends_well(running);
}

/// A service whose guest has gigabytes, so that its files take their time to be written; none is
/// touched, for the guest has hardly begun.
fn large(folder: &Path) -> (Running, String) {
    let (socket, kernel) = (folder.join("s"), guest_file("vmlinux"));
    let mut command = exoprobe();
    command.args(["run", "--memory", "4096", "--kernel"]).arg(kernel).arg("--socket").arg(&socket);
    let mut running = Running::spawn(&mut command);
    running.wait_for_socket(&socket, PATIENCE);
    (running, socket.to_str().unwrap().to_owned())
}

/// A service in the middle of a snapshot to a file in `folder`, and the client that asked for it.
fn in_a_snapshot(folder: &Path) -> (Running, String, Running) {
    let (running, socket) = large(folder);
    let mut command = exoprobe();
    command.args(["--socket", &socket, "vm", "snapshot"]).arg(folder.join("snapshot"));
    let client = Running::spawn(&mut command);
    wait_for_snapshot(&socket, |snapshot| {
        let [written, size] = ["written", "size"].map(|name| snapshot[name].as_u64());
        written > Some(0) && size > Some(4096 << 20) && written < size
    });
    (running, socket, client)
}

/// Waits for the status to have such a snapshot; a status that waited for a snapshot would never
/// have one.
fn wait_for_snapshot(socket: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
    wait_for_status(socket, |status| wanted(&status["snapshot"]));
}

fn wait_for_status(socket: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output =
            finish(exoprobe().args(["--json", "vm", "status", "--socket", socket]), PATIENCE);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        if wanted(&status) {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
    }
}

fn is_empty(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| name != "s").count() == 0
}

fn sigterm_ends_a_snapshot_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (running, _, client) = in_a_snapshot(dir.path());
    running.signal(libc::SIGTERM);
    ends_well(running);
    let output = client.finish(PATIENCE);
    assert!(!output.status.success(), "{output:?}");
    assert!(is_empty(dir.path()), "a file is left");
}

fn a_snapshot_ends_when_its_client_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (running, socket, client) = in_a_snapshot(dir.path());
    client.signal(libc::SIGTERM);
    drop(client.finish(PATIENCE));
    wait_for_snapshot(&socket, serde_json::Value::is_null);
    // Its file would be there by now.
    assert!(is_empty(dir.path()), "a file is left");
    let output = finish(exoprobe().args(["vm", "pause", "--socket", &socket]), PATIENCE);
    assert!(output.status.success(), "nothing waits for it: {output:?}");
    running.signal(libc::SIGTERM);
    ends_well(running);
}

/// A status of the machine waits for no dump.
fn sigterm_ends_a_dump_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (running, socket) = large(dir.path());
    let mut command = exoprobe();
    command.args(["--socket", &socket, "vm", "dump"]).arg(dir.path().join("core"));
    let client = Running::spawn(&mut command);
    wait_for_status(&socket, |status| status["state"] == "paused");
    running.signal(libc::SIGTERM);
    ends_well(running);
    let output = client.finish(PATIENCE);
    assert!(!output.status.success(), "{output:?}");
    assert!(is_empty(dir.path()), "a file is left");
}

/// A System.map without a function that return probes need has a mark fail at each patrol.
fn a_message_that_repeats_is_limited_and_plain_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("System.map");
    let text = std::fs::read_to_string(guest_file("System.map")).unwrap();
    let lines = text.lines().filter(|line| !line.ends_with(" do_task_dead"));
    std::fs::write(&map, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let args = ["--restore", &snapshot(), "--symbols", map.to_str().unwrap()];
    let mut service = Service::start(&args);
    let _ = service.ok(&["probe", "add", "r:ret vfs_read"]);
    let said =
        |service: &Service| service.log().matches("cannot set a breakpoint of the engine").count();
    let deadline = Instant::now() + PATIENCE;
    while said(&service) == 0 {
        assert!(Instant::now() < deadline, "no message: {}", service.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Time for a flood; on a slow host it is only a smaller one.
    std::thread::sleep(Duration::from_secs(4));
    assert!(service.end(libc::SIGTERM).success());
    let log = service.log();
    assert!(said(&service) < FLOOD, "{log}");
    assert!(!log.contains('\x1b'), "colours in what is no terminal: {log:?}");
}

fn an_answer_is_of_its_own_command() {
    let service = Service::restored(1);
    // Gives up before the guest is done.
    let late = service.client(&["vm", "send", "--timeout", "0", "sleep", "1500"]);
    assert_eq!(late.status.code(), Some(3), "{late:?}");
    assert_eq!(service.work("ping"), "done ping 1\n");
    let by_hand = exoprobe_tests::http::ask(
        service.socket(),
        "POST",
        "/v1/vm/serial/1",
        &[],
        b"ping\n#4294967295\n#x\n",
    );
    assert_eq!(by_hand.status, 204);
    assert_eq!(service.work("cpu 0"), "done cpu 0\n");
    let written = service.ok(&["vm", "console", "--port", "1"]);
    let lines = ["done ping 1", "#4294967295 error line: no command", "error #x: unknown command"];
    for line in lines {
        assert!(written.lines().any(|l| l.trim_end() == line), "{line}: {written}");
    }
}

fn a_guest_that_does_not_run_is_named_while_its_answer_is_waited_for() {
    let service = Service::restored(1);
    let add = r#"{"event":"hold","symbol_name":"__x64_sys_getpid","actions":["stop"]}"#;
    let _ = service.ok(&["probe", "add", add]);
    let mut command = exoprobe();
    command.arg("--socket").arg(service.socket()).args(["vm", "send", "--timeout", "3000"]);
    let waiting = Running::spawn(command.args(["getpid", "1"]));
    let deadline = Instant::now() + PATIENCE;
    while !waiting.stderr().contains("probe kprobes/hold holds vCPU 0") {
        assert!(Instant::now() < deadline, "{waiting}: {}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let status: serde_json::Value =
        serde_json::from_str(&service.ok(&["--json", "vm", "status"])).unwrap();
    assert_eq!(status["held_by"][0]["probe"], "kprobes/hold", "{status}");
    let _ = service.ok(&["probe", "rm", "hold"]);
    let _ = service.ok(&["vm", "resume"]);
    let answer = waiting.finish(PATIENCE);
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "done getpid 1\n");
    let _ = service.ok(&["vm", "shutdown"]);
    let refused = service.client(&["vm", "send", "--timeout", "3000", "ping"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && error.contains("has stopped"), "{error}");
}

/// Longer than the pause between two lines of progress.
const PAUSE: Duration = Duration::from_secs(7);

fn progress_ends_when_the_guest_is_ready_or_has_stopped() {
    let kernel = guest_file("bzImage");
    let initramfs = guest_file("initramfs.cpio");
    let booted = ["--kernel", kernel.to_str().unwrap(), "--memory", "64", "--cmdline"];
    let cmdline = TestGuest::config("bzImage", 1).cmdline;
    // Without an initramfs the kernel panics: it finds no root.
    let panicking = format!("{cmdline} panic=-1");
    let panics = [&booted[..], &[&panicking]].concat();
    let runs = [&booted[..], &[&cmdline, "--initramfs", initramfs.to_str().unwrap()]].concat();
    for (args, end) in [(panics, "panic"), (runs, "the guest is ready")] {
        let service = Service::start(&args);
        let deadline = Instant::now() + PATIENCE;
        while !service.log().contains(end) {
            assert!(Instant::now() < deadline, "{}", service.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        let lines = || service.log().lines().filter(|line| line.starts_with("booting,")).count();
        let shown = lines();
        std::thread::sleep(PAUSE);
        assert_eq!(lines(), shown, "{}", service.log());
    }
}
