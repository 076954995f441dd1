//! Programs that a test runs: none outlives its test, and no wait is without end.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::keep_console;

const LOOK: Duration = Duration::from_millis(10);

/// Runs a program to its end, without input. Returns its status and output.
///
/// # Panics
/// When it cannot be started, or has not ended after `patience`: it is killed then, and the message
/// has what it wrote.
#[must_use]
pub fn finish(command: &mut Command, patience: Duration) -> Output {
    Running::spawn(command).finish(patience)
}

/// Whether a program is there, runs and succeeds.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    let ran = Command::new(program).args(args).output();
    ran.is_ok_and(|output| output.status.success())
}

/// A running program, killed when this is dropped. It has no input, and what it writes is
/// collected.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    stdout: Collector,
    stderr: Collector,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stdout = Collector::new(child.stdout.take().expect("it is piped"));
        let stderr = Collector::new(child.stderr.take().expect("it is piped"));
        Self { command: format!("{command:?}"), child, stdout, stderr }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When the signal is none.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        // SAFETY: `kill` takes any numbers; the child is ours and not yet waited for.
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// Its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Its standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Waits until `socket` has a listener.
    ///
    /// # Panics
    /// When it ends instead, or after `patience`.
    pub fn wait_for_socket(&mut self, socket: &Path, patience: Duration) {
        let deadline = Instant::now() + patience;
        while UnixStream::connect(socket).is_err() {
            let ended = self.ended();
            assert!(ended.is_none(), "ended ({ended:?}) and did not listen; {self}");
            assert!(Instant::now() < deadline, "does not listen; {self}");
            std::thread::sleep(LOOK);
        }
    }

    /// Its exit status, if it has ended.
    ///
    /// # Panics
    /// When the host does not say.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended after `patience`.
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "has not ended after {patience:?}; {self}");
            std::thread::sleep(LOOK);
        }
    }

    /// As [`finish`].
    ///
    /// # Panics
    /// As [`finish`].
    #[must_use]
    pub fn finish(mut self, patience: Duration) -> Output {
        let deadline = Instant::now() + patience;
        let status = self.wait(patience);
        // Its pipes close with it, unless a child of its own holds them.
        while !(self.stdout.reader.is_finished() && self.stderr.reader.is_finished()) {
            assert!(Instant::now() < deadline, "left its output open; {self}");
            std::thread::sleep(LOOK);
        }
        Output { status, stdout: self.stdout.so_far(), stderr: self.stderr.so_far() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            keep_console(&self.stderr());
        }
    }
}

/// The command and what it has written.
impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        write!(f, "{}\nstdout:\n{stdout}\nstderr:\n{stderr}", self.command)
    }
}

/// Reads a pipe to its end, so that a program can write as much as it likes.
#[derive(Debug)]
struct Collector {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collector {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(len) => lock(&collected).extend_from_slice(&buffer[..len]),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => panic!("a pipe of a program: {e}"),
                }
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::PATIENCE;

    const SHORT: Duration = Duration::from_millis(300);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// The message of a panic, which there must be.
    fn panic_of(run: impl FnOnce()) -> String {
        let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
        *payload.downcast::<String>().expect("a formatted message")
    }

    /// Whether the process still is.
    fn exists(pid: u32) -> bool {
        Path::new("/proc").join(pid.to_string()).exists()
    }

    #[test]
    fn a_program_that_ends_gives_its_status_and_all_that_it_wrote() {
        let output = finish(&mut shell("seq 50000; echo err >&2; exit 3"), PATIENCE);
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stderr, b"err\n");
        assert!(output.stdout.len() > 200_000 && output.stdout.ends_with(b"\n50000\n"));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_and_its_words_are_told() {
        let running = Running::spawn(&mut shell("echo out; echo err >&2; exec sleep 600"));
        let pid = running.pid();
        while !running.stderr().contains("err") || running.stdout.so_far().is_empty() {
            std::thread::sleep(LOOK);
        }
        let message = panic_of(|| drop(running.finish(SHORT)));
        assert!(message.contains("stdout:\nout\n"), "{message}");
        assert!(message.contains("stderr:\nerr\n"), "{message}");
        assert!(message.contains("sleep 600"), "{message}");
        assert!(!exists(pid));
    }

    #[test]
    fn a_program_does_not_outlive_its_test() {
        let running = Running::spawn(&mut shell("exec sleep 600"));
        let pid = running.pid();
        assert!(exists(pid));
        drop(running);
        assert!(!exists(pid));
    }

    #[test]
    fn waiting_for_a_socket_notices_the_end_and_has_its_own() {
        let absent = Path::new("/nonexistent/socket");
        let mut ended = Running::spawn(&mut shell("exit 4"));
        let message = panic_of(|| ended.wait_for_socket(absent, PATIENCE));
        assert!(message.contains("did not listen"), "{message}");
        let mut silent = Running::spawn(&mut shell("exec sleep 600"));
        let message = panic_of(|| silent.wait_for_socket(absent, SHORT));
        assert!(message.contains("does not listen"), "{message}");
    }
}
