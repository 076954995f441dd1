//! The line by which a client of the host's asks for a port of the guest's: `CONNECT PORT`.

use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// The longest line, with its end.
const LINE_MAX: usize = b"CONNECT 4294967295\n".len();

/// The state of a line that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// More is to come.
    Partial,
    /// The port, which is in a whole line.
    Port(u32),
    /// It is no such line, or the client is gone.
    Invalid,
}

/// A client that has not asked yet.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) stream: UnixStream,
    line: Vec<u8>,
}

impl Greeting {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, line: Vec::new() }
    }

    /// Reads what is there of the line, and nothing after it.
    pub(super) fn read(&mut self) -> Line {
        loop {
            let mut bytes = [0; LINE_MAX];
            let free = &mut bytes[self.line.len()..];
            let found = match recv(&self.stream, &mut *free, RecvFlags::PEEK) {
                Ok((_, 0)) => return Line::Invalid,
                Ok((_, len)) => len,
                Err(Errno::AGAIN) => return Line::Partial,
                Err(Errno::INTR) => continue,
                Err(_) => return Line::Invalid,
            };
            let end = free[..found].iter().position(|byte| *byte == b'\n');
            let len = end.map_or(found, |end| end + 1);
            // They are there: nothing else reads this socket.
            match recv(&self.stream, &mut free[..len], RecvFlags::empty()) {
                Ok((_, read)) if read == len => self.line.extend(&free[..len]),
                _ => return Line::Invalid,
            }
            match end {
                Some(_) => return port(&self.line).map_or(Line::Invalid, Line::Port),
                None if self.line.len() == LINE_MAX => return Line::Invalid,
                None => {}
            }
        }
    }
}

/// The port of a line.
fn port(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let digits = line.strip_prefix("CONNECT ")?;
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    // The highest number means any port.
    digits.parse().ok().filter(|port| all_digits && *port != u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    fn pair() -> (UnixStream, Greeting) {
        let (client, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        (client, Greeting::new(stream))
    }

    #[test]
    fn a_line_is_read_in_parts_and_nothing_after_it() {
        let (mut client, mut greeting) = pair();
        assert_eq!(greeting.read(), Line::Partial);
        for part in ["CON", "NECT 4294967", "294"] {
            client.write_all(part.as_bytes()).unwrap();
            assert_eq!(greeting.read(), Line::Partial, "{part}");
        }
        client.write_all(b"\nGET /").unwrap();
        assert_eq!(greeting.read(), Line::Port(u32::MAX - 1));
        let mut rest = [0; 5];
        greeting.stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"GET /");
    }

    #[test]
    fn what_is_no_such_line_is_refused() {
        for text in [
            "\n",
            "CONNECT \n",
            "CONNECT +5\n",
            "CONNECT 4294967295\n",
            "CONNECT 4294967296\n",
            "connect 5\n",
            "CONNECT 5 \n",
            "CONNECT 00000000000000000005",
            "CONNECT \u{e9}\n",
        ] {
            let (mut client, mut greeting) = pair();
            client.write_all(text.as_bytes()).unwrap();
            assert_eq!(greeting.read(), Line::Invalid, "{text}");
        }
        let (client, mut greeting) = pair();
        drop(client);
        assert_eq!(greeting.read(), Line::Invalid);
    }

    #[test]
    fn a_port_is_a_decimal_number() {
        assert_eq!(port(b"CONNECT 0\n"), Some(0));
        assert_eq!(port(b"CONNECT 52\r\n"), None);
    }
}
