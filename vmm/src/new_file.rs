//! Files that get their name when they are complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Attempts to find a free temporary name: one suffices unless another program takes them on
/// purpose.
const NAMES: usize = 16;

/// The reason why a file was not written. An existing file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// The path is a FIFO, a socket, a device, a link or a folder.
    #[error("{0} is no regular file, and is not replaced: give another path")]
    NotAFile(PathBuf),
    /// A file exists and must not be replaced.
    #[error("{0} is there already")]
    Exists(PathBuf),
    /// The host refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
}

/// A file that is being written. It has no name until [`Self::finish`] (open(2), O_TMPFILE), so
/// nothing of it stays if the process is killed. On file systems without such files it has a random
/// name in the same folder, which dropping this removes.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    folder: File,
    name: OsString,
    /// Its temporary name, if it has one.
    temporary: Option<OsString>,
}

impl NewFile {
    /// Begins a file that will be at `path`, with the permissions `mode` less the umask.
    ///
    /// # Errors
    /// [`NewFileError`].
    pub fn create(path: &Path, mode: u32) -> Result<Self, NewFileError> {
        Self::begin(path, mode, true)
    }

    fn begin(path: &Path, mode: u32, unnamed: bool) -> Result<Self, NewFileError> {
        let fail = |source: io::Error| NewFileError::Io { path: path.to_owned(), source };
        let (folder, name) = split(path).map_err(fail)?;
        let folder = File::open(folder).map_err(fail)?;
        check_target(&folder, &name, path)?;
        let mode = Mode::from_raw_mode(mode);
        let open = |name: &OsStr, flags: OFlags| {
            let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
            fs::openat(&folder, name, flags, mode).map(File::from)
        };
        // It could not be named without /proc.
        let unnamed = unnamed && Path::new("/proc/self/fd").is_dir();
        let found = match unnamed {
            true => open(OsStr::new("."), OFlags::TMPFILE),
            false => Err(Errno::OPNOTSUPP),
        };
        let (file, temporary) = match found {
            Ok(file) => (file, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let (file, name) = with_free_name(|name| open(name, OFlags::CREATE | OFlags::EXCL))
                    .map_err(|error| fail(error.into()))?;
                (file, Some(name))
            }
            Err(error) => return Err(fail(error.into())),
        };
        Ok(Self { file, path: path.to_owned(), folder, name, temporary })
    }

    /// The file, to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Writes all of the file to the disk. [`Self::finish`] does so, too.
    ///
    /// # Errors
    /// [`NewFileError::Io`].
    pub fn sync(&self) -> Result<(), NewFileError> {
        let fail = |source| NewFileError::Io { path: self.path.clone(), source };
        self.file.sync_all().map_err(fail)
    }

    /// Gives the file its name once all of it is on the disk. With `replace`, replaces a regular
    /// file of that name.
    ///
    /// # Errors
    /// [`NewFileError`].
    pub fn finish(mut self, replace: bool) -> Result<(), NewFileError> {
        let path = self.path.clone();
        let fail = |source: io::Error| NewFileError::Io { path: path.clone(), source };
        self.sync()?;
        check_target(&self.folder, &self.name, &self.path)?;
        match self.give_name(replace) {
            Err(Errno::EXIST) => return Err(NewFileError::Exists(path)),
            named => named.map_err(|error| fail(error.into()))?,
        }
        match self.folder.sync_all() {
            // Some file systems have nothing to write.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(fail),
        }
    }

    fn give_name(&mut self, replace: bool) -> Result<(), Errno> {
        if self.temporary.is_none() {
            match self.link(&self.name) {
                // Only a rename replaces.
                Err(Errno::EXIST) if replace => {
                    let ((), name) = with_free_name(|name| self.link(name))?;
                    self.temporary = Some(name);
                }
                linked => return linked,
            }
        }
        let Some(temporary) = &self.temporary else { return Ok(()) };
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        fs::renameat_with(&self.folder, temporary, &self.folder, &self.name, flags)?;
        self.temporary = None;
        Ok(())
    }

    /// Links the unnamed file (open(2), O_TMPFILE).
    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        fs::linkat(CWD, from, &self.folder, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // There is no place to report a failure.
            let _ = fs::unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The folder and the name in it.
fn split(path: &Path) -> io::Result<(&Path, OsString)> {
    let names_folder = path.as_os_str().as_bytes().ends_with(b"/");
    let name = path.file_name().filter(|_| !names_folder).ok_or(io::ErrorKind::IsADirectory)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok((folder.unwrap_or(Path::new(".")), name.to_owned()))
}

fn check_target(folder: &File, name: &OsStr, path: &Path) -> Result<(), NewFileError> {
    match fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(NewFileError::Io { path: path.to_owned(), source: error.into() }),
        Ok(found) => match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Ok(()),
            _ => Err(NewFileError::NotAFile(path.to_owned())),
        },
    }
}

/// Makes something of a random name that was free.
fn with_free_name<T>(make: impl Fn(&OsStr) -> Result<T, Errno>) -> Result<(T, OsString), Errno> {
    for attempt in 0..NAMES {
        // Each `RandomState` hashes differently.
        let number = RandomState::new().hash_one(attempt);
        let name = OsString::from(format!(".exoprobe-{number:016x}.partial"));
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (made, name)),
        }
    }
    Err(Errno::EXIST)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        for unnamed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a");
            for content in ["one", "two"] {
                let mut cut_off = NewFile::begin(&path, 0o600, unnamed).unwrap();
                cut_off.write_all(b"half").unwrap();
                let before = std::fs::read(&path).ok();
                drop(cut_off);
                assert_eq!(std::fs::read(&path).ok(), before, "as it was");
                let mut file = NewFile::begin(&path, 0o600, unnamed).unwrap();
                file.write_all(content.as_bytes()).unwrap();
                file.finish(true).unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes());
                assert_eq!(names(dir.path()), ["a"], "nothing else is left");
            }
            let file = NewFile::begin(&path, 0o600, unnamed).unwrap();
            assert!(matches!(file.finish(false), Err(NewFileError::Exists(_))));
            assert_eq!(std::fs::read(&path).unwrap(), b"two");
            assert_eq!(names(dir.path()), ["a"], "nothing else is left");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn nothing_is_in_the_folder_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = NewFile::create(&dir.path().join("a"), 0o600).unwrap();
        file.write_all(b"half").unwrap();
        if file.temporary.is_some() {
            eprintln!("skipped: no O_TMPFILE in {}", dir.path().display());
            return;
        }
        // This is what a process that is killed now leaves.
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::fs::write(at("file"), "mine").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("missing"), at("dangling")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let before = names(dir.path());
        for name in ["fifo", "socket", "link", "dangling", "folder"] {
            let kind = std::fs::symlink_metadata(at(name)).unwrap().file_type();
            let error = NewFile::create(&at(name), 0o600).unwrap_err();
            assert!(matches!(error, NewFileError::NotAFile(_)), "{name}: {error}");
            assert_eq!(std::fs::symlink_metadata(at(name)).unwrap().file_type(), kind);
        }
        // One that came meanwhile.
        let file = NewFile::create(&at("late"), 0o600).unwrap();
        rustix::fs::mknodat(CWD, at("late"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(matches!(file.finish(true), Err(NewFileError::NotAFile(_))));
        std::fs::remove_file(at("late")).unwrap();
        for wrong in ["new/", "missing/a", ".."] {
            let error = NewFile::create(&at(wrong), 0o600).unwrap_err();
            assert!(matches!(error, NewFileError::Io { .. }), "{wrong}: {error}");
        }
        assert_eq!(names(dir.path()), before);
    }
}
