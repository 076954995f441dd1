//! An attack, the ground that it is carried out on, and its outcome.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{Dice, Service, exoprobe, finish};
use tempfile::TempDir;

/// Findings of one attack that are kept: they are often the same one.
const FINDINGS_MAX: usize = 20;
/// Longest wait for the guest's answer.
const ANSWER: Duration = Duration::from_secs(300);
/// Most that the log may have from an attack, in bytes.
pub(crate) const LOG_MAX: usize = 64 << 10;
/// The token of services that listen on TCP.
pub(crate) const TOKEN: &str = "correct-horse-battery";

/// One kind of attack.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Share of the time.
    pub(crate) share: u32,
    pub(crate) run: fn(&mut Ground, &mut Tally),
}

impl Attack {
    /// Carries it out. A service that does not behave at all makes it panic: a finding as well.
    pub(crate) fn carry_out(&self, mut ground: Ground) -> Tally {
        let mut tally = Tally::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.run)(&mut ground, &mut tally)));
        if let Err(panic) = outcome {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            tally.found(text.unwrap_or_default());
        }
        if tally.times == 0 {
            tally.found("it was not carried out once".to_owned());
        }
        tally
    }
}

/// The outcome of an attack.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How often it was carried out.
    pub(crate) times: u64,
    pub(crate) findings: Vec<String>,
}

impl Tally {
    pub(crate) fn found(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX && !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Notes a finding unless `right`.
    pub(crate) fn check(&mut self, right: bool, finding: impl FnOnce() -> String) {
        if !right {
            self.found(finding());
        }
    }
}

/// The means of an attack.
pub(crate) struct Ground {
    /// The tiny guest at its prompt.
    pub(crate) snapshot: PathBuf,
    /// For files of this attack.
    pub(crate) folder: TempDir,
    pub(crate) dice: Dice,
    end: Instant,
}

impl Ground {
    pub(crate) fn new(snapshot: &Path, folder: &Path, time: Duration, seed: u64) -> Self {
        Self {
            snapshot: snapshot.to_owned(),
            folder: tempfile::tempdir_in(folder).expect("a folder in it"),
            dice: Dice(seed),
            end: Instant::now() + time,
        }
    }

    /// When the attack's time is over.
    pub(crate) fn end(&self) -> Instant {
        self.end
    }

    /// Whether there is time for one more round. There is for the first.
    pub(crate) fn goes_on(&self, tally: &Tally) -> bool {
        tally.times == 0 || Instant::now() < self.end
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).into_os_string().into_string().expect("text")
    }

    /// Arguments that restore the guest.
    pub(crate) fn restore(&self) -> [&str; 2] {
        ["--restore", self.snapshot.to_str().expect("text")]
    }

    /// A service of the guest that may be rebooted.
    pub(crate) fn service(&self) -> Service {
        let files = Service::boot_files();
        let files = files.each_ref().map(String::as_str);
        Service::start(&[&self.restore()[..], &files].concat())
    }

    /// A service with so many open files at most, that listens on TCP, too.
    pub(crate) fn tcp_service(&self, descriptors: u32) -> Service {
        let token = self.path("token");
        let mut file = std::fs::OpenOptions::new();
        let file = file.write(true).create(true).truncate(true).mode(0o600).open(&token);
        let mut file = file.expect("a file");
        file.write_all(TOKEN.as_bytes()).expect("room");
        let private = std::fs::Permissions::from_mode(0o600);
        file.set_permissions(private).expect("a file of ours");
        let listen = ["--listen", "127.0.0.1:0", "--token-file", &token];
        Service::start_with_descriptors(descriptors, &[&self.restore()[..], &listen].concat())
    }
}

/// Asks; an answer that does not come is an error's text.
pub(crate) fn ask(
    service: &Service,
    method: &str,
    path: &str,
    kind: &str,
    body: &[u8],
) -> Result<Answer, String> {
    let kind = format!("content-type: {kind}");
    let headers: &[&str] = if body.is_empty() { &[] } else { &[&kind] };
    let asked = || http::ask(service.socket(), method, path, headers, body);
    catch_unwind(AssertUnwindSafe(asked)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        format!("{method} {path} has no answer: {text}")
    })
}

/// Checks that the service answers and has the guest that it had.
pub(crate) fn check_alive(service: &Service, tally: &mut Tally) {
    match ask(service, "GET", "/v1/vm", "", b"") {
        Ok(answer) => tally.check(answer.status == 200, || format!("GET /v1/vm: {answer:?}")),
        Err(error) => tally.found(error),
    }
}

/// Waits until something holds. Returns false if it does not within `patience`.
pub(crate) fn holds_soon(patience: Duration, holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Ends a service as a user does; it must end well.
pub(crate) fn end(mut service: Service, tally: &mut Tally) {
    let connects = UnixStream::connect(service.socket()).is_ok();
    tally.check(connects, || format!("nothing listens any more: {}", service.log()));
    let status = service.end(libc::SIGTERM);
    tally.check(status.success(), || format!("SIGTERM: {status}: {}", service.log()));
    tally.check(!service.log().contains("panicked"), || service.log());
}

/// Sends the guest a command. Returns its answer, `done COMMAND N`.
pub(crate) fn work(service: &Service, command: &str) -> Result<String, String> {
    let mut client = exoprobe();
    client.arg("--socket").arg(service.socket()).args(["vm", "send", "--timeout"]);
    client.arg(ANSWER.as_secs().to_string()).arg(command);
    let answer = finish(&mut client, 2 * ANSWER);
    let said = String::from_utf8_lossy(&answer.stdout);
    if answer.status.success() && said.starts_with("done ") {
        return Ok(said.trim().to_owned());
    }
    Err(format!("{command}: {answer:?}: {}", service.log()))
}
