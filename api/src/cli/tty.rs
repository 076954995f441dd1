//! Input typed at a terminal, and its size.

use std::io::{ErrorKind, IsTerminal, Read, stdin};
use std::mem::MaybeUninit;

use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Ctrl-]
const LEAVE: u8 = 0x1d;
/// Pieces that wait to be sent. A reader that is ahead of them waits.
const PIECES: usize = 16;

/// Standard input, piece by piece.
pub(super) struct Typed {
    received: Receiver<Vec<u8>>,
    /// Absent for piped input, and where the terminal refused another mode.
    mode: Option<Mode>,
}

impl Typed {
    /// Lines as they are typed, their ends included, if standard input is a terminal.
    pub(super) fn lines() -> Option<Self> {
        // Ctrl-] ends a line, so that it is seen without Enter.
        Self::terminal(|mode| mode.c_cc[libc::VEOL] = LEAVE)
    }

    /// Keys as they are pressed, and not shown, if standard input is a terminal. Ctrl-Z is no more
    /// than a key.
    pub(super) fn keys() -> Option<Self> {
        Self::terminal(|mode| {
            by_key(mode);
            mode.c_cc[libc::VSUSP] = libc::_POSIX_VDISABLE;
        })
    }

    /// Every key as it is pressed, Ctrl-C too, and not shown, if standard input is a terminal.
    /// Ctrl-] ends it.
    ///
    /// Output is processed as before, so that a bare line feed starts a new line.
    pub(super) fn raw() -> Option<Self> {
        Self::terminal(|mode| {
            by_key(mode);
            mode.c_lflag &= !(libc::ISIG | libc::IEXTEN);
            mode.c_iflag &= !(libc::IXON | libc::ICRNL | libc::INLCR | libc::IGNCR | libc::ISTRIP);
        })
    }

    /// Input that is no terminal's, to its end.
    pub(super) fn piped() -> Self {
        Self::start(None, None)
    }

    fn terminal(change: impl FnOnce(&mut libc::termios)) -> Option<Self> {
        stdin().is_terminal().then(|| Self::start(Mode::change(change), Some(LEAVE)))
    }

    fn start(mode: Option<Mode>, leave: Option<u8>) -> Self {
        let (sender, received) = channel(PIECES);
        // A thread, because reading cannot be cancelled; it ends with the process.
        std::thread::spawn(move || read_typed(stdin().lock(), leave, &sender));
        Self { received, mode }
    }

    /// Whether the input comes from a terminal whose mode was changed.
    pub(super) fn is_terminal(&self) -> bool {
        self.mode.is_some()
    }

    /// The next piece; `None` at the end of input and when the user leaves.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.received.recv().await
    }
}

/// No lines, no echo: each byte is read at once.
fn by_key(mode: &mut libc::termios) {
    mode.c_lflag &= !(libc::ICANON | libc::ECHO);
    mode.c_cc[libc::VMIN] = 1;
    mode.c_cc[libc::VTIME] = 0;
}

fn read_typed(mut input: impl Read, leave: Option<u8>, pieces: &Sender<Vec<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        let typed = match input.read(&mut buffer) {
            Ok(len) => &buffer[..len],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let leaves = typed.is_empty() || leave.is_some_and(|key| typed.contains(&key));
        if leaves || pieces.blocking_send(typed.to_vec()).is_err() {
            return;
        }
    }
}

/// Columns and rows of the terminal that is standard input; `None` if it is no terminal, or one
/// without a size.
pub(super) fn size() -> Option<(u16, u16)> {
    let mut size = MaybeUninit::<libc::winsize>::uninit();
    // SAFETY: the pointer is to a winsize of our own, which the call may fill.
    if unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCGWINSZ, size.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call above succeeded, so it is filled.
    let size: libc::winsize = unsafe { size.assume_init() };
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
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

    fn sent(typed: &[u8], leave: Option<u8>) -> Vec<Vec<u8>> {
        let (sender, mut received) = channel(PIECES);
        read_typed(typed, leave, &sender);
        drop(sender);
        std::iter::from_fn(|| received.try_recv().ok()).collect()
    }

    #[test]
    fn typing_is_sent_until_the_user_leaves() {
        assert_eq!(sent(b"ls\n", Some(LEAVE)), [b"ls\n"]);
        assert_eq!(sent(b"half a line\x1d", Some(LEAVE)), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn piped_input_has_no_key_to_leave_by() {
        assert_eq!(sent(b"a\x1db", None), [b"a\x1db"]);
    }
}
