//! The unix socket: open to its owner only from the first moment, and never in another's place.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tokio::net::{UnixListener, UnixSocket};

use crate::runtime_folder::{Link, RuntimeFolderError, runtime_folder};

/// Owner only.
const MODE: u32 = 0o600;
/// Clients that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Longest path (sockaddr_un, less its NUL).
const PATH_MAX: usize = 107;
/// File in the runtime folder that services lock while they bind.
const LOCK: &str = "start.lock";
/// Longest wait for the lock. It is held for some system calls.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A server answers there.
    #[error(
        "{0} is in use (EADDRINUSE): another exoprobe is listening there; stop it, or choose another --socket"
    )]
    InUse(PathBuf),
    /// Something that is no socket is there.
    #[error("{0} exists and is no socket: it is left alone; choose another --socket")]
    NotASocket(PathBuf),
    /// The kernel takes no such path.
    #[error("the socket's path has {len} bytes and may have {PATH_MAX}: {path}")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        len: usize,
    },
    /// Another service of this user holds the lock.
    #[error(
        "{0} is locked: another exoprobe of this user has been starting for {LOCK_PATIENCE:?}; end it, then try again"
    )]
    Locked(PathBuf),
    /// There is no folder for the lock.
    #[error("cannot lock the start of services: {0}")]
    Folder(#[from] RuntimeFolderError),
    /// Anything else.
    #[error("cannot listen on {path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
}

/// A socket in the file system, removed on drop unless another has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
    /// For `exoprobe ls`.
    _link: Option<Link>,
}

impl SocketFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// Device, inode and the time it was made: inodes are used again at once.
type Identity = (u64, u64, (i64, i64));

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), (metadata.mtime(), metadata.mtime_nsec())))
}

/// Listens on `path`, in place of a stale socket there.
///
/// # Errors
/// [`SocketError`]: whatever was at `path` still is.
pub fn bind(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let len = path.as_os_str().len();
    if len > PATH_MAX {
        return Err(SocketError::TooLong { path: path.to_owned(), len });
    }
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    let _lock = lock()?;
    let bound = match listen(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            listen(path)
        }
        bound => bound,
    };
    let listener = bound.map_err(failed)?;
    let identity = identity(path).map_err(failed)?;
    let link = Link::new(path)
        .inspect_err(|error| tracing::warn!(%error, "`exoprobe ls` will not show this service"))
        .ok();
    Ok((listener, SocketFile { path: path.to_owned(), identity, _link: link }))
}

/// Holds off other services of this user: two that find the same stale socket must not each take
/// the other's new one for it. The lock is in a folder that no other user can open.
fn lock() -> Result<File, SocketError> {
    let path = runtime_folder()?.join(LOCK);
    let failed = |source| SocketError::Io { path: path.clone(), source };
    let file = File::options().create(true).append(true).mode(MODE).open(&path).map_err(failed)?;
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                return Err(SocketError::Locked(path));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_RETRY),
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // Linux gives the file the mode that the socket has before bind, so that it is never open to
    // others; a chmod after bind would leave a moment.
    let handle = File::from(socket.as_fd().try_clone_to_owned()?);
    handle.set_permissions(Permissions::from_mode(MODE))?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_and_goes_with_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, file) = bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert!(matches!(bind(&path), Err(SocketError::InUse(_))));
        drop((listener, file));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_the_new_one_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (old_listener, old_file) = bind(&path).unwrap();
        drop(old_listener);
        // File times are as coarse as the kernel's tick, 10 ms at most.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let (_listener, file) = bind(&path).unwrap();
        drop(old_file);
        assert!(path.exists(), "the old server's end does not take the new one's socket");
        assert_eq!(file.path(), path);
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plain");
        fs::write(&path, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(bind(&path), Err(SocketError::NotASocket(_))));
        assert!(matches!(bind(&link), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_lock_on_the_sockets_folder_by_another_holds_off_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let folder = File::open(dir.path()).unwrap();
        folder.lock().unwrap();
        assert!(bind(&dir.path().join("s")).is_ok());
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_says_why() {
        let long = PathBuf::from(format!("/tmp/{}", "a".repeat(200)));
        assert!(matches!(bind(&long), Err(SocketError::TooLong { len: 205, .. })));
        let nowhere = bind(Path::new("/nonexistent/s")).unwrap_err();
        assert!(nowhere.to_string().contains("/nonexistent/s"));
    }
}
