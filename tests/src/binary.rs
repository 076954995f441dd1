//! The `exoprobe` program as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::{PATIENCE, Running, TestGuest, finish, guest_file};

/// The program, built beside the tests.
///
/// # Panics
/// When it was not built: `make test` builds all of the workspace first.
#[must_use]
pub fn exoprobe() -> Command {
    let mut command = program("exoprobe");
    command.env_remove("EXOPROBE_SOCKET").env_remove("EXOPROBE_TOKEN");
    command
}

/// The program `name` of this workspace, built beside the tests.
///
/// # Panics
/// As [`exoprobe()`].
#[must_use]
pub fn program(name: &str) -> Command {
    let mut path = std::env::current_exe().expect("a running test has a path");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push(name);
    assert!(path.exists(), "{} is not there: run `cargo build` first", path.display());
    Command::new(path)
}

/// A running `exoprobe run`, ended with the test.
pub struct Service {
    running: Running,
    socket: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Service {
    /// Starts `exoprobe run` with more arguments, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(args: &[&str]) -> Self {
        Self::start_as(exoprobe(), args)
    }

    /// Starts it as [`Self::start`], with at most so many open files.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_with_descriptors(most: u32, args: &[&str]) -> Self {
        let program = exoprobe();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n $1; shift; exec \"$@\"", "sh", &most.to_string()]);
        command.arg(program.get_program());
        command.env_remove("EXOPROBE_SOCKET").env_remove("EXOPROBE_TOKEN");
        Self::start_as(command, args)
    }

    fn start_as(mut program: Command, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let socket = dir.path().join("api.sock");
        let mut running =
            Running::spawn(program.arg("run").arg("--socket").arg(&socket).args(args));
        running.wait_for_socket(&socket, PATIENCE);
        Self { running, socket, _dir: Some(dir) }
    }

    /// Runs a command that is a service, and waits until it listens at `socket`.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn started_by(command: &mut Command, socket: &Path) -> Self {
        command.env_remove("EXOPROBE_SOCKET").env_remove("EXOPROBE_TOKEN");
        let mut running = Running::spawn(command);
        running.wait_for_socket(socket, PATIENCE);
        Self { running, socket: socket.to_owned(), _dir: None }
    }

    /// Where it listens on TCP (`ADDRESS:PORT`), as it writes itself.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn tcp_address(&self) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The whole line: it is written once the guest is there, after the socket is.
            let log = self.log();
            let found = log.split_once("http://").and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((address, _)) = found {
                return address.to_owned();
            }
            assert!(Instant::now() < deadline, "no TCP address in {log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts it with the tiny guest from its snapshot, at the workload's prompt.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn restored(vcpus: u8) -> Self {
        let snapshot = TestGuest::snapshot(vcpus);
        let restore = ["--restore", snapshot.to_str().expect("its path is text")];
        let files = Self::boot_files();
        Self::start(&[&restore[..], &files.each_ref().map(String::as_str)].concat())
    }

    /// Arguments that name the tiny guest's files: with them it may be rebooted after `--restore`.
    ///
    /// # Panics
    /// When a path is no text.
    #[must_use]
    pub fn boot_files() -> [String; 4] {
        let path = |name: &str| guest_file(name).into_os_string().into_string().expect("text");
        let [kernel, initramfs] = ["vmlinux", "initramfs.cpio"].map(path);
        ["--kernel".to_owned(), kernel, "--initramfs".to_owned(), initramfs]
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// A line of its `/proc/PID/status`, without the name, its words with one blank between them.
    ///
    /// # Panics
    /// When it has ended, or there is no such line.
    #[must_use]
    pub fn status_line(&self, name: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let text = text.expect("the service runs");
        let of_name = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
        let line = text.lines().find_map(of_name).expect("the host's kernel has this line");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Its resident memory, in KiB.
    ///
    /// # Panics
    /// As [`Self::status_line`].
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        self.kib("VmRSS")
    }

    /// The most resident memory that it had since [`Self::reset_peak`], in KiB.
    ///
    /// # Panics
    /// As [`Self::status_line`].
    #[must_use]
    pub fn peak_kib(&self) -> u64 {
        self.kib("VmHWM")
    }

    /// A figure of its `/proc/PID/status`, in KiB.
    ///
    /// # Panics
    /// As [`Self::status_line`].
    #[must_use]
    pub fn kib(&self, name: &str) -> u64 {
        let line = self.status_line(name);
        line.strip_suffix(" kB").and_then(|kib| kib.parse().ok()).expect("a number of KiB")
    }

    /// Sets the peak of its memory to what it has now (proc(5), clear_refs).
    ///
    /// # Panics
    /// As [`Self::status_line`].
    pub fn reset_peak(&self) {
        let path = format!("/proc/{}/clear_refs", self.pid());
        std::fs::write(path, "5").expect("the service is ours");
    }

    /// Its standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.running.stderr()
    }

    /// Runs a client command against it.
    ///
    /// # Panics
    /// When the program cannot be started, or does not end within [`PATIENCE`].
    #[must_use]
    pub fn client(&self, args: &[&str]) -> Output {
        finish(exoprobe().arg("--socket").arg(&self.socket).args(args), PATIENCE)
    }

    /// As [`Self::client`], for a command that must succeed. Returns its standard output.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.client(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {}\n{error}\n{}", output.status, self.log());
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    /// The events that `exoprobe events` prints with these arguments.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn events(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let out = self.ok(&[&["--json", "events"], args].concat());
        out.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    /// Has the guest's workload carry out a command. Returns its answer.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn work(&self, command: &str) -> String {
        let timeout = PATIENCE.as_secs().to_string();
        self.ok(&["vm", "send", "--timeout", &timeout, command])
    }

    /// Sends a signal and waits for the end. Returns the exit status.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    pub fn end(&mut self, signal: i32) -> std::process::ExitStatus {
        self.running.signal(signal);
        self.running.wait(PATIENCE)
    }
}
