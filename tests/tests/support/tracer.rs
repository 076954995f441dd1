//! Files of the tracer, over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Service, exoprobe, finish};
use tempfile::TempDir;

pub(crate) fn ask(service: &Service, method: &str, path: &str, text: &str) -> Answer {
    let path = format!("/v1/tracefs/{path}");
    http::ask(service.socket(), method, &path, &["content-type: text/plain"], text.as_bytes())
}

pub(crate) fn cat(service: &Service, path: &str) -> String {
    let answer = ask(service, "GET", path, "");
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.body
}

/// `echo text > path`
pub(crate) fn replace(service: &Service, path: &str, text: &str) {
    let answer = ask(service, "PUT", path, &format!("{text}\n"));
    assert_eq!(answer.status, 204, "{text} > {path}: {answer:?}");
}

/// `echo text >> path`
pub(crate) fn append(service: &Service, path: &str, text: &str) {
    let answer = ask(service, "POST", path, &format!("{text}\n"));
    assert_eq!(answer.status, 204, "{text} >> {path}: {answer:?}");
}

/// The errno of a write that fails.
pub(crate) fn refused(service: &Service, path: &str, text: &str) -> String {
    let answer = ask(service, "POST", path, text);
    assert!(answer.status >= 400, "{text} >> {path}: {answer:?}");
    answer.json()["code"].as_str().unwrap().to_owned()
}

pub(crate) fn work(service: &Service, command: &str) {
    let answer = service.work(command);
    assert!(answer.starts_with("done "), "{answer}");
}

/// A number of a vCPU's file `stats`.
pub(crate) fn statistic(service: &Service, cpu: usize, name: &str) -> String {
    statistic_in(&cat(service, &format!("per_cpu/cpu{cpu}/stats")), name).to_owned()
}

/// A number in a text of `stats`.
fn statistic_in<'t>(stats: &'t str, name: &str) -> &'t str {
    let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("{name}: {stats}"))
}

/// Waits until so many events of the one vCPU came: in its buffer, taken from there, or dropped for
/// younger ones.
fn await_events(service: &Service, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // One text: an event that is taken meanwhile is counted once.
        let stats = cat(service, "per_cpu/cpu0/stats");
        let number = |name| statistic_in(&stats, name).trim().parse::<u64>().unwrap();
        let come = number("entries") + number("read events") + number("overrun");
        if come == count {
            return;
        }
        assert!(Instant::now() < deadline, "{come} of {count} events came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has the one vCPU call getpid `calls` times, each an event of up to 3 KiB, in steps for which the
/// guest's ring has room, however late events are taken from it: `calls` is a multiple of a step's
/// 200. `before` events came earlier.
pub(crate) fn getpid_in_steps(service: &Service, before: u64, calls: u64) {
    const STEP: usize = 200;
    assert_eq!(calls % STEP as u64, 0, "calls of whole steps");
    for come in (before..=before + calls).step_by(STEP).skip(1) {
        work(service, &format!("getpid {STEP}"));
        await_events(service, come);
    }
}

/// The events in a text of `trace` or `trace_pipe`.
pub(crate) fn events(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// The number after a name in a text of `hist`.
pub(crate) fn total(hist: &str, name: &str) -> u64 {
    let line = hist.lines().find_map(|line| line.trim_start().strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} in {hist}")).trim().parse().unwrap()
}

/// A reader of a file without an end, after the answer's head.
pub(crate) fn pipe(service: &Service, path: &str) -> BufReader<UnixStream> {
    let mut stream = UnixStream::connect(service.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET /v1/tracefs/{path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "an answer has a head");
    }
    reader
}

/// The files in a folder, also unmounted when its test fails.
pub(crate) struct Mount(TempDir);

impl Mount {
    pub(crate) fn of(service: &Service) -> Self {
        let mount = Self(tempfile::tempdir().unwrap());
        let _ = service.ok(&["mount", "--background", mount.point()]);
        mount
    }

    pub(crate) fn point(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// Runs a script of a shell in the folder: its output, and its messages.
    pub(crate) fn shell(&self, script: &str) -> String {
        let mut command = Command::new("bash");
        let output = finish(command.args(["-c", script]).current_dir(self.0.path()), PATIENCE);
        let [text, errors] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        text + &errors
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = exoprobe().args(["mount", "--unmount"]).arg(self.0.path()).output();
    }
}
