//! A folder of this user alone: for sockets' locks, and links to the sockets of services.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Owner only.
const MODE: u32 = 0o700;
/// Bits of a mode that give others access.
const OTHERS: u32 = 0o077;

/// Why there is no such folder.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeFolderError {
    /// It exists, and another user could write to it.
    #[error(
        "{path} is not a folder of this user alone (owner {owner}, mode {mode:o}): remove it, or set XDG_RUNTIME_DIR"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It cannot be made or looked at.
    #[error("{path}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
}

/// Returns the folder of the user's session: `$XDG_RUNTIME_DIR`, or without that variable
/// `/run/user/UID`, which pam_systemd(8) makes and removes. A service that was started without the
/// variable is found by clients that have it. `None` if there is neither: in `/run/user` no other
/// user can take the name first, in `/tmp` one can.
pub(crate) fn of_session() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    given.filter(|folder| folder.is_absolute()).or_else(|| {
        let usual = PathBuf::from(format!("/run/user/{}", crate::user::id()));
        is_own(&usual).then_some(usual)
    })
}

fn is_own(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| is_alone(&found))
}

/// Returns true for a folder of this user alone.
fn is_alone(found: &fs::Metadata) -> bool {
    let mode = found.permissions().mode();
    found.is_dir() && found.uid() == crate::user::id() && mode & OTHERS == 0
}

/// Returns the folder, made if need be: `exoprobe` in the session's ([`of_session`]), or
/// `/tmp/exoprobe-UID`. In `/tmp` anyone may make a folder of that name first, so its owner and
/// mode are checked.
///
/// # Errors
/// [`RuntimeFolderError`].
pub(crate) fn runtime_folder() -> Result<PathBuf, RuntimeFolderError> {
    let path = match of_session() {
        Some(folder) => folder.join("exoprobe"),
        None => PathBuf::from(format!("/tmp/exoprobe-{}", crate::user::id())),
    };
    own(&path)?;
    Ok(path)
}

/// Makes a folder, or checks that it is this user's alone.
fn own(path: &Path) -> Result<(), RuntimeFolderError> {
    let failed = |source| RuntimeFolderError::Io { path: path.to_owned(), source };
    match DirBuilder::new().mode(MODE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    // Not through a link, which could be changed after this look.
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if is_alone(&found) {
        return Ok(());
    }
    let mode = found.permissions().mode();
    Err(RuntimeFolderError::Foreign {
        path: path.to_owned(),
        owner: found.uid(),
        mode: mode & 0o7777,
    })
}

/// A link to a service's socket, by which [`sockets`] finds it. Removed on drop.
#[derive(Debug)]
pub(crate) struct Link(PathBuf);

impl Link {
    /// Links to `socket`. Links to the same path, and to those that are no more, go.
    ///
    /// # Errors
    /// [`RuntimeFolderError`].
    pub(crate) fn new(socket: &Path) -> Result<Self, RuntimeFolderError> {
        link_in(&runtime_folder()?, socket)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Another service may have removed it already.
        let _ = fs::remove_file(&self.0);
    }
}

fn link_in(folder: &Path, socket: &Path) -> Result<Link, RuntimeFolderError> {
    let failed = |source| RuntimeFolderError::Io { path: folder.to_owned(), source };
    let socket = std::path::absolute(socket).map_err(failed)?;
    for (link, target) in links(folder).map_err(failed)? {
        if target == socket || fs::symlink_metadata(&target).is_err() {
            let _ = fs::remove_file(link);
        }
    }
    // No other process has its number, and the inode is in use.
    let inode = fs::symlink_metadata(&socket).map_err(failed)?.ino();
    let link = folder.join(format!("service-{}-{inode}", std::process::id()));
    symlink(&socket, &link).map_err(failed)?;
    Ok(Link(link))
}

/// The links in a folder, with what they lead to.
fn links(folder: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Whatever is no link, or has gone meanwhile, is none.
        if let Ok(target) = fs::read_link(&path) {
            found.push((path, target));
        }
    }
    Ok(found)
}

/// The sockets of this user's services, live or stale, and `default` if it is there.
///
/// # Errors
/// [`RuntimeFolderError`].
pub(crate) fn sockets(default: &Path) -> Result<BTreeSet<PathBuf>, RuntimeFolderError> {
    sockets_in(&runtime_folder()?, default)
}

fn sockets_in(folder: &Path, default: &Path) -> Result<BTreeSet<PathBuf>, RuntimeFolderError> {
    let failed = |source| RuntimeFolderError::Io { path: folder.to_owned(), source };
    let linked = links(folder).map_err(failed)?.into_iter().map(|(_, target)| target);
    let is_socket = |path: &PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
    };
    Ok(linked.chain([default.to_owned()]).filter(is_socket).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_by_their_links_and_stay_when_they_are_dead() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [one, other, default] =
            ["one", "other", "default"].map(|name| elsewhere.path().join(name));
        let listeners = [&one, &other, &default].map(|path| UnixListener::bind(path).unwrap());
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let found = || -> Vec<String> {
            sockets_in(dir.path(), &default).unwrap().into_iter().map(name).collect()
        };
        assert_eq!(found(), ["default"]);
        let first = link_in(dir.path(), &one).unwrap();
        let second = link_in(dir.path(), &other).unwrap();
        fs::write(dir.path().join("start.lock"), "").unwrap();
        assert_eq!(found(), ["default", "one", "other"]);
        drop(listeners);
        assert_eq!(found().len(), 3, "dead, and there");
        std::mem::forget(second);
        fs::remove_file(&other).unwrap();
        drop(first);
        assert_eq!(found(), ["default"]);
        assert_eq!(links(dir.path()).unwrap().len(), 1, "left by a service that was killed");
        let _again = link_in(dir.path(), &one).unwrap();
        assert_eq!(links(dir.path()).unwrap().len(), 1, "and taken away by the next");
        // A socket in place of another.
        fs::remove_file(&one).unwrap();
        let _listener = UnixListener::bind(&one).unwrap();
        let _anew = link_in(dir.path(), &one).unwrap();
        assert_eq!(found(), ["default", "one"]);
        assert_eq!(links(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own");
        own(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        own(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = own(&path).unwrap_err().to_string();
        assert!(refused.contains("mode 777") && refused.contains("XDG_RUNTIME_DIR"), "{refused}");
    }

    #[test]
    fn a_link_to_a_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("own"), dir.path().join("link"));
        own(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(own(&link), Err(RuntimeFolderError::Foreign { .. })));
    }
}
