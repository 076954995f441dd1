//! Programs of a test: none outlives it, nor does a mount.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use crate::service::Service;

/// Only a hang takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Waits for a state.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(LOOK);
    }
}

/// A program whose output is collected.
pub(crate) struct Program {
    child: Child,
    said: Arc<Mutex<String>>,
    collector: JoinHandle<()>,
}

impl Program {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let (mut output, input) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(input.try_clone().unwrap()).stderr(input);
        let child = command.spawn().unwrap();
        // It holds the pipe's other end too, and would keep it open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let said = Arc::new(Mutex::new(String::new()));
        let collected = Arc::clone(&said);
        let collector = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = output.read(&mut buffer) {
                collected.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..len]));
            }
        });
        Self { child, said, collector }
    }

    /// A line for the shell.
    pub(crate) fn shell(line: &str) -> Self {
        Self::spawn(Command::new("bash").args(["-c", line]))
    }

    /// `exoprobe`, with these arguments.
    pub(crate) fn exoprobe(args: &[&Path]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_exoprobe")).args(args))
    }

    /// Its output, of both streams.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub(crate) fn wait_until_it_says(&mut self, text: &str) {
        until(text, || {
            let ended = self.ended();
            assert!(ended.is_none() || self.said().contains(text), "{ended:?}: {}", self.said());
            self.said().contains(text)
        });
    }

    pub(crate) fn signal(&self, name: &str) {
        let line = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
    }

    /// Waits until it sleeps in the kernel, in a read of the mount.
    pub(crate) fn wait_until_it_reads(&self) {
        let file = format!("/proc/{}/syscall", self.child.id());
        // The number of read(2) stands first.
        until("a read", || std::fs::read_to_string(&file).is_ok_and(|text| text.starts_with("0 ")));
    }

    /// Waits until no process holds its output open any more.
    pub(crate) fn wait_for_closed_output(&self) {
        until("closed output", || self.collector.is_finished());
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("a program's end", || {
            status = self.ended();
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Not waited for: a mount that hangs may hold it until it is unmounted.
        drop(self.child.kill());
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline
        {
            std::thread::sleep(LOOK);
        }
    }
}

/// Exit status and output of a line of the shell.
pub(crate) fn shell(line: &str) -> (Option<i32>, String) {
    let mut program = Program::shell(line);
    let status = program.wait();
    until("the end of its output", || program.collector.is_finished());
    (status.code(), program.said())
}

/// A folder to mount on; what is mounted there goes with it. A test that hangs in a call of its own
/// is freed, too, and fails.
pub(crate) struct Point {
    dir: tempfile::TempDir,
    /// Ends the watch, by its own end.
    _watch: Sender<()>,
}

impl Point {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tracing");
        std::fs::create_dir(&path).unwrap();
        let (watch, watched) = channel();
        std::thread::spawn(move || {
            if watched.recv_timeout(5 * PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Then calls that wait there get an error.
                let _ = umount2(&path, MntFlags::MNT_DETACH | MntFlags::MNT_FORCE);
            }
        });
        Self { dir, _watch: watch }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("tracing")
    }

    /// A folder beside it, for sockets and the like.
    pub(crate) fn beside(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(&format!(" {} ", self.path().display()))
    }

    /// Mounts the service, with another process.
    pub(crate) fn mount(&self, service: &Service) -> Program {
        let mut program = self.try_mount(service.socket());
        program.wait_until_it_says("is mounted on");
        program
    }

    pub(crate) fn try_mount(&self, socket: &Path) -> Program {
        let point = self.path();
        Program::exoprobe(&[Path::new("mount"), &point, Path::new("--socket"), socket])
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // Several may be there, one over the other.
        while umount2(&self.path(), MntFlags::MNT_DETACH).is_ok() {}
    }
}
