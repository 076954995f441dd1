//! Mount points: what is there, and taking it away.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::error::MountError;

/// What our mounts show as their source.
pub(super) const SOURCE: &str = "exoprobe";
/// Where the kernel tells of all mounts.
const MOUNTS: &str = "/proc/self/mountinfo";
/// So many names of what is in a folder are told.
const SHOWN: usize = 3;

/// A mount, as proc_pid_mountinfo(5) describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Number of its device, which is its own as long as it is there.
    device: String,
    kind: String,
    source: String,
}

/// What stands on a mount point.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A mount of ours, whose process is gone.
    Left,
    /// A mount of ours, in use.
    Alive,
    /// A mount of somebody else's, whose process is gone.
    Foreign(Mount),
}

impl Mount {
    /// What is mounted at `point`, the last if there are several.
    pub(super) fn at(point: &Path) -> Result<Option<Self>, MountError> {
        let mounts = std::fs::read(MOUNTS).map_err(MountError::Mounts)?;
        Ok(Self::find(&mounts, point))
    }

    fn find(mounts: &[u8], point: &Path) -> Option<Self> {
        mounts.split(|byte| *byte == b'\n').rev().find_map(|line| {
            let (at, mount) = Self::read(line)?;
            (at == point).then_some(mount)
        })
    }

    /// Reads a line: `36 35 98:0 /root /point options tags - type source options`.
    fn read(line: &[u8]) -> Option<(PathBuf, Self)> {
        let mut fields = line.split(|byte| *byte == b' ');
        let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
        let device = text(fields.nth(2)?);
        let point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        Some((point, Self { device, kind: text(fields.next()?), source: text(fields.next()?) }))
    }

    fn is_ours(&self) -> bool {
        self.source == SOURCE && (self.kind == "fuse" || self.kind.starts_with("fuse."))
    }
}

/// Reads `\040` and the like, which stand for blanks and line ends.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

/// The whole path of a mount point, also of one whose mount is dead.
///
/// # Errors
/// When it is not there.
pub(super) fn resolve(given: &Path) -> Result<PathBuf, MountError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => MountError::NotFound(given.to_owned()),
        _ => MountError::Look { point: given.to_owned(), source },
    };
    let error = match given.canonicalize() {
        Ok(whole) => return Ok(whole),
        Err(error) if is_dead(&error) => error,
        Err(error) => return Err(failed(error)),
    };
    let Some(name) = given.file_name() else { return Err(failed(error)) };
    let folder = match given.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    Ok(folder.canonicalize().map_err(failed)?.join(name))
}

/// The errno of a mount whose process is gone.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

fn look(point: &Path) -> Result<Found, MountError> {
    let mount = Mount::at(point)?;
    let dead = std::fs::metadata(point).is_err_and(|error| is_dead(&error));
    Ok(match (mount, dead) {
        (Some(mount), true) if mount.is_ours() => Found::Left,
        (Some(mount), true) => Found::Foreign(mount),
        (Some(mount), false) if mount.is_ours() => Found::Alive,
        _ => Found::Nothing,
    })
}

/// Makes sure that `point` can be mounted on. Says so when a mount was left there by a process that
/// is gone, which is taken away.
///
/// # Errors
/// [`MountError`] for what is no empty folder, or is mounted on.
pub(super) fn prepare(point: &Path) -> Result<bool, MountError> {
    let mut cleaned = false;
    loop {
        match look(point)? {
            Found::Nothing => break,
            Found::Left => unmount(point, true)?,
            Found::Alive => return Err(MountError::InUse(point.to_owned())),
            Found::Foreign(mount) => {
                let (point, of) = (point.to_owned(), mount.source);
                return Err(MountError::Foreign { point, of });
            }
        }
        cleaned = true;
    }
    check_folder(point)?;
    Ok(cleaned)
}

fn check_folder(point: &Path) -> Result<(), MountError> {
    let failed = |source| MountError::Look { point: point.to_owned(), source };
    if !std::fs::metadata(point).map_err(failed)?.is_dir() {
        return Err(MountError::NoFolder(point.to_owned()));
    }
    let entries = std::fs::read_dir(point).map_err(failed)?;
    let names: Result<Vec<OsString>, _> =
        entries.take(SHOWN + 1).map(|entry| entry.map(|entry| entry.file_name())).collect();
    let names = names.map_err(failed)?;
    if names.is_empty() {
        return Ok(());
    }
    let mut shown: Vec<_> =
        names.iter().take(SHOWN).map(|name| format!("{:?}", name.to_string_lossy())).collect();
    if names.len() > SHOWN {
        shown.push("...".to_owned());
    }
    Err(MountError::NotEmpty { point: point.to_owned(), names: shown.join(", ") })
}

