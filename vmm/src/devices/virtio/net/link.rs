//! The host's side of an interface.

use std::io;
use std::os::fd::RawFd;

/// Moves whole Ethernet frames; none of its calls waits.
pub(super) trait Link: Send {
    /// Its file, whose changes to readable and writable are events.
    fn fd(&self) -> RawFd;

    /// Receives a frame into `frame`. Returns its length, or `None` if there is none now.
    ///
    /// # Errors
    /// The link is gone.
    fn receive(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends a frame, or as much of it as the link takes now. Must not be called while
    /// [`Self::flush`] returns `false`.
    ///
    /// # Errors
    /// The link is gone.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Sends what is left of a frame. Returns true if nothing is left.
    ///
    /// # Errors
    /// The link is gone.
    fn flush(&mut self) -> io::Result<bool>;
}
