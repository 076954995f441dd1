//! A folder of this user alone, for sockets' locks.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
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

/// Returns the folder, made if need be: `$XDG_RUNTIME_DIR/exoprobe`, or `/tmp/exoprobe-UID` without that
/// variable. In `/tmp` anyone may make a folder of that name first, so its owner and mode are checked.
///
/// # Errors
/// [`RuntimeFolderError`].
pub(crate) fn runtime_folder() -> Result<PathBuf, RuntimeFolderError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let path = match runtime.filter(|folder| folder.is_absolute()) {
        Some(folder) => folder.join("exoprobe"),
        None => PathBuf::from(format!("/tmp/exoprobe-{}", crate::user_id())),
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
    let mode = found.permissions().mode();
    if found.is_dir() && found.uid() == crate::user_id() && mode & OTHERS == 0 {
        return Ok(());
    }
    Err(RuntimeFolderError::Foreign {
        path: path.to_owned(),
        owner: found.uid(),
        mode: mode & 0o7777,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
