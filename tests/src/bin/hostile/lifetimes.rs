//! Services without a standard error, and services that are killed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use exoprobe_tests::{PATIENCE, Running, Service, exoprobe, finish, http};
use serde_json::{Value, json};

use crate::attack::{Ground, Tally, ask, check_alive, end, holds_soon};

/// Longest end of a service after SIGTERM.
const END: Duration = Duration::from_secs(60);

/// Redirections to a full disk, to nothing, and to pipes whose readers have ended.
const REDIRECTIONS: [&str; 5] =
    ["2>/dev/full", "2>&-", "2>/dev/full >/dev/full", "2> >(exec true)", "> >(exec true) 2>&1"];
/// Return probes of one function: what was dropped one within the other overflowed the stack.
const MANY: usize = 40_000;

/// Starts `exoprobe` with these arguments and this redirection of bash's.
fn redirected(redirection: &str, args: &[&str]) -> Running {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")]);
    Running::spawn(command.arg(exoprobe().get_program()).args(args))
}

/// A standard error that takes nothing, while the guest causes messages.
pub(crate) fn dead_standard_error(ground: &mut Ground, tally: &mut Tally) {
    let files = Service::boot_files();
    while ground.goes_on(tally) {
        let socket = ground.path("dead");
        let redirection = *ground.dice.pick(&REDIRECTIONS);
        let run = ["run", "--socket", &socket, "--reboot"].into_iter().chain(ground.restore());
        let run: Vec<&str> = run.chain(files.iter().map(String::as_str)).collect();
        let mut running = redirected(redirection, &run);
        running.wait_for_socket(Path::new(&socket), PATIENCE);
        let ask =
            |method, path, body| http::ask(Path::new(&socket), method, path, &[], body).status;
        // Each reset has a message, and so has each hit of nothing.
        for _ in 0..3 {
            let sent = ask("POST", "/v1/vm/serial/1", b"reboot\n");
            // A guest takes nothing during its reset, which is over soon.
            let is_right = sent == 204 || sent == 409 && runs_again(Path::new(&socket));
            tally.check(is_right, || format!("{redirection}: serial input: {sent}"));
            let status = ask("GET", "/v1/vm", b"");
            tally.check(status == 200, || format!("{redirection}: status: {status}"));
            std::thread::sleep(Duration::from_millis(300));
        }
        running.signal(libc::SIGTERM);
        let status = running.wait(END);
        tally.check(status.success(), || format!("{redirection}: {status}"));
        tally.times += 1;
    }
}

/// Waits for a guest that is reset. Returns false if it does not run again.
fn runs_again(socket: &Path) -> bool {
    let state = || http::ask(socket, "GET", "/v1/vm", &[], b"").json()["state"].clone();
    holds_soon(PATIENCE, || state() == "running")
}

/// Services at one socket, killed at any moment, also in a snapshot.
pub(crate) fn killed(ground: &mut Ground, tally: &mut Tally) {
    let (socket, kept) = (ground.path("socket"), ground.path("kept"));
    let runtime = ground.path("runtime");
    std::fs::create_dir(&runtime).expect("a folder");
    let snapshot = ground.snapshot.clone();
    let start = || {
        let mut command = exoprobe();
        command.env("XDG_RUNTIME_DIR", &runtime).args(["run", "--socket", &socket]);
        let mut running = Running::spawn(command.arg("--restore").arg(&snapshot));
        running.wait_for_socket(Path::new(&socket), PATIENCE);
        running
    };
    while ground.goes_on(tally) {
        let running = start();
        let body = json!({ "path": kept }).to_string();
        let mut client = exoprobe();
        client.args(["--socket", &socket, "vm", "snapshot", &kept]);
        let client = ground.dice.one_in(2).then(|| Running::spawn(&mut client));
        std::thread::sleep(Duration::from_millis(ground.dice.roll() % 200));
        running.signal(libc::SIGKILL);
        drop((running, client));
        let left = std::fs::read_dir(ground.folder.path()).into_iter().flatten().flatten();
        for entry in left {
            let name = entry.file_name();
            let known = ["socket", "kept", "runtime"].iter().any(|known| name == *known);
            tally.check(known, || format!("{name:?} is left of {body}"));
        }
        tally.times += 1;
    }
    let list = finish(exoprobe().env("XDG_RUNTIME_DIR", &runtime).args(["ls", "--json"]), PATIENCE);
    let rows: Value = serde_json::from_slice(&list.stdout).unwrap_or_default();
    tally.check(rows[0]["state"] == "dead" && rows[1].is_null(), || format!("{rows}"));
    if Path::new(&kept).exists() {
        let whole = Service::start(&["--restore", &kept]);
        tally.check(whole.log().is_empty() || !whole.log().contains("error"), || whole.log());
    }
    let mut running = start();
    running.signal(libc::SIGTERM);
    let status = running.wait(END);
    tally.check(status.success(), || format!("{status}: {running}"));
    tally.check(!Path::new(&socket).exists(), || "its socket stays".to_owned());
}

/// Many return probes of one function end with their service.
pub(crate) fn many_returns(ground: &mut Ground, tally: &mut Tally) {
    while ground.goes_on(tally) {
        let service = ground.service();
        let lines: String = (0..MANY).map(|at| format!("r1:r{at} vfs_read\n")).collect();
        let added = ask(&service, "POST", "/v1/probes", "text/plain", lines.as_bytes());
        let is_added = added.as_ref().is_ok_and(|answer| answer.status == 201);
        tally.check(is_added, || format!("{:?}", added.map(|answer| answer.status)));
        if ground.dice.one_in(2) {
            drop(ask(&service, "DELETE", "/v1/probes", "", b""));
        }
        check_alive(&service, tally);
        end(service, tally);
        tally.times += 1;
    }
}
