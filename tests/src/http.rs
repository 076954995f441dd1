//! Requests as a stranger would write them, byte by byte: HTTP/1.0, so that an answer ends with its
//! connection.

use std::io::{Read, Write};
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
    /// When it is no HTTP, or does not come within [`PATIENCE`].
    #[must_use]
    pub fn read(mut from: impl Read) -> Self {
        let mut bytes = Vec::new();
        // A server that answers early and closes may reset the rest; what came counts.
        let _ = from.read_to_end(&mut bytes);
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
/// When nobody listens.
#[must_use]
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("the service listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
    stream
}

/// One request, one answer.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn ask(socket: &Path, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut stream = connect(socket);
    // As above: the answer may come before the whole body went.
    let _ = stream.write_all(&request(method, path, headers, body));
    Answer::read(stream)
}
