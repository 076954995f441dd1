//! The host's sides: the socket that clients connect to, and those that the guest's connections
//! lead to.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, RenameFlags, fchmod, renameat_with};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, listen};

use super::VsockError;
use crate::devices::virtio::unix::{connect_now, stream_socket};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;
/// The folder in which a socket is looked at that no process listens at any more.
const ASIDE: &str = ".exoprobe-";

/// The way to the host's processes. No call waits.
pub(super) trait Host: Send {
    /// The file that is readable when a client is there.
    fn fd(&self) -> RawFd;
    /// The next client; [`io::ErrorKind::WouldBlock`] if there is none.
    fn accept(&mut self) -> io::Result<UnixStream>;
    /// Connects to the process that listens for the guest's connections to `port`.
    fn connect(&mut self, port: u32) -> io::Result<UnixStream>;
}

/// The socket, whose file is removed on drop, unless another has taken its place.
pub(super) struct HostSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: Identity,
}

/// Device, inode, and the time it was made: inodes are used again at once.
type Identity = (u64, u64, i64, i64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

impl HostSocket {
    /// Listens at `path`, for this user only, in place of a socket that no process listens at.
    ///
    /// # Errors
    /// [`VsockError`].
    pub(super) fn open(path: &Path) -> Result<Self, VsockError> {
        let failed = |source| VsockError::Socket { path: path.to_owned(), source };
        let listener = match listen_at(path) {
            Err(Errno::ADDRINUSE) => {
                remove_unused(path)?;
                listen_at(path)
            }
            made => made,
        };
        let listener = listener.map_err(|errno| failed(errno.into()))?;
        let identity = identity(&fs::symlink_metadata(path).map_err(failed)?);
        Ok(Self { listener, path: path.to_owned(), identity })
    }
}

impl Host for HostSocket {
    fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    fn accept(&mut self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn connect(&mut self, port: u32) -> io::Result<UnixStream> {
        let mut path = OsString::from(&self.path);
        path.push(format!("_{port}"));
        Ok(connect_now(Path::new(&path))?)
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        let is_own =
            fs::symlink_metadata(&self.path).is_ok_and(|it| identity(&it) == self.identity);
        if is_own && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket of vsock");
        }
    }
}

fn listen_at(path: &Path) -> Result<UnixListener, Errno> {
    let socket = stream_socket()?;
    // Linux gives the file the mode that the socket has when it is bound: it is never open to
    // others.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket that no process listens at. What is looked at is moved away first: another
/// machine that does the same at this moment may have replaced it, and gets its own back.
fn remove_unused(path: &Path) -> Result<(), VsockError> {
    let failed = |source| VsockError::Socket { path: path.to_owned(), source };
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if !found.file_type().is_socket() {
        return Err(VsockError::NotASocket(path.to_owned()));
    }
    match connect_now(path) {
        Ok(_) | Err(Errno::AGAIN) => return Err(VsockError::InUse(path.to_owned())),
        Err(Errno::CONNREFUSED) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder = tempfile::Builder::new().prefix(ASIDE).tempdir_in(folder).map_err(failed)?;
    let aside = folder.path().join("socket");
    fs::rename(path, &aside).map_err(failed)?;
    let moved = fs::symlink_metadata(&aside).map_err(failed)?;
    if identity(&moved) != identity(&found) {
        renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE)
            .map_err(|errno| failed(errno.into()))?;
        return Err(VsockError::InUse(path.to_owned()));
    }
    // The folder goes with the socket in it.
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_socket_is_its_owners_and_goes_with_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let socket = HostSocket::open(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = HostSocket::open(&path).err().unwrap().to_string();
        assert_eq!(
            error,
            format!(
                "vsock socket {}: in use; each virtual machine needs a socket of its own",
                path.display()
            )
        );
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_a_killed_machine_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = HostSocket::open(&path).unwrap();
        assert!(connect_now(&path).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "and nothing else is left");
    }

    #[test]
    fn the_file_of_another_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        fs::write(&path, "precious").unwrap();
        let error = HostSocket::open(&path).err().unwrap().to_string();
        assert!(error.contains("a file is there that is no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        let socket = HostSocket::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        drop(socket);
        assert_eq!(fs::read(&path).unwrap(), b"another");
        let nowhere = HostSocket::open(Path::new("/nonexistent/v")).err().unwrap().to_string();
        assert!(nowhere.starts_with("vsock socket /nonexistent/v: No such file"), "{nowhere}");
    }

    #[test]
    fn a_port_of_the_guests_has_a_socket_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let mut socket = HostSocket::open(&path).unwrap();
        assert_eq!(socket.connect(7).err().unwrap().kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(dir.path().join("v_7")).unwrap();
        assert!(socket.connect(7).is_ok());
        assert_eq!(socket.accept().err().unwrap().kind(), io::ErrorKind::WouldBlock);
        let _client = connect_now(&path).unwrap();
        assert!(socket.accept().is_ok());
    }
}
