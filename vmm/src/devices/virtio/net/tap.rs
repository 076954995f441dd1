//! A tap interface of the host (Linux, Documentation/networking/tuntap.rst).

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;

use libc::{EBUSY, EINVAL, IFF_NO_PI, IFF_TAP, O_NONBLOCK, c_int, ifreq};
use rustix::net::netdevice::name_to_index;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

use super::NetError;
use super::link::Link;

ioctl_iow_nr!(TUNSETIFF, 0x54, 202, c_int);

/// The interface, one frame per read and write.
pub(super) struct Tap(File);

impl Tap {
    /// Opens an interface that exists.
    ///
    /// # Errors
    /// [`NetError`].
    pub(super) fn open(name: &str) -> Result<Self, NetError> {
        let failed = |source| NetError::Tap { name: name.to_owned(), source };
        // TUNSETIFF would make one, which no network is at.
        let any_socket = UnixDatagram::unbound().map_err(failed)?;
        name_to_index(&any_socket, name).map_err(|_| NetError::NoTap(name.to_owned()))?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(O_NONBLOCK);
        let file = options.open("/dev/net/tun").map_err(failed)?;
        // SAFETY: all-zero bytes are a valid `ifreq`.
        let mut request: ifreq = unsafe { std::mem::zeroed() };
        // An existing name fits, with its NUL.
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = i16::try_from(IFF_TAP | IFF_NO_PI).expect("0x1002");
        // SAFETY: TUNSETIFF reads an `ifreq`, which lives until it returns.
        if unsafe { ioctl_with_ref(&file, TUNSETIFF(), &request) } < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(EBUSY) => NetError::TapInUse(name.to_owned()),
                Some(EINVAL) => NetError::NotATap(name.to_owned()),
                _ => failed(error),
            });
        }
        Ok(Self(file))
    }
}

impl Link for Tap {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn receive(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0.read(frame) {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        match self.0.write(frame) {
            // A queue that is full drops the frame, as a wire does.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}
