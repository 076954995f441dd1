//! The file that a trace goes to: the old one stays until the new one is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use exoprobe_vmm::{NewFile, NewFileError};

/// Mode of a new file, before the umask.
const MODE: u32 = 0o666;

/// A file that is being written.
pub(super) enum Output {
    /// A regular file, which has no name until it is whole.
    Replaced(BufWriter<NewFile>),
    /// A device or a pipe: there is no file to keep.
    Direct(BufWriter<File>),
}

impl Output {
    /// Opens `path` for writing. A symbolic link is followed.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Ok(Self::Direct(BufWriter::new(File::create(path)?)));
        }
        let file = NewFile::create(&path, MODE).map_err(host_error)?;
        Ok(Self::Replaced(BufWriter::new(file)))
    }

    /// Puts the file in its place. Without this call it is removed, and the old one stays.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Direct(mut file) => file.flush(),
            Self::Replaced(file) => file.into_inner()?.finish(true).map_err(host_error),
        }
    }
}

/// The host's error: the path is named elsewhere.
fn host_error(error: NewFileError) -> io::Error {
    match error {
        NewFileError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Replaced(file) => file.write(bytes),
            Self::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Replaced(file) => file.flush(),
            Self::Direct(file) => file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("trace"), dir.path().join("link"));
        fs::write(&path, "precious").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut cut_off = Output::create(&link).unwrap();
        cut_off.write_all(b"half").unwrap();
        cut_off.flush().unwrap();
        drop(cut_off);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        let mut whole = Output::create(&link).unwrap();
        whole.write_all(b"new").unwrap();
        whole.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "nothing else is left");
    }
}
