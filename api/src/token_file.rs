//! Files that hold a token.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Longest file, in bytes.
const SIZE_MAX: u64 = 4096;

/// Why a token cannot be taken from a file.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read the token file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// Others than its owner have access.
    #[error(
        "the token file {path} has mode {mode:04o}: others may read or change it; run `chmod 600 {path}`, and make a new token"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is no token.
    #[error("the token file {0} has more than {SIZE_MAX} bytes")]
    TooLarge(PathBuf),
}

/// The text of a token file, to which only its owner may have access.
pub(crate) fn read(path: &Path) -> Result<String, TokenFileError> {
    let failed = |source| TokenFileError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(TokenFileError::Open { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    let len = file.take(SIZE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if len as u64 > SIZE_MAX {
        return Err(TokenFileError::TooLarge(path.to_owned()));
    }
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_token_is_read_from_a_file_that_no_other_user_can_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "correct-horse-battery\n").unwrap();
        for mode in [0o644, 0o640, 0o602] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err();
            assert!(matches!(error, TokenFileError::Open { mode: found, .. } if found == mode));
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).unwrap(), "correct-horse-battery");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(matches!(read(&path), Err(TokenFileError::TooLarge(_))));
        assert!(matches!(read(&dir.path().join("none")), Err(TokenFileError::Io { .. })));
    }
}
