//! Paths that root opens for another user: that user's links lead it nowhere.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::error::JailError;
use super::reach::{Entry, Reach};

/// Most links on a way, as of Linux.
const LINKS_MAX: usize = 40;

/// Finds where an absolute path leads, through links of root's and the present user's alone. The
/// result has no links.
///
/// # Errors
/// [`JailError::Path`] and [`JailError::Link`].
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, JailError> {
    let failed = |source: io::Error| JailError::Path { path: path.to_owned(), source };
    let mut ahead: VecDeque<OsString> = parts(path).collect();
    let (mut found, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            found.pop();
            continue;
        }
        let next = found.join(&part);
        let file = open_itself(&next).map_err(|errno| failed(errno.into()))?;
        let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            found = next;
            continue;
        }
        if stat.st_uid != 0 && stat.st_uid != crate::user::id() {
            let (path, owner) = (path.to_owned(), stat.st_uid);
            return Err(JailError::Link { path, link: next, owner });
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(failed(Errno::LOOP.into()));
        }
        // Of this very link, whatever has its name by now.
        let target = readlinkat(&file, c"", Vec::new()).map_err(|errno| failed(errno.into()))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            found = PathBuf::from("/");
        }
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            ahead.push_front(part);
        }
    }
    Ok(found)
}

/// A file of the policy that is there.
pub(super) struct Found<'a> {
    pub(super) entry: &'a Entry,
    /// Where it is; without links.
    pub(super) source: PathBuf,
}

/// Finds all files of the policy. To be called before namespaces are entered: in one of users,
/// links of root's seem to be another's.
///
/// # Errors
/// As [`resolve`], of files that must be there.
pub(super) fn find_all(reach: &Reach) -> Result<Vec<Found<'_>>, JailError> {
    let mut all = Vec::new();
    for entry in &reach.entries {
        match resolve(&entry.path) {
            Ok(source) => all.push(Found { entry, source }),
            Err(JailError::Path { .. }) if entry.optional => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Opens a file that [`resolve`] has found, to be mounted or allowed.
///
/// # Errors
/// [`JailError::Path`]: also if a part of the path has become a link.
pub(super) fn open(found: &Path) -> Result<OwnedFd, JailError> {
    let failed = |errno: Errno| JailError::Path { path: found.to_owned(), source: errno.into() };
    let file = open_itself(found).map_err(failed)?;
    let stat = fstat(&file).map_err(failed)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Err(failed(Errno::LOOP)),
        _ => Ok(file),
    }
}

/// Opens a file or a link itself, on a way without links: each folder by itself, for systemd's
/// RestrictSUIDSGID= takes openat2(2) away. A link on the way is no folder (ENOTDIR).
fn open_itself(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, c"/", flags, Mode::empty())?;
    parts(path).try_fold(root, |above, part| openat(&above, part, flags, Mode::empty()))
}

/// The names of a path, and `..`.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn links_are_followed_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/file"), "").unwrap();
        symlink("a", dir.join("relative")).unwrap();
        symlink(dir.join("relative/b"), dir.join("absolute")).unwrap();
        symlink("../a/../relative", dir.join("a/up")).unwrap();
        for path in ["a/b/file", "relative/b/file", "absolute/file", "a/up/b/../b/file"] {
            assert_eq!(resolve(&dir.join(path)).unwrap(), dir.join("a/b/file"), "{path}");
            open(&resolve(&dir.join(path)).unwrap()).unwrap();
        }
        assert_eq!(resolve(Path::new("/../..")).unwrap(), Path::new("/"));
        let missing = resolve(&dir.join("absolute/missing")).unwrap_err().to_string();
        assert!(missing.contains("absolute/missing: No such file"), "{missing}");
        symlink("loop", dir.join("loop")).unwrap();
        let looped = resolve(&dir.join("loop")).unwrap_err().to_string();
        assert!(looped.contains("symbolic link"), "{looped}");
    }

    #[test]
    fn links_of_others_and_ways_that_become_links_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir(dir.join("a")).unwrap();
        fs::write(dir.join("a/file"), "").unwrap();
        let found = resolve(&dir.join("a/file")).unwrap();
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        symlink("b", dir.join("a")).unwrap();
        assert!(open(&found).is_err(), "on the way");
        fs::rename(dir.join("b/file"), dir.join("b/real")).unwrap();
        symlink("real", dir.join("b/file")).unwrap();
        assert!(open(&dir.join("b/file")).is_err(), "the file itself");
        // Only root can give a link away.
        if lchown(dir.join("a"), Some(65534), None).is_ok() {
            let error = resolve(&dir.join("a/real")).unwrap_err();
            assert!(matches!(error, JailError::Link { owner: 65534, .. }), "{error}");
        }
    }
}
