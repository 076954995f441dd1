//! The folder that is the service's own: it alone is written to.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FileType, Gid, Stat, Uid, fstat};

use super::error::{JailError, step};
use super::identity::Identity;
use super::path;

/// Owner only.
const MODE: u32 = 0o700;
/// Write permission of group and others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Makes the folder, or checks one that is there: a user that writes to it, or to a folder above
/// it, could lead the service elsewhere.
///
/// # Errors
/// [`JailError`].
pub(super) fn make(folder: &Path, identity: Identity) -> Result<(), JailError> {
    let refused = |reason: String| JailError::Folder { path: folder.to_owned(), reason };
    let failed = |source: io::Error| refused(source.to_string());
    for above in folder.ancestors().skip(1) {
        let found = fs::symlink_metadata(above).map_err(failed)?;
        let may_be_changed = found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0;
        let is_trusted = [0, crate::user::id()].contains(&found.uid());
        if !is_trusted || may_be_changed {
            let reason = format!(
                "{} may be changed by others (owner {}, mode {:o})",
                above.display(),
                found.uid(),
                found.mode() & 0o7777
            );
            return Err(refused(reason));
        }
    }
    match DirBuilder::new().mode(MODE).create(folder) {
        Ok(()) => {
            let made = path::open(folder)?;
            // It is this very folder, not what may be in its place by now.
            give_to(&made, identity)?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    open(folder, identity).map(drop)
}

fn give_to(made: &OwnedFd, identity: Identity) -> Result<(), JailError> {
    if crate::user::id() != 0 {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    rustix::fs::chownat(made, c"", Some(owner), Some(group), rustix::fs::AtFlags::EMPTY_PATH)
        .map_err(step("give the jail's folder to its user"))
}

/// Opens the folder, if it is the user's alone.
///
/// # Errors
/// [`JailError`].
pub(super) fn open(folder: &Path, identity: Identity) -> Result<OwnedFd, JailError> {
    let opened = path::open(folder)?;
    let stat = fstat(&opened).map_err(step("look at the jail's folder"))?;
    match fault(&stat, identity) {
        None => Ok(opened),
        Some(reason) => Err(JailError::Folder { path: folder.to_owned(), reason }),
    }
}

fn fault(stat: &Stat, identity: Identity) -> Option<String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Some("it is no folder".to_owned());
    }
    let mode = stat.st_mode & 0o7777;
    if stat.st_uid == identity.uid && mode & OTHERS_WRITE == 0 {
        return None;
    }
    let Identity { uid, gid } = identity;
    Some(format!(
        "it is there, and not the folder of uid {uid} alone (owner {}, mode {mode:o}): name one that is not there \
         or, if nothing else uses it, `chown {uid}:{gid}` and `chmod 700` it",
        stat.st_uid
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn own() -> Identity {
        let gid = nix::unistd::getegid().as_raw();
        Identity { uid: crate::user::id(), gid }
    }

    #[test]
    fn a_folder_is_made_for_its_user_alone_and_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap().join("jail");
        make(&folder, own()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o7777, MODE);
        make(&folder, own()).unwrap();
        if crate::user::id() == 0 {
            let other = Identity { uid: 65534, gid: 65533 };
            let error = make(&folder, other).unwrap_err().to_string();
            assert!(error.contains("owner 0") && error.contains("chown 65534:65533"), "{error}");
            let second = folder.with_file_name("second");
            make(&second, other).unwrap();
            let found = fs::metadata(&second).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (65534, 65533, MODE));
        }
    }

    #[test]
    fn folders_that_others_could_change_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let reason = |folder: &Path| make(folder, own()).unwrap_err().to_string();
        let set = |name: &str, mode| {
            let _ = fs::create_dir(dir.join(name));
            fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        };
        for mode in [0o770, 0o707, 0o1777] {
            set("open", mode);
            let reason = reason(&dir.join("open"));
            assert!(reason.contains(&format!("mode {mode:o}")), "{reason}");
        }
        set("above", 0o777);
        let above = reason(&dir.join("above/jail"));
        assert!(above.contains("above may be changed by others"), "{above}");
        assert!(!dir.join("above/jail").exists());
        set("above", 0o1777);
        make(&dir.join("above/jail"), own()).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        assert!(reason(&dir.join("file")).contains("no folder"));
        symlink(dir.join("above"), dir.join("link")).unwrap();
        assert!(reason(&dir.join("link")).contains("symbolic link"));
        assert!(reason(&dir.join("missing/jail")).contains("No such file"));
    }
}
