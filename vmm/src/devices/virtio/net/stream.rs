//! A stream of frames to a network stack in another process, each after its length, 32 bits
//! big-endian: the socket of passt and of QEMU's `-netdev stream`.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;

use super::link::Link;
use super::{FRAME_MAX, NetError};
use crate::devices::virtio::unix::connect_now;

/// Bytes of a frame's length.
const LENGTH: usize = 4;
/// Bytes read at a time, at least a frame.
const CHUNK: usize = FRAME_MAX + LENGTH;

/// The stream, and what of it is not a whole frame yet.
pub(super) struct Stream<S = UnixStream> {
    socket: S,
    /// Read, of which `..received` is used up to `taken`.
    read: Vec<u8>,
    taken: usize,
    received: usize,
    /// To be sent, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
}

impl Stream {
    /// Connects to the network stack that listens at `path`.
    ///
    /// # Errors
    /// [`NetError::Connect`], [`NetError::Busy`].
    pub(super) fn connect(path: &Path) -> Result<Self, NetError> {
        let failed = |errno: Errno| match errno {
            Errno::AGAIN => NetError::Busy(path.to_owned()),
            errno => NetError::Connect { path: path.to_owned(), source: errno.into() },
        };
        // Without waiting: one that does not accept has another machine.
        Ok(Self::new(connect_now(path).map_err(failed)?))
    }
}

impl<S: Read + Write> Stream<S> {
    fn new(socket: S) -> Self {
        let (read, unsent) = (vec![0; CHUNK], Vec::new());
        Self { socket, read, taken: 0, received: 0, unsent, sent: 0 }
    }

    /// The next whole frame that has been read.
    fn buffered(&mut self) -> io::Result<Option<&[u8]>> {
        let held = &self.read[self.taken..self.received];
        let Some((length, rest)) = held.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let len = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if len > FRAME_MAX {
            let text = format!("a frame of {len} bytes: the peer does not speak this protocol");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let frame = rest.get(..len);
        if frame.is_some() {
            self.taken += LENGTH + len;
        }
        Ok(frame)
    }

    /// Reads more. Returns false if there is nothing now.
    fn fill(&mut self) -> io::Result<bool> {
        self.read.copy_within(self.taken..self.received, 0);
        (self.taken, self.received) = (0, self.received - self.taken);
        match self.socket.read(&mut self.read[self.received..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.received += len;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn next(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            if let Some(found) = self.buffered()? {
                // The caller's buffer has FRAME_MAX bytes.
                let len = found.len().min(frame.len());
                frame[..len].copy_from_slice(&found[..len]);
                return Ok(Some(len));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    fn push(&mut self, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).expect("at most FRAME_MAX");
        self.unsent.extend(length.to_be_bytes());
        self.unsent.extend(frame);
        self.write_unsent().map(drop)
    }

    fn write_unsent(&mut self) -> io::Result<bool> {
        while self.sent < self.unsent.len() {
            match self.socket.write(&self.unsent[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(true)
    }
}

impl Link for Stream {
    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn receive(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        self.next(frame)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.push(frame)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.write_unsent()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::unix::net::UnixListener;

    use proptest::prelude::*;

    use super::*;

    /// Gives and takes at most so many bytes at a time, and is not ready every other time.
    struct Slow {
        bytes: VecDeque<u8>,
        at_a_time: usize,
        ready: bool,
    }

    impl Slow {
        fn turn(&mut self) -> io::Result<usize> {
            self.ready = !self.ready;
            if self.ready { Ok(self.at_a_time) } else { Err(io::ErrorKind::WouldBlock.into()) }
        }
    }

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = self.turn()?.min(buf.len());
            self.bytes.read(&mut buf[..len])
        }
    }

    impl Write for Slow {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let len = self.turn()?.min(buf.len());
            self.bytes.write(&buf[..len])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow(bytes: VecDeque<u8>, at_a_time: usize) -> Stream<Slow> {
        Stream::new(Slow { bytes, at_a_time, ready: false })
    }

    proptest! {
        /// However the stream is cut up, the frames arrive as they were sent.
        #[test]
        fn frames_arrive_as_they_were_sent(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            at_a_time in 1_usize..300,
        ) {
            let mut from = slow(VecDeque::new(), at_a_time);
            for frame in &frames {
                from.push(frame).unwrap();
                while !from.write_unsent().unwrap() {}
            }
            let mut to = slow(from.socket.bytes, at_a_time);
            let mut buffer = vec![0; FRAME_MAX];
            let mut found = Vec::new();
            let ended = loop {
                match to.next(&mut buffer) {
                    Ok(Some(len)) => found.push(buffer[..len].to_vec()),
                    Ok(None) => {}
                    Err(error) => break error.kind(),
                }
            };
            prop_assert_eq!(ended, io::ErrorKind::UnexpectedEof);
            prop_assert_eq!(found, frames);
        }
    }

    #[test]
    fn a_frame_that_is_too_long_ends_the_link() {
        let bytes = u32::try_from(FRAME_MAX + 1).unwrap().to_be_bytes();
        let mut stream = slow(VecDeque::from(bytes.to_vec()), 100);
        let error = stream.next(&mut vec![0; FRAME_MAX]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }

    #[test]
    fn no_network_stack_is_an_error_that_names_the_socket() {
        let error = Stream::connect(Path::new("/nonexistent/passt")).err().unwrap().to_string();
        assert!(error.starts_with("network socket /nonexistent/passt: No such file"), "{error}");
        assert!(error.contains("passt --socket /nonexistent/passt"), "{error}");
    }

    #[test]
    fn a_network_stack_that_accepts_none_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stack");
        let _listener = UnixListener::bind(&path).unwrap();
        let waiting = std::iter::repeat_with(|| Stream::connect(&path)).take(1 << 14);
        let connected: Result<Vec<_>, _> = waiting.collect();
        let error = connected.err().unwrap().to_string();
        assert!(error.ends_with("serves one virtual machine: start one for each"), "{error}");
    }
}
