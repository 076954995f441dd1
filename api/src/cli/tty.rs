//! What a user types at a terminal.

use std::io::{ErrorKind, IsTerminal, Read, stdin};
use std::mem::MaybeUninit;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Ctrl-]
const LEAVE: u8 = 0x1d;

/// What is typed, piece by piece.
pub(super) struct Typed {
    received: UnboundedReceiver<Vec<u8>>,
    _mode: Option<Mode>,
}

impl Typed {
    /// Lines as they are typed, their ends included, if standard input is a terminal.
    pub(super) fn lines() -> Option<Self> {
        // Ctrl-] ends a line, so that it is seen without Enter.
        Self::start(|mode| mode.c_cc[libc::VEOL] = LEAVE)
    }

    /// Keys as they are pressed, and not shown, if standard input is a terminal. Ctrl-Z is no more than a key.
    pub(super) fn keys() -> Option<Self> {
        Self::start(|mode| {
            mode.c_lflag &= !(libc::ICANON | libc::ECHO);
            mode.c_cc[libc::VMIN] = 1;
            mode.c_cc[libc::VTIME] = 0;
            mode.c_cc[libc::VSUSP] = libc::_POSIX_VDISABLE;
        })
    }

    fn start(change: impl FnOnce(&mut libc::termios)) -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let mode = Mode::change(change);
        let (sender, received) = unbounded_channel();
        // A thread, because reading cannot be cancelled; it ends with the process.
        std::thread::spawn(move || read_typed(stdin().lock(), &sender));
        Some(Self { received, _mode: mode })
    }

    /// What was typed next; `None` when the user leaves.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.received.recv().await
    }
}

fn read_typed(mut input: impl Read, pieces: &UnboundedSender<Vec<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        let typed = match input.read(&mut buffer) {
            Ok(len) => &buffer[..len],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let leaves = typed.is_empty() || typed.contains(&LEAVE);
        if leaves || pieces.send(typed.to_vec()).is_err() {
            return;
        }
    }
}

/// How the terminal takes what is typed, until dropped: then it is as before.
struct Mode {
    saved: libc::termios,
}

impl Mode {
    fn change(change: impl FnOnce(&mut libc::termios)) -> Option<Self> {
        let mut saved = MaybeUninit::uninit();
        // SAFETY: the pointer is to a termios of our own, which the call may fill.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, saved.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call above succeeded, so it is filled.
        let saved: libc::termios = unsafe { saved.assume_init() };
        let mut changed = saved;
        change(&mut changed);
        set(&changed).then_some(Self { saved })
    }
}

impl Drop for Mode {
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
        read_typed(typed, &sender);
        drop(sender);
        std::iter::from_fn(|| received.try_recv().ok()).collect()
    }

    #[test]
    fn typing_is_sent_until_the_user_leaves() {
        assert_eq!(sent(b"ls\n"), [b"ls\n"]);
        assert_eq!(sent(b"half a line\x1d"), Vec::<Vec<u8>>::new());
    }
}
