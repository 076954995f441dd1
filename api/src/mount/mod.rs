//! A service's tracefs as files of this host, by FUSE.
//!
//! The files are those of `/v1/tracefs`, which folders list; none of them is known here by name
//! but `trace_pipe` and `trace_pipe_raw`, which have no end. Nothing is kept but what folders were
//! like a moment ago, for the parts of paths: each listing of a folder, each reading of a file and
//! each write is a request of its own.

mod caller;
#[cfg(any(test, feature = "testing"))]
mod driven;
mod entry;
mod errno;
mod error;
mod fs;
mod handles;
mod inodes;
mod lines;
mod listings;
mod path;
mod pipe;
mod point;
mod raw;
mod remote;
mod tree;

use std::fs::OpenOptions;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, Session};
use nix::unistd::{getgid, getuid};
use tokio::sync::watch;

use crate::client::{Client, ClientError};
#[cfg(any(test, feature = "testing"))]
pub use driven::DrivenMount;
use error::DEVICE;
pub(crate) use error::MountError;
use fs::TraceFs;
use path::TracePath;
use point::{Mount, SOURCE};
use remote::{LIMIT, Remote};
use tree::Tree;

/// HTTP status of what is not there.
const NOT_FOUND: u16 = 404;
/// Time for programs that use a mount to let go of it at its end.
const LETTING_GO: Duration = Duration::from_secs(1);
/// Between two tries to unmount.
const TRY: Duration = Duration::from_millis(50);

/// A mounted service. It stays mounted until [`Mounted::unmount`].
pub(crate) struct Mounted {
    point: PathBuf,
    mount: Option<Mount>,
    /// Never dropped: that would unmount what is at the mount point, and another mount may be there
    /// by then.
    _session: ManuallyDrop<BackgroundSession>,
    closing: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmounted {
    /// Nobody used it any more.
    Clean,
    /// Somebody still did, and gets errors from now on.
    InUse,
}

impl Mounted {
    /// Mounts the service of `client` on an empty folder. `notice` reports what else was done.
    /// Needs tokio's runtime, which answers from then on.
    ///
    /// # Errors
    /// [`MountError`]: nothing is mounted then.
    pub(crate) async fn new(
        client: Client,
        folder: &Path,
        notice: impl FnOnce(String),
    ) -> Result<Self, MountError> {
        let point = point::resolve(folder)?;
        if point::prepare(&point)? {
            notice(format!("took away the mount that a process left on {}", point.display()));
        }
        check_device(Path::new(DEVICE))?;
        check_service(&client).await?;
        let (closing, closes) = watch::channel(false);
        let (ends, ended) = watch::channel(false);
        let owner = (getuid().as_raw(), getgid().as_raw());
        let fs = TraceFs::new(Tree::new(Remote::new(client), owner), closes, ends);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(SOURCE.to_owned()), MountOption::NoExec];
        let failed = |source| MountError::Mount { point: point.clone(), source };
        let session = Session::new(fs, &point, &config).and_then(Session::spawn).map_err(failed)?;
        let session = ManuallyDrop::new(session);
        let mount = Mount::at(&point).inspect_err(|_| drop(point::unmount(&point, true)))?;
        Ok(Self { point, mount, _session: session, closing, ended })
    }

    /// Where it is mounted.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// Waits until another process has unmounted it.
    pub(crate) async fn ended(&mut self) {
        // An error means that the session is gone, too.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }

    /// Ends reads that wait, and unmounts.
    ///
    /// # Errors
    /// [`MountError`] when it is still mounted.
    pub(crate) async fn unmount(self) -> Result<Unmounted, MountError> {
        self.closing.send_replace(true);
        let begun = Instant::now();
        loop {
            // By now another mount may be there.
            if *self.ended.borrow() || Mount::at(&self.point)? != self.mount {
                return Ok(Unmounted::Clean);
            }
            match point::unmount(&self.point, false) {
                Err(MountError::Busy(_)) if begun.elapsed() < LETTING_GO => {
                    tokio::time::sleep(TRY).await;
                }
                Err(MountError::Busy(_)) => {
                    point::unmount(&self.point, true)?;
                    return Ok(Unmounted::InUse);
                }
                done => return done.map(|()| Unmounted::Clean),
            }
        }
    }
}

/// Takes a mount away whose process may be gone.
///
/// # Errors
/// [`MountError`]
pub(crate) fn take_away(folder: &Path) -> Result<(), MountError> {
    point::take_away(&point::resolve(folder)?)
}

fn check_device(device: &Path) -> Result<(), MountError> {
    match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => Ok(()),
        Err(error) => Err(device_error(error)),
    }
}

fn device_error(error: io::Error) -> MountError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => MountError::NoDevice(error),
        _ => MountError::Device(error),
    }
}

/// Whether the service is there, and has a tracefs.
async fn check_service(client: &Client) -> Result<(), MountError> {
    let root = TracePath::root();
    let listing = tokio::time::timeout(LIMIT, remote::list(client, &root)).await;
    match listing.map_err(|_| MountError::NoAnswer)? {
        Ok(_) => Ok(()),
        Err(ClientError::Refused(problem)) if problem.status == NOT_FOUND => {
            Err(MountError::NoTracefs)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Target;
    use crate::client::testing::Fake;

    #[test]
    fn a_device_that_is_missing_or_closed_is_told_apart() {
        let missing = check_device(Path::new("/nonexistent/fuse")).unwrap_err();
        assert!(missing.to_string().contains("modprobe fuse"), "{missing}");
        let no_driver = device_error(io::Error::from_raw_os_error(libc::ENODEV));
        assert!(matches!(no_driver, MountError::NoDevice(_)));
        let closed = device_error(io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert!(closed.contains("Permission denied") && closed.contains("this user"), "{closed}");
        check_device(Path::new("/dev/null")).unwrap();
    }

    #[tokio::test]
    async fn the_service_is_asked_before() {
        let nobody = Client::new(Target::Unix("/nonexistent/socket".into()), None).unwrap();
        let error = check_service(&nobody).await.unwrap_err();
        assert!(matches!(error, MountError::Service(ClientError::Connect { .. })), "{error}");
        let without = Fake::text("/v1/vm", "{}");
        let error = check_service(&without.client()).await.unwrap_err();
        assert!(matches!(error, MountError::NoTracefs), "{error}");
        let with = Fake::text("/v1/tracefs", r#"{"entries":[]}"#);
        check_service(&with.client()).await.unwrap();
    }
}
