//! The output of a serial port or another writer: the last MiB, addressed by offset since its
//! start.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const CAPACITY: usize = 1 << 20;

#[derive(Default)]
struct Tail {
    bytes: VecDeque<u8>,
    /// Offset of the byte after the last.
    end: u64,
}

/// A bounded log that readers follow at their own pace.
#[derive(Default)]
pub struct OutputLog {
    tail: Mutex<Tail>,
    grown: Condvar,
}

/// Bytes read from an [`OutputLog`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the first byte; above the requested one if older bytes are gone.
    pub start: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Chunk {
    /// Offset for the next read.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl OutputLog {
    /// Appends bytes. The oldest beyond the last MiB are gone.
    pub fn append(&self, bytes: &[u8]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let excess = (tail.bytes.len() + bytes.len()).saturating_sub(CAPACITY);
        let drop = excess.min(tail.bytes.len());
        tail.bytes.drain(..drop);
        tail.bytes.extend(bytes);
        tail.end += bytes.len() as u64;
        self.grown.notify_all();
    }

    /// Offset after the last byte written.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).end
    }

    /// All kept bytes from `offset` on, at once.
    #[must_use]
    pub fn read(&self, offset: u64) -> Chunk {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        Self::chunk(&tail, offset)
    }

    /// As [`Self::read`], but waits up to `timeout` for at least one byte.
    #[must_use]
    pub fn wait(&self, offset: u64, timeout: Duration) -> Chunk {
        let deadline = Instant::now() + timeout;
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        while tail.end <= offset {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            let woken = self.grown.wait_timeout(tail, left);
            tail = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Self::chunk(&tail, offset)
    }

    fn chunk(tail: &Tail, offset: u64) -> Chunk {
        let first = tail.end - tail.bytes.len() as u64;
        let start = offset.clamp(first, tail.end);
        let skip = usize::try_from(start - first).expect("at most the capacity");
        Chunk { start, bytes: tail.bytes.iter().skip(skip).copied().collect() }
    }

    /// Waits for a complete line that `accept`s, from `offset` on. Returns it without its line end,
    /// with the offset after it; `None` if `timeout` passes first.
    #[must_use]
    pub fn wait_line(
        &self,
        mut offset: u64,
        timeout: Duration,
        accept: impl Fn(&str) -> bool,
    ) -> Option<(String, u64)> {
        let deadline = Instant::now() + timeout;
        loop {
            let chunk = self.read(offset);
            let mut at = chunk.start;
            for line in chunk.bytes.split_inclusive(|b| *b == b'\n') {
                if line.last() != Some(&b'\n') {
                    break;
                }
                at += line.len() as u64;
                let text = String::from_utf8_lossy(line);
                let text = text.trim_end_matches(['\r', '\n']);
                if accept(text) {
                    return Some((text.to_owned(), at));
                }
            }
            offset = at;
            let left = deadline.checked_duration_since(Instant::now())?;
            let _ = self.wait(chunk.end(), left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_bytes_go_and_offsets_stay_true() {
        let log = OutputLog::default();
        log.append(&vec![b'a'; CAPACITY]);
        log.append(b"bcd");
        let chunk = log.read(0);
        assert_eq!((chunk.start, chunk.bytes.len()), (3, CAPACITY));
        assert_eq!(log.read(CAPACITY as u64 + 1).bytes, b"cd");
        assert_eq!(log.read(u64::MAX).bytes, b"");
    }

    #[test]
    fn a_line_is_given_once_whole() {
        let log = OutputLog::default();
        log.append(b"noise\r\ndone get");
        let none = log.wait_line(0, Duration::ZERO, |l| l.starts_with("done"));
        assert_eq!(none, None, "half a line is none");
        log.append(b"pid 3\n");
        let found = log.wait_line(0, Duration::ZERO, |l| l.starts_with("done"));
        assert_eq!(found, Some(("done getpid 3".to_owned(), 21)));
        assert_eq!(log.wait_line(21, Duration::ZERO, |_| true), None);
    }
}
