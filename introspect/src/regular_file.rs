//! Opens files that users name, if they are regular files.

use std::fs::File;
use std::io;
use std::path::Path;

/// Reasons why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// A directory, device, pipe or socket.
    #[error("not a regular file")]
    NotAFile,
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a regular file. Returns it and its length in bytes.
pub(crate) fn open(path: &Path) -> Result<(File, u64), OpenError> {
    // Checked before opening, because opening a pipe would wait for its writer.
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(OpenError::NotAFile);
    }
    Ok((File::open(path)?, metadata.len()))
}
