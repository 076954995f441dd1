//! The task that waits for an answer, and what calls it away.
//!
//! The kernel asks a file system to give up a request by FUSE_INTERRUPT, which fuser refuses; from
//! then on the kernel waits for the answer, even for a task that was killed. So a server that lets
//! a task wait looks at its signals.

use std::io;
use std::time::{Duration, Instant};

use fuser::{Errno, Request};

/// Between two looks at a waiting task.
const LOOK: Duration = Duration::from_millis(60);
/// How long a task waits whose signals cannot be seen.
const UNSEEN: Duration = Duration::from_secs(1);
/// SIGKILL's bit in a mask of signals. A signal that ends a process makes it pending, too.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// End of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wakes {
    /// Any signal that the task does not block: for a wait without an end, as tracefs has it in
    /// trace_pipe. A task whose signals cannot be seen is sent back after a second.
    Signal,
    /// The task's end: for a wait that ends by itself, whose callers do not expect EINTR.
    Death,
}

/// A task, by the number it has for this process. 0 is one of another PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller(u32);

/// Visible state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It waits, with these signals pending that it does not block.
    Waiting(u64),
    /// It is no more.
    Gone,
    /// It cannot be looked at.
    Nothing,
}

impl Caller {
    pub(super) fn of(request: &Request) -> Self {
        Self(request.pid())
    }

    /// Does `work`, which must bear to be dropped; EINTR when the task is called away before.
    pub(super) async fn wait<T>(
        self,
        wakes: Wakes,
        work: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, Errno> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.called_away(wakes) => Err(Errno::EINTR),
        }
    }

    async fn called_away(self, wakes: Wakes) {
        let begun = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            let called = match self.look() {
                Seen::Waiting(signals) => match wakes {
                    Wakes::Signal => signals != 0,
                    Wakes::Death => signals & KILL != 0,
                },
                Seen::Gone => true,
                Seen::Nothing => wakes == Wakes::Signal && begun.elapsed() >= UNSEEN,
            };
            if called {
                return;
            }
        }
    }

    fn look(self) -> Seen {
        if self.0 == 0 {
            return Seen::Nothing;
        }
        // The number is a thread's; /proc has those too, though it does not list them.
        match std::fs::read_to_string(format!("/proc/{}/status", self.0)) {
            Ok(status) => read_status(&status),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Seen::Gone,
            Err(error) if error.kind() == io::ErrorKind::NotFound && proc_is_there() => Seen::Gone,
            Err(_) => Seen::Nothing,
        }
    }
}

fn proc_is_there() -> bool {
    std::path::Path::new("/proc/self/status").exists()
}

/// Reads `/proc/TID/status` as proc(5) describes it.
fn read_status(status: &str) -> Seen {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim)
    };
    if field("State").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return Seen::Gone;
    }
    let mask = |name| u64::from_str_radix(field(name)?, 16).ok();
    match (mask("SigPnd"), mask("ShdPnd"), mask("SigBlk")) {
        (Some(own), Some(shared), Some(blocked)) => Seen::Waiting((own | shared) & !blocked),
        _ => Seen::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: u64 = 1 << (libc::SIGINT - 1);

    fn status(state: &str, own: u64, shared: u64, blocked: u64) -> String {
        format!(
            "Name:\tcat\nState:\t{state}\nTgid:\t7\nThreads:\t1\nSigQ:\t1/30\nSigPnd:\t{own:016x}\n\
             ShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t0000000000000000\n"
        )
    }

    #[test]
    fn signals_that_are_pending_and_not_blocked_are_seen() {
        let seen =
            |own, shared, blocked| read_status(&status("S (sleeping)", own, shared, blocked));
        assert_eq!(seen(0, 0, 0), Seen::Waiting(0));
        assert_eq!(seen(INT, 0, 0), Seen::Waiting(INT));
        assert_eq!(seen(0, INT, 0), Seen::Waiting(INT));
        assert_eq!(seen(INT, INT, INT), Seen::Waiting(0));
        assert_eq!(seen(KILL, INT, INT), Seen::Waiting(KILL));
        assert_eq!(seen(1 << 63, 0, 0), Seen::Waiting(1 << 63), "the last real-time signal");
    }

    #[test]
    fn a_task_that_has_ended_is_gone_and_a_text_of_another_kind_tells_nothing() {
        assert_eq!(read_status(&status("Z (zombie)", 0, 0, 0)), Seen::Gone);
        assert_eq!(read_status(&status("X (dead)", 0, 0, 0)), Seen::Gone);
        assert_eq!(read_status(""), Seen::Nothing);
        assert_eq!(read_status("SigPnd:\tzz\nShdPnd:\t0\nSigBlk:\t0\n"), Seen::Nothing);
    }

    #[test]
    fn tasks_are_looked_at() {
        assert!(matches!(Caller(std::process::id()).look(), Seen::Waiting(_)));
        // Above the largest number that Linux gives.
        assert_eq!(Caller(u32::MAX >> 1).look(), Seen::Gone);
        assert_eq!(Caller(0).look(), Seen::Nothing);
    }

    #[tokio::test]
    async fn a_wait_ends_with_its_work_or_its_task() {
        let alive = Caller(std::process::id());
        assert_eq!(alive.wait(Wakes::Death, async { Ok(5) }).await, Ok(5));
        let gone = Caller(u32::MAX >> 1);
        let never = std::future::pending::<Result<(), Errno>>;
        assert_eq!(gone.wait(Wakes::Death, never()).await, Err(Errno::EINTR));
        assert_eq!(Caller(0).wait(Wakes::Signal, never()).await, Err(Errno::EINTR));
        let short = Duration::from_secs(2);
        let waited = tokio::time::timeout(short, Caller(0).wait(Wakes::Death, never())).await;
        assert!(waited.is_err(), "it has another end");
    }
}
