//! Lines that a user types at a terminal.

use std::io::{ErrorKind, IsTerminal, Read, stdin};
use std::mem::MaybeUninit;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Ctrl-]
const LEAVE: u8 = 0x1d;

/// Lines as they are typed, their ends included.
pub(super) struct TypedLines {
    received: UnboundedReceiver<Vec<u8>>,
    _leave_key: Option<LeaveKey>,
}

impl TypedLines {
    /// Starts reading, if standard input is a terminal.
    pub(super) fn start() -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let leave_key = LeaveKey::install();
        let (sender, received) = unbounded_channel();
        // A thread, because reading cannot be cancelled; it ends with the process.
        std::thread::spawn(move || read_lines(stdin().lock(), &sender));
        Some(Self { received, _leave_key: leave_key })
    }

    /// The next line; `None` when the user leaves.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.received.recv().await
    }
}

fn read_lines(mut input: impl Read, lines: &UnboundedSender<Vec<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        let typed = match input.read(&mut buffer) {
            Ok(len) => &buffer[..len],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let leaves = typed.is_empty() || typed.contains(&LEAVE);
        if leaves || lines.send(typed.to_vec()).is_err() {
            return;
        }
    }
}

/// Makes Ctrl-] end a line, so that it is seen without Enter, until dropped.
struct LeaveKey {
    saved: libc::termios,
}

impl LeaveKey {
    fn install() -> Option<Self> {
        let mut saved = MaybeUninit::uninit();
        // SAFETY: the pointer is to a termios of our own, which the call may fill.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, saved.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call above succeeded, so it is filled.
        let saved: libc::termios = unsafe { saved.assume_init() };
        let mut with_key = saved;
        with_key.c_cc[libc::VEOL] = LEAVE;
        set(&with_key).then_some(Self { saved })
    }
}

impl Drop for LeaveKey {
    fn drop(&mut self) {
        set(&self.saved);
    }
}

fn set(termios: &libc::termios) -> bool {
    // SAFETY: the pointer is to a termios that the call only reads.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, termios) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(typed: &[u8]) -> Vec<Vec<u8>> {
        let (sender, mut received) = unbounded_channel();
        read_lines(typed, &sender);
        drop(sender);
        std::iter::from_fn(|| received.try_recv().ok()).collect()
    }

    #[test]
    fn typing_is_sent_until_the_user_leaves() {
        assert_eq!(sent(b"ls\n"), [b"ls\n"]);
        assert_eq!(sent(b"half a line\x1d"), Vec::<Vec<u8>>::new());
    }
}