/// Takes a mount of ours away; a dead one also while somebody holds on to it.
///
/// # Errors
/// [`MountError::NotMounted`] where there is none of ours.
pub(super) fn take_away(point: &Path) -> Result<(), MountError> {
    match look(point)? {
        Found::Left => unmount(point, true),
        Found::Alive => unmount(point, false),
        Found::Nothing | Found::Foreign(_) => Err(MountError::NotMounted(point.to_owned())),
    }
}

/// Takes what is mounted away: `lazily` at once, whoever uses it.
///
/// # Errors
/// [`MountError::Busy`] while somebody uses it.
pub(super) fn unmount(point: &Path, lazily: bool) -> Result<(), MountError> {
    let detach = if lazily { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    let source = match umount2(point, detach | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(Errno::EBUSY) => return Err(MountError::Busy(point.to_owned())),
        Err(Errno::EPERM) => return unmount_as_user(point, lazily),
        Err(errno) => errno.into(),
    };
    Err(MountError::Unmount { point: point.to_owned(), source })
}

/// By the program that may, as it did when it was mounted.
fn unmount_as_user(point: &Path, lazily: bool) -> Result<(), MountError> {
    let failed = |source| MountError::Unmount { point: point.to_owned(), source };
    let how = if lazily { "-uz" } else { "-u" };
    let output = Command::new("fusermount3").args([how, "--"]).arg(point).output();
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(output.stderr.trim_ascii()).into_owned();
    if said.contains(Errno::EBUSY.desc()) {
        return Err(MountError::Busy(point.to_owned()));
    }
    Err(failed(io::Error::other(said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:51 / /mnt/a\\040b rw,nosuid - fuse exoprobe rw,user_id=0
41 22 0:52 / /mnt/c rw shared:2 master:1 - fuse.sshfs me@host:/x rw
42 22 0:53 / /mnt/c rw - fuse exoprobe rw
";

    #[test]
    fn mounts_are_found_by_their_point() {
        let find = |point: &str| Mount::find(MOUNTS.as_bytes(), Path::new(point));
        let blank = find("/mnt/a b").unwrap();
        assert!(blank.is_ours() && blank.device == "0:51");
        assert_eq!(find("/mnt/c").unwrap().device, "0:53", "the last");
        assert!(!find("/").unwrap().is_ours());
        assert_eq!(find("/mnt"), None);
        let other = Mount::read(MOUNTS.lines().nth(2).unwrap().as_bytes()).unwrap().1;
        assert_eq!((other.kind.as_str(), other.source.as_str()), ("fuse.sshfs", "me@host:/x"));
        assert!(!other.is_ours());
        assert!(Mount::at(Path::new("/proc")).unwrap().is_some());
    }

    #[test]
    fn escapes_are_read() {
        assert_eq!(unescape(br"a\040b\134\012"), b"a b\\\n");
        assert_eq!(unescape(br"a\04"), br"a\04");
        assert_eq!(unescape(br"\999\777"), br"\999\777");
    }

    #[test]
    fn only_an_empty_folder_is_mounted_on() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!prepare(dir.path()).unwrap());
        let missing = dir.path().join("missing");
        let error = resolve(&missing).unwrap_err();
        assert!(error.to_string().contains("mkdir -p"), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(prepare(&file), Err(MountError::NoFolder(_))));
        assert!(matches!(resolve(&file.join("x")), Err(MountError::Look { .. })));
        let error = prepare(dir.path()).unwrap_err();
        assert!(matches!(error, MountError::NotEmpty { .. }));
        assert!(error.to_string().contains("\"file\""), "{error}");
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let error = prepare(dir.path()).unwrap_err();
        assert!(error.to_string().contains(", ..."), "{error}");
    }

    #[test]
    fn only_mounts_of_ours_are_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        for point in [dir.path(), Path::new("/proc")] {
            assert!(matches!(take_away(point), Err(MountError::NotMounted(_))), "{point:?}");
        }
        assert!(Mount::at(Path::new("/proc")).unwrap().is_some());
        let whole = dir.path().canonicalize().unwrap();
        assert_eq!(resolve(&dir.path().join(".")).unwrap(), whole);
    }
}
