//! Terminals: bytes that come back, and their size.

use super::{Failure, Name, Outcome, call, named};
use crate::sys::{self, Fd};

const O_RDWR_NOCTTY: usize = 0o402;
/// Between two looks at a size, in milliseconds.
const LOOK: u64 = 20;

/// Writes a dot to a terminal, then each byte that comes from it, so many.
pub(crate) fn echo(path: &[u8], count: u64) -> Outcome {
    let mut done = 0;
    let result = with_terminal(path, |terminal| {
        call("ioctl", sys::make_raw(terminal))?;
        call("write", sys::write_all(terminal, b"."))?;
        let mut buffer = [0; 256];
        while done < count {
            let left = usize::try_from(count.saturating_sub(done)).unwrap_or(usize::MAX);
            let room = buffer.len().min(left);
            let read =
                call("read", sys::read(terminal, buffer.get_mut(..room).unwrap_or_default()))?;
            call("write", sys::write_all(terminal, buffer.get(..read).unwrap_or_default()))?;
            done = done.saturating_add(read as u64);
        }
        call("ioctl", sys::drain(terminal))
    });
    Outcome { done, failure: result.err() }
}

/// Waits until a terminal has so many columns; the count is that of its rows.
pub(crate) fn winsize(path: &[u8], columns: u64) -> Outcome {
    let mut rows = 0;
    let result = with_terminal(path, |terminal| {
        loop {
            let size = call("ioctl", sys::window_size(terminal))?;
            if u64::from(size.columns) == columns {
                rows = u64::from(size.rows);
                return Ok(());
            }
            call("nanosleep", sys::sleep_ms(LOOK))?;
        }
    });
    Outcome { done: rows, failure: result.err() }
}

fn with_terminal(path: &[u8], work: impl FnOnce(Fd) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut name = [0; size_of::<Name>()];
    let terminal = call("openat", sys::open(named(path, &mut name)?, O_RDWR_NOCTTY))?;
    let result = work(terminal);
    call("close", sys::close(terminal)).and(result)
}
