//! The `exoprobe` program as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// The program, built beside the tests.
///
/// # Panics
/// When it was not built: `make test` builds all of the workspace first.
#[must_use]
pub fn exoprobe() -> Command {
    let mut path = std::env::current_exe().expect("a running test has a path");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("exoprobe");
    assert!(path.exists(), "{} is not there: run `cargo build` first", path.display());
    let mut command = Command::new(path);
    command.env_remove("EXOPROBE_SOCKET").env_remove("EXOPROBE_TOKEN");
    command
}

/// A running `exoprobe run`, ended with the test.
pub struct Service {
    child: Child,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Service {
    /// Starts `exoprobe run` with more arguments, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let socket = dir.path().join("api.sock");
        let log = std::fs::File::create(dir.path().join("log")).expect("a log file");
        let child = exoprobe()
            .arg("run")
            .arg("--socket")
            .arg(&socket)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut service = Self { child, socket, _dir: dir };
        let deadline = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(&service.socket).is_err() {
            let ended = service.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}: {}", service.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        service
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to standard error.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.socket.with_file_name("log")).unwrap_or_default()
    }

    /// Runs a client command against it.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    pub fn client(&self, args: &[&str]) -> Output {
        let mut command = exoprobe();
        command.arg("--socket").arg(&self.socket).args(args);
        command.output().expect("the program starts")
    }

    /// As [`Self::client`], for a command that must succeed; gives its standard output.
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

    /// Has the guest's workload carry out a command; gives its answer.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn work(&self, command: &str) -> String {
        let timeout = PATIENCE.as_secs().to_string();
        self.ok(&["vm", "send", "--timeout", &timeout, command])
    }

    /// Sends a signal and waits for the end; gives the exit status.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    pub fn end(&mut self, signal: i32) -> std::process::ExitStatus {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: `kill` takes any numbers; the child is ours and not yet waited for.
        unsafe { libc::kill(pid, signal) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return status;
            }
            assert!(Instant::now() < deadline, "did not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
