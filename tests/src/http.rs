//! Requests as a stranger would write them, byte by byte: HTTP/1.0, so that an answer ends with its
//! connection.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::PATIENCE;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines, as they came.
    pub head: String,
    /// Body.
    pub body: String,
}

impl Answer {
    /// Reads an answer to its end.
    ///
    /// # Panics
    /// When it is no HTTP, is cut off, or does not come within [`PATIENCE`].
    #[must_use]
    pub fn read(mut from: impl Read) -> Self {
        let mut bytes = Vec::new();
        let end = from.read_to_end(&mut bytes);
        let shown = || String::from_utf8_lossy(&bytes);
        match end {
            Ok(_) => assert_ne!(is_whole(&bytes), Some(false), "cut off: {:?}", shown()),
            // A server that answers early, and closes before it has read all, may reset the
            // connection.
            Err(error) => assert!(
                is_closing(&error) && is_whole(&bytes) == Some(true),
                "{error} after {:?}",
                shown()
            ),
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Whether all of an answer is there; `None` when only the end of its connection can show it.
fn is_whole(bytes: &[u8]) -> Option<bool> {
    let Some(head_len) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
        return Some(false);
    };
    let head = String::from_utf8_lossy(&bytes[..head_len]).to_lowercase();
    if head.split(' ').nth(1) == Some("204") {
        return Some(true);
    }
    let declared = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let declared: usize = declared.trim().parse().unwrap_or_else(|e| panic!("{e}: {head}"));
    Some(bytes.len() - head_len - 4 == declared)
}

/// Whether an error only says that the server has closed the connection.
fn is_closing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// The bytes of a request.
#[must_use]
pub fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.0\r\nhost: exoprobe\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A connection to a unix socket.
///
/// # Panics
/// When the socket has no listener.
#[must_use]
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("the service listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time-out can be set");
    stream
}

/// One request, one answer.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn ask(socket: &Path, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut stream = connect(socket);
    if let Err(error) = stream.write_all(&request(method, path, headers, body)) {
        // The answer may come before the whole body went.
        assert!(is_closing(&error), "{method} {path}: {error}");
    }
    Answer::read(stream)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Gives bytes, then an error.
    struct Broken(Cursor<&'static [u8]>, ErrorKind);

    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(self.1.into()),
                len => Ok(len),
            }
        }
    }

    const WHOLE: &[u8] = b"HTTP/1.0 413 Too Large\r\nContent-Length: 2\r\n\r\n{}";
    const ENDLESS: &[u8] = b"HTTP/1.0 200 OK\r\n\r\nlines\n";
    const EMPTY: &[u8] = b"HTTP/1.0 204 No Content\r\n\r\n";

    fn status(from: impl Read) -> Option<u16> {
        let read = std::panic::AssertUnwindSafe(|| Answer::read(from).status);
        std::panic::catch_unwind(read).ok()
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        assert_eq!(status(WHOLE), Some(413));
        assert_eq!(status(ENDLESS), Some(200));
        assert_eq!(status(EMPTY), Some(204));
        for end in 0..WHOLE.len() {
            assert_eq!(status(&WHOLE[..end]), None, "{end}");
        }
    }

    #[test]
    fn only_a_reset_behind_a_whole_answer_is_no_error() {
        let broken = |bytes, kind| status(Broken(Cursor::new(bytes), kind));
        assert_eq!(broken(WHOLE, ErrorKind::ConnectionReset), Some(413));
        assert_eq!(broken(EMPTY, ErrorKind::BrokenPipe), Some(204));
        assert_eq!(broken(WHOLE, ErrorKind::WouldBlock), None);
        assert_eq!(broken(&WHOLE[..WHOLE.len() - 1], ErrorKind::ConnectionReset), None);
        assert_eq!(broken(ENDLESS, ErrorKind::ConnectionReset), None);
    }
}
